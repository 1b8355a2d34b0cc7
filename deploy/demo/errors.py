"""What can stop the demo, beside a server of the stack."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message says where it stopped and shows the last lines of what failed."""
