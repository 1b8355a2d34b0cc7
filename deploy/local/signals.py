"""A command that runs a stack ends in order when it is asked to."""

import signal
from types import FrameType

__all__ = ["interrupt_on_signals"]


def interrupt_on_signals() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    # Their default action ends the process at once, and no `finally` would stop the servers in order.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
