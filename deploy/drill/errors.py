"""What can stop a drill, beside a server of the stack."""

from __future__ import annotations


class DrillError(Exception):
    """The drill cannot go on; the message says what it waited for, and shows the last lines of what failed."""
