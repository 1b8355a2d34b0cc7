"""What the status says of a real lake, and that nothing makes it say *healthy* of one that is not."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.snapshots import fences_number
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.reference.tables import fences_in
from cloud_jobs.status.facts import CoverageStatus, problems
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.cloud_jobs.maintenance.upkeep import parquet_files, run
from tests.cloud_jobs.publications import rows_of
from tests.cloud_jobs.status.watched import LIMITS, after, looked, note_runs, wrong
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import derive, square


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
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
    assert "4 device statements" in problem
    assert "eu 412 s" in problem


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
    assert wrong(lake) == ("6 duplicate rows in records",)


def test_a_data_file_that_is_gone_or_cut_short_is_said(lake: Lake) -> None:
    first, second, _ = parquet_files(lake)
    first.unlink()
    second.write_bytes(second.read_bytes()[:100])
    assert wrong(lake) == ("2 of the files of records are missing, or have another size than its log says",)


def test_coverage_that_cannot_be_read_is_said(lake: Lake) -> None:
    shutil.rmtree(lake.path("coverage"))
    assert any(one.startswith("coverage cannot be read") for one in wrong(lake))
    assert "it is unknown whether the table holds each record once" in wrong(lake)


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


@pytest.mark.parametrize("later_s", [-4000, 4000])
def test_a_machine_whose_clock_is_wrong_is_never_healthy(lake: Lake, later_s: float) -> None:
    assert any(one.startswith("this machine's clock is") for one in wrong(lake, later_s))


def test_a_run_of_the_maintenance_leaves_its_note(lake: Lake) -> None:
    before = looked(lake).maintenance
    run(lake)
    assert before.ended_at is not None
    assert (looked(lake).maintenance.ended_at or before.ended_at) > before.ended_at
