"""Errors of the simulator."""


class SimulatorError(Exception):
    """Any failure of the simulator: the message says what happened, to what, and what to do."""


class ScenarioError(SimulatorError):
    """A scenario that cannot be made, written or read."""


class PublishError(SimulatorError):
    """The local broker of `device` at `address` did not keep what the vehicle sent."""

    def __init__(self, device: str, address: str, reason: str) -> None:
        super().__init__(f"{device} at {address}: {reason}")
