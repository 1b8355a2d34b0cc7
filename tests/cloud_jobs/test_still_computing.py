"""A run of minutes says that it goes on; a short one, and one whose Spark says nothing, need no more than that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from cloud_jobs.jobs import said_while_computing


class Log:
    def __init__(self, lines: int) -> None:
        self.lines: list[dict[str, Any]] = []
        self.is_full, self._most = threading.Event(), lines

    def info(self, event: str, **more: Any) -> None:
        self.lines.append({"event": event, **more})
        if len(self.lines) >= self._most:
            self.is_full.set()


def spark(*running: tuple[int, int]) -> Any:
    infos = [SimpleNamespace(numCompletedTasks=done, numTasks=tasks) for done, tasks in running]
    tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__)
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_a_long_run_says_again_and_again_what_is_done() -> None:
    log = Log(2)
    with said_while_computing(log, spark((3, 8), (0, 4)), every_s=0.001):
        assert log.is_full.wait(30)
    assert log.lines[0] == {"event": "computing", "seconds": 0, "tasks_done": 3, "tasks": 12}
    said = len(log.lines)
    assert said == len(log.lines), "nothing is said behind its end"
