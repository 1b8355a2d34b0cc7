"""What is wrong with executors is said in a sentence: the machine, the package, the folder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs import spark as executor_check
from cloud_jobs.errors import ExecutorsNotReady
from cloud_jobs.spark import ExecutorReport, check_executors, report_faults

GOOD = ExecutorReport("worker-1", "3.11.7", (), "/tmp/app/waybill-1.zip/cloud_jobs/spark.py", ())  # noqa: S108


class OneMachine:
    """The part of Spark's context that the check uses; its tasks run here, or are cancelled."""

    def __init__(self, failure: str = "", *, hangs: bool = False) -> None:
        self.defaultParallelism = 2
        self.failure = failure
        self.cancelled = threading.Event()
        self.hangs = hangs
        self.asked: list[Any] = []

    def parallelize(self, items: Any, slots: int) -> OneMachine:
        assert len(items) == slots
        self.asked = list(items)
        return self

    def map(self, task: Any) -> OneMachine:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        if self.hangs:
            assert self.cancelled.wait(30)
            raise RuntimeError("cancelled")
        if self.failure:
            raise RuntimeError(self.failure)
        return [self.task(one) for one in self.asked]

    def setJobGroup(self, *_: str) -> None:  # noqa: N802 - Spark's name
        """Nothing to group."""

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802 - Spark's name
        """As above."""

    def cancelJobGroup(self, _: str) -> None:  # noqa: N802 - Spark's name
        self.cancelled.set()


def test_executors_that_have_all_are_ready_and_no_mark_is_left(tmp_path: Path) -> None:
    (report,) = check_executors(OneMachine(), archive="", folders=[tmp_path], timeout_s=30)
    assert (report.failed, report.unseen) == ((), ())
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_cannot_be_imported_is_named_with_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_check, "EXECUTOR_PACKAGES", ("numpy", "no_such_package"))
    with pytest.raises(ExecutorsNotReady, match="the package no_such_package cannot be imported") as caught:
        check_executors(OneMachine(), archive="", folders=[], timeout_s=30)
    assert len(caught.value.faults) == 1, "two tasks of one machine say it once"


def test_other_code_than_the_driver_s_is_named() -> None:
    assert report_faults([GOOD], archive="waybill-1.zip") == []
    installed = GOOD._replace(project="/usr/lib/python3/site-packages/cloud_jobs/spark.py")
    assert report_faults([GOOD, installed], archive="waybill-1.zip") == [
        "worker-1: runs the project of /usr/lib/python3/site-packages, not what the driver sent"
    ]


def test_executors_that_never_come_are_waited_for_only_so_long() -> None:
    with pytest.raises(ExecutorsNotReady, match="no executor answered within"):
        check_executors(OneMachine(hangs=True), archive="", folders=[], timeout_s=0.01)
