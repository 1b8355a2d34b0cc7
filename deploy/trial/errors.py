"""What a trial cannot go on with."""

from __future__ import annotations


class TrialError(Exception):
    """The trial cannot go on. `command`: the way out, or ""."""

    def __init__(self, reason: str, command: str = "") -> None:
        super().__init__(reason)
        self.command = command
