"""What the status says of a real lake, and that nothing makes it say *healthy* of one that is not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.applied_fences import fences_number
from cloud_jobs.errors import LakeError, NotPublished, StoreUnavailable
from cloud_jobs.incremental import commit_written, next_increment
from cloud_jobs.lake.coverage import Coverage
from cloud_jobs.lake.coverage_rows import to_rows
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.outbox import Outbox, progress_file
from cloud_jobs.published_fences import fences_in
from cloud_jobs.status.centre_reader import LakeReader, coverage_status
from cloud_jobs.status.facts import CoverageStatus, ReferenceStatus
from cloud_jobs.status.judging import problems
from tests.cloud_jobs.ingest.centre import STREAM, batch, new_ingest, new_lake, take_in
from tests.cloud_jobs.maintenance.upkeep import folder_of, parquet_files, positions, run
from tests.cloud_jobs.publications import rows_of
from tests.cloud_jobs.status.watched import LIMITS, after, looked, note_maintenance, note_runs, wrong
from tests.system.lake_of_fixes import NOON, derive, square
from waybill.record import IntervalSet, Tombstone


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three micro-batches, all of which usage covers."""
    made = new_lake(tmp_path / "lake")
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq)])
    derive(made, "usage")
    note_runs(made)
    return made


def table(lake: Lake, name: str) -> tuple[int | None, int | None]:
    found = next(one for one in looked(lake).tables if one.table == name)
    return found.rows, found.files


def test_a_centre_that_does_its_work_is_healthy(lake: Lake) -> None:
    assert wrong(lake) == ()
    found = looked(lake)
    assert (found.ingest_number, table(lake, "records"), table(lake, "quarantine")) == (3, (3, 3), (0, 0))
    assert found.coverage == CoverageStatus(streams=1, open_streams=0, received=3, declared_lost=0, missing=0)
    assert found.newest_batch is not None
    assert (found.newest_batch["ingest_number"], found.newest_batch["accepted"]) == (3, 1)


def test_statements_that_are_not_believed_are_said_with_the_region_whose_clock_is_ahead(lake: Lake) -> None:
    found = looked(lake)
    assert found.newest_batch is not None
    ahead = {"disbelieved": 4, "clocks_ahead": "eu 412 s"}
    (problem,) = problems(replace(found, newest_batch={**found.newest_batch, **ahead}), LIMITS)
    assert "4 statements" in problem
    assert "eu 412 s" in problem


def test_a_derived_table_that_waits_too_long_is_said_and_one_that_nobody_computes_is_not(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(4, 5)])
    usage, _, encounters = looked(lake).derived
    assert (usage.computed, usage.commits_behind, usage.records_behind) == (True, 1, 2)
    assert (encounters.computed, encounters.commits_behind) == (False, 4)
    late = problems(after(looked(lake), 3700), LIMITS)
    assert [one.partition(",")[0] for one in late if "commits" in one] == ["usage is 1 commits behind"]
    assert wrong(lake) == ()


def test_usage_that_was_never_computed_is_late_from_the_first_commit_on(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    note_maintenance(lake)
    assert wrong(lake) == (), "there is nothing to compute"
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1)])
    first = looked(lake).derived[0].waiting_since
    take_in(lake, writer, [batch(2)])
    again = looked(lake).derived[0].waiting_since
    assert first is not None
    assert again is not None
    assert abs((again - first).total_seconds()) < 5, "the oldest commit counts, not the newest"
    assert len(problems(after(looked(lake), 3700), LIMITS)) == 1


def test_a_table_whose_first_commit_lost_its_row_in_a_crash_waits_since_the_next_one(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(4)])
    shutil.rmtree(lake.path("ingest_batches"))
    lake.create()
    take_in(lake, new_ingest(lake), [batch(5)])
    assert wrong(lake) == ()
    said = problems(after(looked(lake), 3700), LIMITS)
    assert [one.partition(",")[0] for one in said if "commits" in one] == ["usage is 2 commits behind"]


def test_records_behind_are_at_most_those_of_a_file_that_holds_old_and_new_ones(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(4)])
    lake.open("records").optimize.compact()
    usage = looked(lake).derived[0]
    assert (usage.records_behind, usage.records_behind_at_most) == (None, 4)


