"""Records, coverage, tombstones and heads of a micro-batch become durable together, once, by one writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from cloud_jobs.errors import CommitFailed, Fenced
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, new_lake, seqs_in_table, take_in
from waybill.daemon.durable_file import create_durably
from waybill.record import IntervalSet, Tombstone


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "a lake")


def counted(lake: Lake, column: str) -> int:
    return sum(lake.rows("ingest_batches")[column].to_pylist())


def paths(lake: Lake) -> list[Path]:
    return [Path(unquote(uri)) for uri in lake.open("records").file_uris()]


def conflicts(lake: Lake) -> list[tuple[int, str]]:
    rows = lake.rows("quarantine", where=[("cause", "=", "conflict")]).to_pylist()
    return sorted((row["seq"], json.loads(row["detail"])["name"]) for row in rows)


def test_records_come_out_once_and_coverage_says_what_is_there(lake: Lake) -> None:
    lost = (Tombstone(6, 7, "quota"),)
    take_in(lake, new_ingest(lake), [batch(1, 2, 3), batch(2, 3, 4)], [batch(1, 2, 3), batch(8, head=9, lost=lost)])
    assert check(lake) == IntervalSet([(1, 4), (8, 8)])
    assert (counted(lake, "accepted"), counted(lake, "duplicates"), counted(lake, "conflicts")) == (5, 5, 0)
    known = coverage(lake)
    assert (known.missing, known.declared_lost) == (IntervalSet([(5, 5), (9, 9)]), IntervalSet([(6, 7)]))


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_same_id_with_another_content_goes_to_quarantine_once(lake: Lake, tasks: int) -> None:
    first = [[batch(1, 2), batch(2, 3, word="y")]] if tasks == 1 else [[batch(1, 2)], [batch(2, 3, word="y")]]
    writer = new_ingest(lake)
    take_in(lake, writer, *first)
    take_in(lake, writer, [batch(2, word="y")])
    take_in(lake, writer, [batch(1, 2, 3)])
    assert check(lake) == IntervalSet([(1, 3)])
    assert conflicts(lake) == [(2, "y2"), (3, "x3")]


def test_devices_of_two_tenants_with_one_id_and_epoch_never_meet(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1, 2, head=5), ("other", batch(2, 3, word="y", lost=(Tombstone(1, 1, "age"),)))])
    # what came again is kept apart by tenant, too: also when the parts are filtered and compared
    take_in(lake, writer, [("other", batch(2, 4, word="y")), batch(2, 3)], [("other", batch(3, word="z"))])
    take_in(lake, new_ingest(lake), [batch(2, 3, 4), ("other", batch(4, word="y"))])
    assert check(lake) == IntervalSet([(1, 4)])
    assert check(lake, tenant="other") == IntervalSet([(2, 4)])
    other = coverage(lake, DeviceStream("other", "d", 7))
    assert (other.head, other.missing) == (4, IntervalSet())
    assert (other.declared_lost, coverage(lake).missing) == (IntervalSet([(1, 1)]), IntervalSet([(5, 5)]))
    (conflict,) = lake.rows("quarantine").to_pylist()
    assert (conflict["cause"], conflict["tenant"], conflict["device"], conflict["seq"]) == ("conflict", "other", "d", 3)


def test_a_message_without_its_tenant_is_kept_and_let_in_when_it_comes_with_one(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [(None, batch(1)), ("no tenant", batch(1)), batch(2)])
    assert check(lake) == IntervalSet([(2, 2)])
    take_in(lake, writer, [batch(1)])
    assert check(lake) == IntervalSet([(1, 2)])
    assert [row["detail"][:7] for row in lake.rows("quarantine").to_pylist()] == ["tenant:"] * 2


def test_duplicates_are_looked_for_only_in_files_that_can_hold_them(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1, day=1)])
    take_in(lake, writer, [batch(7, device="e")])
    take_in(lake, writer, [batch(9)])
    needless = paths(lake)
    take_in(lake, writer, [batch(2)])
    for path in needless:
        path.unlink()
    take_in(lake, writer, [batch(2, 3)])
    assert coverage(lake).received == IntervalSet([(1, 3), (9, 9)])


def test_a_message_that_is_no_batch_is_kept_with_its_reason_and_stops_nobody(lake: Lake) -> None:
    writer = new_ingest(lake)
    for _ in range(2):
        take_in(lake, writer, [b"junk", batch(1)])
    assert check(lake) == IntervalSet([(1, 1)])
    (found,) = lake.rows("quarantine").to_pylist()
    assert (found["cause"], found["payload"]) == ("malformed", b"junk")
    assert found["detail"].startswith("not-a-batch")


def test_two_ingests_that_find_the_same_at_once_keep_it_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, real, steps = new_ingest(lake), commit_files, ["another comes"]

    def commit(*arguments: Any, **named: Any) -> None:
        if steps:
            steps.clear()
            take_in(lake, new_ingest(lake), [b"a", b"c"])
        real(*arguments, **named)

    monkeypatch.setattr("cloud_jobs.ingest.parts.commit_files", commit)
    with pytest.raises(Fenced):
        take_in(lake, first, [b"a", b"b"])
    assert sorted(lake.rows("quarantine")["payload"].to_pylist()) == [b"a", b"b", b"c"]


def test_a_second_ingest_that_begins_between_the_commit_and_its_check_lets_nothing_in_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_ingest(lake)
    steps = ["another comes"]

    def commit(path: Path, content: bytes) -> bool:
        made = create_durably(path, content)
        if steps:
            steps.clear()
            take_in(lake, new_ingest(lake), [batch(2, 3)])
        return made

    monkeypatch.setattr("cloud_jobs.lake.appending.create_durably", commit)
    # its records are in; the counts that it writes after them are a second thing that only one ingest writes
    for again in ([batch(1)], [batch(2, 3)]):
        with pytest.raises(Fenced):
            take_in(lake, first, again)
    assert check(lake) == IntervalSet([(1, 3)])


@pytest.mark.parametrize("step", list(CrashPoint))
def test_whatever_a_crash_leaves_the_next_ingest_makes_whole(lake: Lake, step: CrashPoint) -> None:
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    first = [[batch(2, 3, head=9, lost=(Tombstone(5, 6, "age"),)), b"junk"], [batch(3, 4), batch(1, word="y")]]

    def crash(reached: CrashPoint) -> None:
        if reached is step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(lake, new_ingest(lake, crash), *first)
    # table and coverage agree also before anybody goes on
    check(lake)
    # after a crash the messages come in other pieces
    again = new_ingest(lake)
    take_in(lake, again, first[1])
    take_in(lake, again, first[0])
    assert check(lake) == IntervalSet([(1, 4)])
    known = coverage(lake)
    assert (known.head, known.declared_lost, known.missing) == (9, IntervalSet([(5, 6)]), IntervalSet([(7, 9)]))
    assert sorted(row["cause"] for row in lake.rows("quarantine").to_pylist()) == ["conflict", "malformed"]


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_whose_outcome_cannot_be_seen_is_found_by_the_next_ingest(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    writer = new_ingest(lake)

    def commit(path: Path, content: bytes) -> bool:
        if made:
            create_durably(path, content)
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("cloud_jobs.lake.appending.create_durably", commit)
        with pytest.raises(CommitFailed, match="not known"):
            take_in(lake, writer, [batch(1, 2)])
    assert seqs_in_table(lake) == ([1, 2] if made else [])
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    assert check(lake) == IntervalSet([(1, 2)])
