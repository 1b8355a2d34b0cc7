"""A job that is run again and again until a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cloud_jobs.errors import NotPublished, StoreUnavailable


def run_repeatedly(
    run: Callable[[], object],
    *,
    interval_s: float,
    on_error: Callable[[NotPublished | StoreUnavailable], object],
    stop: threading.Event,
) -> None:
    """Runs at once, then `interval_s` after each end, until `stop`.

    A topic or an object store that cannot be reached does not end it.
    """
    while not stop.is_set():
        try:
            run()
        except (NotPublished, StoreUnavailable) as error:
            on_error(error)
        # not `sleep`, which a signal would not end
        stop.wait(interval_s)


class PeriodicTrigger:
    """Fires the first time, and then once every `interval_s`."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._next = float("-inf")

    def fire(self) -> bool:
        """Fires if it is due, and returns whether it did."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True