def test_a_derived_table_of_other_records_is_said(lake: Lake, tmp_path: Path) -> None:
    shutil.copytree(folder_of(lake), tmp_path / "copy")
    take_in(lake, new_ingest(lake), [batch(4)])
    derive(lake, "usage")
    for name in ("records", "coverage"):
        shutil.rmtree(lake.path(name))
        shutil.copytree(tmp_path / "copy" / name, lake.path(name))
    assert any("was computed from other records" in one for one in wrong(lake))


def test_rows_that_are_there_twice_are_said(lake: Lake) -> None:
    run(lake)
    writer = new_ingest(lake)
    for seq in (4, 5, 6):
        take_in(lake, writer, [batch(seq)])
    stale = lake.open("records")
    run(lake)
    assert wrong(lake) == ()
    # Delta's own compaction does not know the maintenance's fence: it commits what was replaced once more
    stale.optimize.compact()
    assert wrong(lake) == ("6 rows of records are more than were received: some are there twice",)


def test_a_data_file_that_is_gone_or_cut_short_is_said(lake: Lake) -> None:
    first, second, _ = parquet_files(lake)
    first.unlink()
    second.write_bytes(second.read_bytes()[:100])
    assert wrong(lake) == ("2 of the files of records are missing, or have another size than its log says",)


def test_records_whose_files_no_commit_names_any_more_are_said(lake: Lake) -> None:
    lake.open("records").delete()
    assert wrong(lake) == ("3 records that were received are not in the table",)


def test_coverage_that_cannot_be_read_is_said(lake: Lake) -> None:
    shutil.rmtree(lake.path("coverage"))
    assert any(one.startswith("coverage cannot be read") for one in wrong(lake))
    assert "whether each record is in the table once is unknown" in wrong(lake)


@pytest.mark.parametrize("folder", ["rows", "manifests"])
def test_coverage_that_vanishes_is_said_by_the_next_look_of_a_reader_that_has_read_it(lake: Lake, folder: str) -> None:
    reader = LakeReader(lake)
    assert reader.read().errors == {}
    for file in (folder_of(lake) / "coverage" / folder).iterdir():
        file.unlink()
    assert [*reader.read().errors] == ["coverage"]


def test_fences_that_nobody_computes_with_are_said_also_of_a_fleet_that_stands_still(lake: Lake) -> None:
    fence = rows_of("fence", [square("new")])
    lake.append("reference", [row | {"collected_at": datetime.now(UTC)} for row in fence])
    assert wrong(lake) == ()
    said = problems(after(looked(lake), 3700), LIMITS)
    assert [one.partition(",")[0] for one in said] == [
        "usage is computed with other fences than those in force",
        "fences",
    ]
    features = fences_in(lake).features
    commit_written(next_increment(lake, "usage"), [], states={FENCES: fences_number(features)})
    note_runs(lake)
    assert looked(lake).derived[0].fences_since is None


def test_that_nobody_takes_what_is_published_is_said_and_so_is_that_nobody_knows(lake: Lake) -> None:
    said = problems(after(looked(lake), 3700), LIMITS)
    assert len(said) == 1
    assert said[0].startswith("fences, tariffs and accounts were not taken from their topics for 37")
    (folder_of(lake) / "last-reference.json").write_text("{")
    assert wrong(lake) == ("when fences, tariffs and accounts were last taken from their topics is unknown",)


def test_events_that_cannot_be_published_are_said(lake: Lake, tmp_path: Path) -> None:
    row = {"id": "e", "revision": 1, "tenant": "t", "device": "d", "epoch": 7, "seq": 1, "kind": "enter", "place": "p"}
    event = row | {"time": NOON, "value": 0.0, "retracted": False, "day": NOON.date(), "emitted_at": NOON}
    derive(lake, "geofence_events", [event])

    def away(_: object) -> None:
        raise NotPublished("events", "no broker")

    with pytest.raises(NotPublished):
        Outbox(lake, "geofence_events", progress_file(tmp_path, "geofence_events")).flush(away)
    events = LakeReader(lake, tmp_path).read().derived[1]
    assert events.unpublished_since == NOON
    said = problems(replace(looked(lake), derived=(looked(lake).derived[0], events)), LIMITS)
    assert [one.partition(",")[0] for one in said] == ["rows of geofence_events wait to be published"]


