"""What a snapshot stands for is read the same for years, whatever was ingested, merged, swept and cut short since."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_jobs.lake.coverage_log import to_rows
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshot_reads import conflicts, coverage, erasures, reference_rows, usage_rows
from cloud_jobs.lake.snapshots import Snapshot, read_snapshot, snapshots, take_snapshot
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.cloud_jobs.lake.metered import DEVICE, HOUR, meter
from tests.cloud_jobs.maintenance.upkeep import folder_of, make_older, run
from tests.cloud_jobs.publications import row_of
from tests.new_lakes import new_lake

DAY_S = 86_400.0
DAYS = (HOUR - timedelta(days=1), HOUR + timedelta(days=1))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    for at in range(2):
        go_on(made, at)
    take_in(made, new_ingest(made), [batch(1, word="other")])
    return made


def go_on(lake: Lake, at: int) -> None:
    """A micro-batch of two devices, usage that follows upon that of before, and another version of a tariff."""
    take_in(lake, new_ingest(lake), [batch(3 * at + 1, 3 * at + 2), batch(at + 1, device="e")])
    entries = [at, 0, 0, 0]
    meter(lake, {"seq_ranges": f'{{"7":[[1,{at + 1}]]}}'}, {"zone": f"z{at}"}, {"device": "e", "entries": entries})
    lake.append("reference", [row_of("tariff", "t", json.dumps({"at": at}), at)])


def everything_at(lake: Lake, snapshot: Snapshot) -> list[bytes]:
    usage = usage_rows(lake, snapshot, [DEVICE, DEVICE._replace(device="e")], *DAYS)
    assert usage.schema.equals(USAGE)
    known = to_rows(coverage(lake, snapshot))
    texts = [
        reference_rows(lake, snapshot),
        [str(one) for one in erasures(lake, snapshot)],
        sorted(conflicts(lake, snapshot, [DEVICE]).items()),
    ]
    return [
        *(table.to_batches()[0].serialize().to_pybytes() for table in (usage.combine_chunks(), known)),
        *(json.dumps(text, default=str).encode() for text in texts),
    ]


def grow_old(lake: Lake) -> None:
    make_older([path for path in folder_of(lake).rglob("*") if path.is_file()], 30 * DAY_S)


def test_every_read_at_a_snapshot_is_the_same_bytes_after_months_of_ingest_and_maintenance(lake: Lake) -> None:
    one = take_snapshot(lake, datetime.now(UTC))
    before = everything_at(lake, one)
    for month in range(2):
        grow_old(lake)
        # so many that files of the coverage are merged twice over, and those of the snapshot are in no newer manifest
        for at in range(2 + 10 * month, 12 + 10 * month):
            go_on(lake, at)
        take_in(lake, new_ingest(lake), [batch(2, word=f"other {month}")])
        grow_old(lake)
        made = run(lake, history_days=1, removed_files_kept_hours=0, hot_days=1)
        assert not made.all_errors
        assert made.coverage_files > 0
    merged = {table.table for table in made.tables if table.merges}
    assert {"records", "usage", "reference"} <= merged
    newest = {file.path for file in lake.coverage_manifest(lake.ingest_commit()).files}
    assert not newest & {file.path for file in lake.coverage_manifest(one.ingest_commit).files}
    assert everything_at(lake, read_snapshot(lake, one.id)) == before
    assert snapshots(lake) == [one]
    # and what is now is another thing
    two = take_snapshot(lake, datetime.now(UTC))
    assert [same == other for same, other in zip(everything_at(lake, two), before, strict=True)].count(False) == 4


def test_nothing_is_swept_while_the_coverage_of_a_snapshot_cannot_be_read(lake: Lake) -> None:
    one = take_snapshot(lake, datetime.now(UTC))
    for at in range(2, 12):
        go_on(lake, at)
    path = folder_of(lake) / "coverage" / "manifests" / f"{one.ingest_commit:016x}.json"
    there = path.read_bytes()
    path.write_text("{")
    grow_old(lake)
    files = {*(folder_of(lake) / "coverage").rglob("*")}
    assert any("coverage" in error for error in run(lake, history_days=1).all_errors)
    assert {*(folder_of(lake) / "coverage").rglob("*")} == files
    path.write_bytes(there)
    assert coverage(lake, one)
