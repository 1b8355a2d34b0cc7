"""Why a daemon does not start, or ends by itself."""

from __future__ import annotations


class DaemonError(Exception):
    """A daemon does not start, or ends by itself."""


class AddressTaken(DaemonError):
    """Another process listens at the status address: set another `status.port`."""


class ThreadEnded(DaemonError):
    """A thread of the daemon ended: the process exits, so that its supervisor starts it again."""
