"""What can stop a canary, or what it wants to look at.

CanaryError
├── ProbeCut             a probe could not be sent as a whole
├── NotLookedAt          a hop could not be looked at; it is tried again
├── StateFileDamaged     the file of the probes that were sent cannot be read
├── ReferenceFilesExist  what is to be published would be written over files that are there
└── CanaryNotRunning     no answer at the address of the status
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class CanaryError(Exception):
    """The base of all."""


class ProbeCut(CanaryError):
    """A probe was not sent as a whole; the text says why."""


class NotLookedAt(CanaryError):
    """A hop could not be looked at now; the text says why."""


class StateFileDamaged(CanaryError):
    """The file of the probes that were sent is none; the text names it, and what to do."""


class ReferenceFilesExist(CanaryError):
    """Files would be written over; `files`: which."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        names = ", ".join(map(str, files))
        super().__init__(f"{names}: is there already; choose another folder with --out, or replace it with --replace")


class CanaryNotRunning(CanaryError):
    """Nobody answers where the status is."""
