"""How a test waits: until something is true, for a generous time, never for a time alone."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

# Speed is measured in benchmarks/. A machine that runs all parts of the tests at once, beside others, may take long for
# what takes a moment, and a wait costs no more than what it waits for.
PATIENCE = 3.0 if os.environ.get("CI") else 1.0


def deadline_s(timeout_s: float) -> float:
    """When a wait that may last so long is over, by `time.monotonic`; continuous integration has more patience."""
    return time.monotonic() + timeout_s * PATIENCE


def wait_until(
    condition: Callable[[], Found],
    timeout_s: float = 30.0,
    *,
    said: Callable[[], object] = lambda: "it did not happen",
    every_s: float = 0.05,
) -> Found:
    """The first true value of the condition; AssertionError with what `said` gives then when the time is over."""
    ends_s = deadline_s(timeout_s)
    while not (found := condition()):
        assert time.monotonic() < ends_s, f"not within {timeout_s * PATIENCE:g} s: {said()}"
        time.sleep(every_s)
    return found
