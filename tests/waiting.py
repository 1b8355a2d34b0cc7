"""How a test waits: until something is true, for a generous time, never for a time alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found],
    timeout_s: float = 30.0,
    *,
    said: Callable[[], object] = lambda: "it did not happen",
    every_s: float = 0.05,
) -> Found:
    """The first true value of the condition; AssertionError with what `said` gives then when the time is over."""
    ends_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends_s, f"not within {timeout_s:g} s: {said()}"
        time.sleep(every_s)
    return found
