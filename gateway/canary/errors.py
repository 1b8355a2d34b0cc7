"""Errors of a canary."""

from __future__ import annotations


class CanaryError(Exception):
    """The base of all, and what has no class of its own: the text says what is wrong."""


class ProbeCut(CanaryError):
    """A probe was not sent as a whole; the text says why."""


class CanaryNotRunning(CanaryError):
    """Nobody answers where the status is."""