def test_a_table_that_is_gone_is_said_twice_over_and_the_rest_is_shown(lake: Lake) -> None:
    shutil.rmtree(lake.path("usage"))
    said = wrong(lake)
    assert any(one.startswith("table usage cannot be read: there is no table 'usage'") for one in said)
    assert "it is unknown how far usage is: it cannot be opened" in said
    assert table(lake, "records") == (3, 3)


def test_a_lake_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake"):
        LakeReader(Lake(tmp_path / "none")).read()


def test_a_lake_into_which_nothing_can_be_written_is_said(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        return "no/such/folder/clock"

    monkeypatch.setattr("cloud_jobs.lake.store_clock._path", full)
    assert "nothing can be written into the lake" in wrong(lake)[0]


def test_no_answer_of_the_store_is_no_status(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("http://127.0.0.1:1", "Connection refused")

    monkeypatch.setattr("cloud_jobs.status.centre_reader.store_time", away)
    with pytest.raises(StoreUnavailable):
        LakeReader(lake).read()


@pytest.mark.parametrize("later_s", [-4000, 4000])
def test_a_machine_whose_clock_is_wrong_is_never_healthy(lake: Lake, later_s: float) -> None:
    assert any(one.startswith("this machine's clock is") for one in wrong(lake, later_s))


def test_a_commit_of_the_future_is_said(lake: Lake) -> None:
    said = problems(after(looked(lake), -4000), LIMITS)
    assert any(one.startswith("the newest commit of records is") for one in said)


def test_a_maintenance_that_stands_still_or_failed_is_said(lake: Lake) -> None:
    said = [one.partition(",")[0] for one in problems(after(looked(lake), 90_000), LIMITS)]
    assert "the last run of the maintenance ended long ago" in said
    note_maintenance(lake, "erasures: usage is behind")
    assert wrong(lake) == ("the last run of the maintenance failed in part: erasures: usage is behind",)
    (folder_of(lake) / "last-maintenance.json").write_text('{"ended_at": ')
    assert wrong(lake) == ("no run of the maintenance is known",)


def test_a_run_of_the_maintenance_leaves_its_note_and_a_dry_one_does_not(lake: Lake) -> None:
    before = looked(lake).maintenance
    run(lake, dry_run=True)
    assert looked(lake).maintenance == before
    run(lake)
    assert before.ended_at is not None
    assert (looked(lake).maintenance.ended_at or before.ended_at) > before.ended_at


def test_an_erasure_is_pending_until_all_files_were_searched(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [positions(1, 2)])
    note_maintenance(lake)
    declare_erasure(lake, Erasure("acme", "d", NOON), NOON.replace(year=2027))
    assert (looked(lake).erasures, looked(lake).erasures_pending) == (1, 1)
    run(lake)
    assert (looked(lake).erasures, looked(lake).erasures_pending) == (1, 0)
    assert table(lake, "records")[0] == 0
    assert wrong(lake) == (), "erased rows are not missing"


def test_the_quarantine_is_counted_by_cause_and_reference_data_by_what_can_be_used(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(1, word="y"), b"\xc1"])
    assert looked(lake).quarantine == {"conflict": 1, "malformed": 1}
    bad = square("bad")
    bad["geometry"]["coordinates"] = []
    lake.append("reference", rows_of("fence", [square("good"), bad]))
    found = looked(lake).reference
    assert found is not None
    assert replace(found, taken_at=None) == ReferenceStatus(in_force=1, refused=1, quarantined=0)


def test_gaps_and_tombstones_of_each_stream_are_counted() -> None:
    def coverage(*ranges: tuple[int, int], head: int, lost: tuple[Tombstone, ...] = ()) -> Coverage:
        return Coverage(IntervalSet(ranges), lost, head)

    known = {
        STREAM._replace(epoch=1): coverage((1, 5), head=5),
        STREAM._replace(epoch=2): coverage((1, 2), (4, 5), head=9),
        STREAM._replace(epoch=3): coverage(head=2),
        STREAM._replace(epoch=4): coverage((1, 2), (5, 5), head=5, lost=(Tombstone(2, 4, "quota"),)),
    }
    assert coverage_status(to_rows(known)) == CoverageStatus(
        streams=4, open_streams=2, received=12, declared_lost=2, missing=7
    )
    assert sum(one.missing.count for one in known.values()) == 7
    assert coverage_status(to_rows({})) == CoverageStatus(0, 0, 0, 0, 0)
