"""The coverage of a commit is the union of all that was known by then, however its files were merged and swept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import cloud_jobs.lake.coverage_log as module
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.coverage_log import (
    EMPTY,
    CoverageFile,
    CoverageLog,
    CoverageWriter,
)
from cloud_jobs.lake.transactions import next_number
from waybill.record import IntervalSet

STREAM = DeviceStream("acme", "d", 7)


class LaterMerges:
    """Merges that end when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[CoverageFile], Callable[[], CoverageFile]]] = []

    def __call__(self, work: Callable[[], CoverageFile]) -> Future[CoverageFile]:
        outcome: Future[CoverageFile] = Future()
        self.waiting.append((outcome, work))
        return outcome

    def finish(self) -> None:
        for outcome, work in self.waiting:
            outcome.set_result(work())
        self.waiting.clear()


@pytest.fixture
def log(tmp_path: Path) -> CoverageLog:
    return CoverageLog(SubTreeFileSystem(str(tmp_path), LocalFileSystem()))


def new_writer(log: CoverageLog, submit: LaterMerges | None = None) -> CoverageWriter:
    return CoverageWriter(log, EMPTY, submit or LaterMerges())


def known(*ranges: tuple[int, int], head: int = 0) -> dict[DeviceStream, Coverage]:
    return {STREAM: Coverage(IntervalSet(ranges), head=head)}


def commit(writer: CoverageWriter, delta: dict[DeviceStream, Coverage]) -> int:
    number = next_number(writer.manifest.number)
    writer.committed(writer.prepare(number, delta))
    return number


def test_each_commit_has_its_own_coverage_for_ever(log: CoverageLog) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, known((seq, seq), head=seq)) for seq in range(1, 100)]
    for seq, number in enumerate(numbers, 1):
        assert log.coverage(log.manifest(number)) == known((1, seq), head=seq)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10, deadline=None)
@given(st.lists(st.booleans(), min_size=20, max_size=80), st.integers(0, 12))
def test_whenever_merges_end_nothing_is_lost(
    log: CoverageLog, monkeypatch: pytest.MonkeyPatch, ends: list[bool], small: int
) -> None:
    monkeypatch.setattr(module, "_MERGED_AT_ONCE", small)
    merges = LaterMerges()
    writer = new_writer(log, merges)
    for seq, end in enumerate(ends, 1):
        commit(writer, known((seq, seq)))
        if end:
            merges.finish()
    assert log.coverage(writer.manifest) == known((1, len(ends)))


def test_only_the_devices_asked_for_are_read(log: CoverageLog) -> None:
    writer = new_writer(log)
    made = {DeviceStream("acme", name, 7): Coverage(IntervalSet([(1, 2)])) for name in ("a", "b", "c")}
    made[DeviceStream("other", "b", 7)] = made[DeviceStream("other", "c", 7)] = Coverage(IntervalSet([(3, 3)]))
    commit(writer, made)
    commit(writer, {DeviceStream("acme", "b", 8): Coverage(head=3)})
    asked = [TenantDevice("acme", "b"), TenantDevice("acme", "nobody"), TenantDevice("other", "c")]
    found = sorted(log.coverage(writer.manifest, asked))
    assert found == [("acme", "b", 7), ("acme", "b", 8), ("other", "c", 7)]
    assert log.coverage(writer.manifest, []) == {}


def sweep(log: CoverageLog, newest: int, after_s: float = 60.0) -> int:
    """A sweep of what is that much older than now, as of a moment one second later."""
    older_than_s = time.time() + after_s
    return log.sweep(newest, older_than_s + 1, older_than_s)


def test_a_sweep_takes_what_no_commit_in_use_needs(log: CoverageLog, tmp_path: Path) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, known((seq, seq))) for seq in range(1, 20)]
    writer.prepare(next_number(numbers[-1]), known((99, 99)))
    assert sweep(log, numbers[-1], -60) == 0
    assert sweep(log, numbers[-1]) > 20
    assert log.coverage(log.manifest(numbers[-1])) == known((1, 19))
    # of the newest commit, and of the one before it: of which the last one was in force is not known from the files
    kept = [log.manifest(number) for number in numbers[-2:]]
    assert len([*tmp_path.rglob("*.json")]) == 2
    assert len([*tmp_path.rglob("*.parquet")]) == len({file for manifest in kept for file in manifest.files})
    assert sweep(log, numbers[-1]) == 0


def test_what_was_known_at_any_moment_that_may_be_asked_for_stays(log: CoverageLog, tmp_path: Path) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, known((seq, seq))) for seq in range(1, 40)]
    steps = {number: at for at, number in enumerate(numbers)}
    for number in numbers:
        listed = [tmp_path / file.path for file in log.manifest(number).files]
        for path in [tmp_path / f"manifests/{number:016x}.json", *listed]:
            # a minute from one commit to the next; a file is as old as the first commit that lists it
            if path.stat().st_mtime > 1_000_000:
                os.utime(path, (60 * steps[number], 60 * steps[number]))
    assert log.sweep(numbers[-1], 60 * 20.5, 60 * 18.5) > 10
    for at, number in enumerate(numbers[20:], 20):
        assert log.coverage(log.manifest(number)) == known((1, at + 1))
