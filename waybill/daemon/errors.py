"""Why a daemon does not start, or ends by itself."""

from __future__ import annotations


class DaemonError(Exception):
    """Why a daemon does not start, or ends by itself."""


class AddressTaken(DaemonError):
    """Another process listens at the address of the status; give this one another `status.port`."""


class ThreadEnded(DaemonError):
    """A daemon without one of its threads is none: the process ends, and whoever supervises it starts it again."""
