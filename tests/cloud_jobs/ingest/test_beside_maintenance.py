"""What the ingest writes beside its records is made whatever a maintenance commits to these tables meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_jobs.ingest import micro_batch as duplicates
from cloud_jobs.ingest.parts import RECORD_ID
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import FileLimits, Rewriter
from cloud_jobs.maintenance.sweeping import table_files
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, take_in
from tests.cloud_jobs.maintenance.upkeep import parquet_files, raw, run
from waybill.record import IntervalSet


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    for seq in range(1, 4):
        take_in(made, writer, [b"bad%d" % seq, batch(seq)])
    return made


def test_a_quarantine_that_is_merged_meanwhile_takes_in_what_is_new_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_table = Lake.open

    def overtaken(lake: Lake, table: str, version: int | None = None) -> DeltaTable:
        opened = open_table(lake, table, version)
        if table == "quarantine":
            monkeypatch.setattr(Lake, "open", open_table)
            Rewriter(lake, FileLimits(1 << 27, 1 << 20)).rewrite(table, table_files(opened, table))
        return opened

    writer = new_ingest(lake)
    monkeypatch.setattr(Lake, "open", overtaken)
    take_in(lake, writer, [b"bad9", b"bad1", batch(9)])
    assert lake.rows("quarantine").num_rows == 4
    assert lake.rows("ingest_batches").num_rows == 4
    assert check(lake) == IntervalSet([(1, 3), (9, 9)])


def test_a_duplicate_is_compared_with_one_of_many_large_payloads_and_memory_stays_small(lake: Lake) -> None:
    large = bytes(1 << 20)
    take_in(lake, new_ingest(lake), [raw(*range(at, at + 7), payload=large) for at in range(10, 220, 7)])
    run(lake)
    path = parquet_files(lake)[0].relative_to(lake.path("records")).as_posix()
    again = [raw(10, payload=b"x"), raw(200, payload=large)]
    before = pa.total_allocated_bytes()
    bounds = duplicates._Bounds(("acme",), ("d",), (7, 7), (10, 200))
    ids = pa.Table.from_pylist([dict(zip(RECORD_ID, ("acme", "d", 7, seq), strict=True)) for seq in (10, 200)])
    for rows in duplicates._stored_rows(lake.files("records"), path, bounds, ids):
        assert rows.num_rows == 1
        assert pa.total_allocated_bytes() - before < 150 << 20
    take_in(lake, new_ingest(lake), again)
    conflicts = lake.rows("quarantine", ["seq"], where=[("cause", "=", "conflict")])
    assert conflicts["seq"].to_pylist() == [10]
