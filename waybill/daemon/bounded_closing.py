"""Closing connections to servers that may not answer any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["CLOSE_S", "close_within"]

CLOSE_S: Final = 8.0
"""A little more than a client's reader takes that waits for an operation, as it is bounded there."""


def close_within(closings: Iterable[Callable[[], object]], bound_s: float = CLOSE_S) -> bool:
    """Calls all at once, each in a thread; whether they are over in time. What is not is left to the process's end."""
    end_s = time.monotonic() + bound_s
    threads = [threading.Thread(target=one, name="closes", daemon=True) for one in closings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
