"""Errors of a canary.

CanaryError
├── ProbeCut             a probe could not be sent as a whole
└── CanaryNotRunning     no answer at the address of the status
"""

from __future__ import annotations


class CanaryError(Exception):
    """The base of all, and what has no class of its own: the text says what is wrong."""


class ProbeCut(CanaryError):
    """A probe was not sent as a whole; the text says why."""


class CanaryNotRunning(CanaryError):
    """Nobody answers where the status is."""
