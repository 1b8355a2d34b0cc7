"""What can go wrong in the simulator.

SimulatorError
├── ScenarioError      a scenario cannot be made or read
├── TrackError         a recorded track cannot be read
└── PublishError       a local broker did not take the records of a vehicle
    └── NoSubscriber   it took them, but no agent was there to keep them
"""


class SimulatorError(Exception):
    """Any failure of the simulator: the message says what happened, to what, and what to do."""


class ScenarioError(SimulatorError):
    """A scenario that cannot be made, written or read."""


class TrackError(SimulatorError):
    """A recorded track that cannot be read; `line` is the line in the file (0: the file as a whole)."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        where = f"{path}, line {line}" if line else path
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class PublishError(SimulatorError):
    """The local broker of `device` at `address` did not acknowledge what the vehicle sent."""

    def __init__(self, device: str, address: str, reason: str) -> None:
        super().__init__(f"{device} at {address}: {reason}")
        self.device = device
        self.address = address
        self.reason = reason


class NoSubscriber(PublishError):
    """The broker had nobody to keep the records for: the agent's session does not exist there."""
