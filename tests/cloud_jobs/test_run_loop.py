"""A job that follows runs until a signal, and a topic that cannot be reached does not end it."""

from __future__ import annotations

import threading

from cloud_jobs.errors import NotPublished, StoreUnavailable
from cloud_jobs.run_result import PeriodicTrigger, run_repeatedly


class Pauses(threading.Event):
    """An event that takes no time to wait for, and is set after so many waits."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self._last = last

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self._last:
            self.set()
        return self.is_set()


def _unexpected(error: NotPublished | StoreUnavailable) -> None:
    raise AssertionError(error)


def test_it_runs_at_once_and_after_each_pause_until_stopped() -> None:
    stop, runs = Pauses(3), list[int]()
    run_repeatedly(lambda: runs.append(1), interval_s=5.0, on_error=_unexpected, stop=stop)
    assert (len(runs), stop.waited) == (3, [5.0, 5.0, 5.0])


def test_messages_that_no_cluster_took_and_a_silent_store_are_reported_and_the_next_run_comes_after_the_pause() -> None:
    stop, errors = Pauses(2), list[NotPublished | StoreUnavailable]()
    given = [StoreUnavailable("http://store", "no route"), NotPublished("events", "no cluster answers")]
    left = [*given]

    def run() -> None:
        raise left.pop()

    run_repeatedly(run, interval_s=1.0, on_error=errors.append, stop=stop)
    assert errors == given[::-1]


def test_a_trigger_fires_at_first_and_then_once_in_an_interval() -> None:
    times = iter([100.0, 100.0, 159.9, 160.0, 219.9, 400.0])
    trigger = PeriodicTrigger(60.0, clock=lambda: next(times))
    assert [trigger.fire() for _ in range(6)] == [True, False, False, True, False, True]
