"""What keeps a package from being built."""


class PackagingError(Exception):
    """A step failed: the step, and the reason."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason
