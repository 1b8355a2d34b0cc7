"""Coverage is a union, and says of every seq up to the head whether it came, was declared lost, or is missing."""

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
from cloud_jobs.lake.coverage import Coverage, DeviceStream, Statement, TenantDevice
from cloud_jobs.lake.coverage_log import (
    COVERAGE_ROWS,
    EMPTY,
    CoverageFile,
    CoverageLog,
    CoverageWriter,
    from_rows,
    to_rows,
    unite,
)
from cloud_jobs.lake.transactions import next_number
from tests.strategies import interval_sets
from waybill.record import IntervalSet, Tombstone


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    received, lost = draw(interval_sets), draw(interval_sets)
    head = max(received.last or 0, lost.last or 0) + draw(st.integers(0, 3))
    stated = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
    return Coverage(received, tuple(Tombstone(*bounds, "quota") for bounds in lost.ranges), head, *stated)


def said(coverage: Coverage) -> tuple[object, ...]:
    stated = coverage.stated_us, coverage.stated_head, coverage.complete_until_us
    return coverage.received, coverage.declared_lost, coverage.missing, coverage.head, *stated


@given(coverages(), coverages(), coverages())
def test_joining_is_a_union_in_any_order_and_any_number_of_times(one: Coverage, two: Coverage, three: Coverage) -> None:
    assert said(one | two) == said(two | one)
    assert said((one | two) | three) == said(one | (two | three))
    assert one | Coverage() == one == one | one
    assert said(Coverage() | one) == said(one)


@given(coverages())
def test_every_seq_up_to_the_head_is_received_declared_lost_or_missing(coverage: Coverage) -> None:
    parts = coverage.received, coverage.declared_lost, coverage.missing
    assert (parts[0] | parts[1] | parts[2]).gaps(1, coverage.head) == IntervalSet()
    assert sum(part.count for part in parts) == (parts[0] | parts[1] | parts[2]).count


def test_a_stream_is_complete_until_the_latest_statement_whose_head_is_covered() -> None:
    coverage = Coverage(IntervalSet([(1, 3), (6, 9)]), (Tombstone(4, 4, "quota"),), 9, 90, 9)
    assert coverage.covered_through == 4
    assert coverage.completed() is coverage
    assert coverage.completed([Statement(50, 5), Statement(40, 4), Statement(30, 3)]).complete_until_us == 40
    filled = coverage | Coverage(IntervalSet([(5, 5)]))
    assert filled.completed().complete_until_us == 90


streams = st.builds(
    DeviceStream, st.sampled_from(["x", "y"]), st.sampled_from(["a", "b", "a.b"]), st.sampled_from([7, 1 << 62])
)
known = st.dictionaries(streams, coverages(), max_size=4)


@given(st.lists(known, max_size=4))
def test_the_union_of_rows_is_the_union_of_the_coverages(parts: list[dict[DeviceStream, Coverage]]) -> None:
    expected: dict[DeviceStream, Coverage] = {}
    for part in parts:
        for stream, coverage in part.items():
            expected[stream] = expected.get(stream, Coverage()) | coverage
    united = unite([to_rows(part) for part in parts])
    assert united.schema == COVERAGE_ROWS
    assert list(from_rows(united)) == sorted(expected.items())


STREAM = DeviceStream("acme", "d", 7)


class LaterMerges:
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


def logged_coverage(*ranges: tuple[int, int], head: int = 0) -> dict[DeviceStream, Coverage]:
    return {STREAM: Coverage(IntervalSet(ranges), head=head)}


def commit(writer: CoverageWriter, delta: dict[DeviceStream, Coverage]) -> int:
    number = next_number(writer.manifest.number)
    writer.committed(writer.prepare(number, delta))
    return number


def test_each_commit_has_its_own_coverage_for_ever(log: CoverageLog) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, logged_coverage((seq, seq), head=seq)) for seq in range(1, 100)]
    for seq, number in enumerate(numbers, 1):
        assert dict(from_rows(log.rows(log.manifest(number)))) == logged_coverage((1, seq), head=seq)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10, deadline=None)
@given(st.lists(st.booleans(), min_size=20, max_size=80), st.integers(0, 12))
def test_whenever_merges_end_nothing_is_lost(
    log: CoverageLog, monkeypatch: pytest.MonkeyPatch, ends: list[bool], small: int
) -> None:
    monkeypatch.setattr(module, "_MERGED_AT_ONCE", small)
    merges = LaterMerges()
    writer = new_writer(log, merges)
    for seq, end in enumerate(ends, 1):
        commit(writer, logged_coverage((seq, seq)))
        if end:
            merges.finish()
    assert dict(from_rows(log.rows(writer.manifest))) == logged_coverage((1, len(ends)))


def test_only_the_devices_asked_for_are_read(log: CoverageLog) -> None:
    writer = new_writer(log)
    made = {DeviceStream("acme", name, 7): Coverage(IntervalSet([(1, 2)])) for name in ("a", "b", "c")}
    made[DeviceStream("other", "b", 7)] = made[DeviceStream("other", "c", 7)] = Coverage(IntervalSet([(3, 3)]))
    commit(writer, made)
    commit(writer, {DeviceStream("acme", "b", 8): Coverage(head=3)})
    asked = [TenantDevice("acme", "b"), TenantDevice("acme", "nobody"), TenantDevice("other", "c")]
    found = sorted(dict(from_rows(log.rows(writer.manifest, asked))))
    assert found == [("acme", "b", 7), ("acme", "b", 8), ("other", "c", 7)]
    assert dict(from_rows(log.rows(writer.manifest, []))) == {}


def sweep(log: CoverageLog, newest: int, after_s: float = 60.0) -> int:
    """A sweep of what is that much older than now, as of a moment one second later."""
    older_than_s = time.time() + after_s
    return log.sweep(newest, older_than_s + 1, older_than_s)


def test_a_sweep_takes_what_no_commit_in_use_needs(log: CoverageLog, tmp_path: Path) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, logged_coverage((seq, seq))) for seq in range(1, 20)]
    writer.prepare(next_number(numbers[-1]), logged_coverage((99, 99)))
    assert sweep(log, numbers[-1], -60) == 0
    assert sweep(log, numbers[-1]) > 20
    assert dict(from_rows(log.rows(log.manifest(numbers[-1])))) == logged_coverage((1, 19))
    # of the newest commit, and of the one before it: of which the last one was in force is not known from the files
    kept = [log.manifest(number) for number in numbers[-2:]]
    assert len([*tmp_path.rglob("*.json")]) == 2
    assert len([*tmp_path.rglob("*.parquet")]) == len({file for manifest in kept for file in manifest.files})
    assert sweep(log, numbers[-1]) == 0


def test_what_was_known_at_any_moment_that_may_be_asked_for_stays(log: CoverageLog, tmp_path: Path) -> None:
    writer = new_writer(log)
    numbers = [commit(writer, logged_coverage((seq, seq))) for seq in range(1, 40)]
    steps = {number: at for at, number in enumerate(numbers)}
    for number in numbers:
        listed = [tmp_path / file.path for file in log.manifest(number).files]
        for path in [tmp_path / f"manifests/{number:016x}.json", *listed]:
            # a minute from one commit to the next; a file is as old as the first commit that lists it
            if path.stat().st_mtime > 1_000_000:
                os.utime(path, (60 * steps[number], 60 * steps[number]))
    assert log.sweep(numbers[-1], 60 * 20.5, 60 * 18.5) > 10
    for at, number in enumerate(numbers[20:], 20):
        assert dict(from_rows(log.rows(log.manifest(number)))) == logged_coverage((1, at + 1))
