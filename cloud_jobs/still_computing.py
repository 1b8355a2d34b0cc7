"""A line in the log now and then while Spark computes: a run of minutes says that it goes on, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

__all__ = ["said_while_computing"]

_EVERY_S: Final = 20.0


@contextmanager
def said_while_computing(log: Any, spark: SparkSession, every_s: float = _EVERY_S) -> Iterator[None]:
    """Says each `every_s` for how long it has computed, and how many of the tasks of now are done."""
    began, ended = time.monotonic(), threading.Event()

    def say() -> None:
        while not ended.wait(every_s):
            log.info("computing", seconds=round(time.monotonic() - began), **_tasks(spark))

    saying = threading.Thread(target=say, name="still-computing", daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()


def _tasks(spark: SparkSession) -> dict[str, int]:
    """The tasks of now; nothing where Spark does not say."""
    try:
        tracker = spark.sparkContext.statusTracker()
        running = [one for number in tracker.getActiveStageIds() if (one := tracker.getStageInfo(number)) is not None]
    except Exception:  # noqa: BLE001 - it is about to end, and its own error is said elsewhere
        return {}
    return {"tasks_done": sum(one.numCompletedTasks for one in running), "tasks": sum(one.numTasks for one in running)}
