"""Positions that are erased are gone from the disk and do not come back; everything else is as it was."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.erasures import Erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import MaintenancePoint
from cloud_jobs.maintenance.job import MaintenanceRun
from tests.cloud_jobs.ingest.centre import NOON_US, batch, coverage, new_ingest, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import keys_of, parquet_files, positions, run
from tests.new_lakes import new_lake
from waybill.record import IntervalSet

NOON = datetime.fromtimestamp(NOON_US / 1e6, UTC)
NEXT_DAY = NOON.replace(hour=0)
ERASURE = Erasure("acme", "d", NEXT_DAY)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
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
    assert run(lake, ERASURE).erased["records"] == 3
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
    assert run(lake).erased["records"] == 2
    assert seqs_in_table(lake) == [4, 5, 6, 7]
    assert coverage(lake).received == IntervalSet([(1, 9)])


def test_what_the_quarantine_has_of_erased_positions_goes_too(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [positions(1, 2, latitude=50.0)], [positions(1, device="e", latitude=50.0)])
    assert lake.rows("quarantine").num_rows == 3
    assert run(lake, ERASURE).erased["quarantine"] == 2
    assert lake.rows("quarantine", ["device"])["device"].to_pylist() == ["e"]


def test_positions_of_all_devices_are_erased_after_some_days(lake: Lake) -> None:
    made = run(lake, now=NEXT_DAY + timedelta(days=10, hours=3), erase_positions_after_days=10)
    assert made.erased["records"] == 5
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


@pytest.fixture
def lake_of_erasing_waits(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [positions(1, 2, 3)], [positions(1, device="e")])
    return made


def computed(lake: Lake, table: str = "usage") -> None:
    commit_written(next_increment(lake, table), [])


def erase(lake: Lake, *erasures: Erasure) -> MaintenanceRun:
    return run(lake, *erasures, erase_after_jobs=True)


def test_positions_that_usage_has_not_read_are_not_erased_nor_declared(lake_of_erasing_waits: Lake) -> None:
    made = erase(lake_of_erasing_waits, ERASURE)
    assert "3 of them are not processed; run `cloud-jobs usage`" in made.errors[0]
    assert (seqs_in_table(lake_of_erasing_waits), bool(read_erasures(lake_of_erasing_waits))) == ([1, 2, 3], False)
    computed(lake_of_erasing_waits)
    made = erase(lake_of_erasing_waits, ERASURE)
    assert (made.all_errors, made.erased["records"], seqs_in_table(lake_of_erasing_waits)) == ((), 3, [])


def test_what_a_device_sends_late_is_read_by_usage_before_it_is_erased(lake_of_erasing_waits: Lake) -> None:
    computed(lake_of_erasing_waits)
    erase(lake_of_erasing_waits, ERASURE)
    take_in(lake_of_erasing_waits, new_ingest(lake_of_erasing_waits), [positions(8, 9)])
    # a merge puts it beside what was searched before
    for _ in range(2):
        assert erase(lake_of_erasing_waits, ERASURE).erased["records"] == 0
        assert seqs_in_table(lake_of_erasing_waits) == [8, 9]
    computed(lake_of_erasing_waits)
    assert erase(lake_of_erasing_waits).erased["records"] == 2
    assert coverage(lake_of_erasing_waits).received == IntervalSet([(1, 3), (8, 9)])


def test_a_file_that_cannot_be_read_stops_neither_other_files_nor_other_tables(lake_of_erasing_waits: Lake) -> None:
    path = next(path for path in parquet_files(lake_of_erasing_waits) if keys_of(path)[0][1] == "d")
    writer = new_ingest(lake_of_erasing_waits)
    take_in(lake_of_erasing_waits, writer, [positions(4, day=-2)])
    path.write_bytes(b"PAR1")
    made = run(lake_of_erasing_waits, ERASURE)
    assert made.erased["records"] == 1
    assert "were not erased" in made.errors[0]
    assert made.tables[2].log_files
