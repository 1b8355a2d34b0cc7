"""Positions that are erased are gone from the disk and do not come back; everything else is as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.erasures import Erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import MaintenancePoint
from tests.cloud_jobs.ingest.centre import NOON_US, batch, coverage, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import parquet_files, positions, run
from waybill.record import IntervalSet

NOON = datetime.fromtimestamp(NOON_US / 1e6, UTC)
NEXT_DAY = NOON.replace(hour=0)
ERASURE = Erasure("acme", "d", NEXT_DAY)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two devices, positions and other records, on two days."""
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    take_in(made, writer, [positions(1, 2, 3), batch(4, 5, day=-1)], [positions(1, 2, device="e")])
    take_in(made, writer, [positions(6, 7, day=0)])
    return made


def latitudes_on_disk(lake: Lake) -> list[float]:
    read = (pq.read_table(path, columns=["latitude"], partitioning=None) for path in parquet_files(lake))
    return sorted(value for rows in read for value in rows["latitude"].to_pylist() if value is not None)


def test_positions_before_the_moment_go_and_nothing_else_does(lake: Lake) -> None:
    known = coverage(lake)
    assert run(lake, ERASURE).positions_erased == 3
    assert seqs_in_table(lake) == [4, 5, 6, 7]
    assert seqs_in_table(lake, "e") == [1, 2]
    assert coverage(lake) == known
    assert known.received == IntervalSet([(1, 7)])
    assert read_erasures(lake).before("acme", "d") == NEXT_DAY


def test_after_the_time_that_readers_have_the_bytes_are_gone(lake: Lake) -> None:
    run(lake, ERASURE)
    assert 48.001 in latitudes_on_disk(lake)
    run(lake, removed_files_kept_hours=0)
    assert latitudes_on_disk(lake) == [48.001, 48.002, 48.006, 48.007]
    rows = lake.rows("records", ["device", "latitude"]).to_pylist()
    assert {row["device"] for row in rows if row["latitude"] in (48.001, 48.002)} == {"e"}


@pytest.mark.parametrize("latitude", [48.0, 49.0])
def test_an_erased_record_that_comes_again_is_a_duplicate_and_no_conflict(lake: Lake, latitude: float) -> None:
    run(lake, ERASURE)
    take_in(lake, new_ingest(lake), [positions(1, 2, 3, latitude=latitude)])
    assert seqs_in_table(lake) == [4, 5, 6, 7]
    assert lake.rows("quarantine").num_rows == 0
    counted = lake.rows("ingest_batches", ["ingest_number", "duplicates"]).sort_by("ingest_number")
    assert counted["duplicates"].to_pylist() == [0, 0, 3]


def test_a_late_position_from_before_an_erasure_is_erased_by_the_next_run(lake: Lake) -> None:
    run(lake, ERASURE)
    take_in(lake, new_ingest(lake), [positions(8, 9)])
    assert run(lake).positions_erased == 2
    assert seqs_in_table(lake) == [4, 5, 6, 7]
    assert coverage(lake).received == IntervalSet([(1, 9)])


def test_what_the_quarantine_has_of_erased_positions_goes_too(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [positions(1, 2, latitude=50.0)], [positions(1, device="e", latitude=50.0)])
    assert lake.rows("quarantine").num_rows == 3
    assert run(lake, ERASURE).conflicts_erased == 2
    assert lake.rows("quarantine", ["device"])["device"].to_pylist() == ["e"]


def test_positions_of_all_devices_are_erased_after_some_days(lake: Lake) -> None:
    made = run(lake, now=NEXT_DAY + timedelta(days=10, hours=3), erase_positions_after_days=10)
    assert made.positions_erased == 5
    assert (seqs_in_table(lake), seqs_in_table(lake, "e")) == ([4, 5, 6, 7], [])
    assert coverage(lake, DeviceStream("acme", "e", 7)).received == IntervalSet([(1, 2)])
    assert read_erasures(lake).before("other", "x") == NEXT_DAY


@pytest.mark.parametrize("at", [MaintenancePoint.DECLARED, MaintenancePoint.FILES_WRITTEN, MaintenancePoint.REPLACED])
def test_an_erasure_that_was_interrupted_is_finished_by_the_next_run(lake: Lake, at: MaintenancePoint) -> None:
    def killed(point: MaintenancePoint) -> None:
        if point is at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lake, ERASURE, reached=killed)
    run(lake)
    assert seqs_in_table(lake) == [4, 5, 6, 7]
    assert coverage(lake).received == IntervalSet([(1, 7)])
