"""What the jobs share in Spark: new records, the spans of time that they touch, commits made once, whole keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cloud_jobs.errors import CommitConflict
from cloud_jobs.incremental import commit, commit_written, new_positions, next_increment, touched_spans
from cloud_jobs.key_groups import group_by_key
from cloud_jobs.lake.frames import cast_to, map_sorted
from cloud_jobs.lake.schemas import USAGE, without
from tests.system.lake_of_fixes import NOON, LakeFix, ingest, lake_of
from tests.usage_rows import usage_row

pytestmark = pytest.mark.system
SCHEMA = pa.schema([pa.field("device", pa.string()), pa.field("seq", pa.int64())])


def fix(seq: int, device: str = "d") -> LakeFix:
    return LakeFix(device, seq, NOON + timedelta(minutes=seq), 50.0, 8.0)


def test_an_increment_has_the_positions_that_came_since_and_the_first_one_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path)
    ingest(lake, [fix(1), fix(2)])
    first = next_increment(lake, "usage")
    ingest(lake, [fix(3)])
    commit_written(first, [])
    second = next_increment(lake, "usage")
    minutes = [
        sorted(row["device_time"].minute for row in new_positions(spark, lake, one).collect())
        for one in (first, second)
    ]
    assert minutes == [[1, 2], [3]]


def test_a_fix_touches_the_spans_from_its_margin_before_to_its_margin_after(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path)
    ingest(lake, [fix(30), fix(31), fix(30, "e")])
    hour = int(NOON.timestamp()) // 3600
    new = new_positions(spark, lake, next_increment(lake, "usage"))
    of_one = new.where("device = 'd'")
    # minutes 30 and 31: half an hour reaches both ends of the hour, and its beginning belongs to it
    for margin_min, spans in ((0, [0]), (29, [0, 1]), (30, [0, 1]), (31, [-1, 0, 1])):
        touched = touched_spans(of_one, "hour", span_ms=3_600_000, margin_ms=margin_min * 60_000)
        assert sorted(row["hour"] - hour for row in touched.collect()) == spans


def test_of_two_runs_over_one_increment_one_writes_and_the_other_gets_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path)
    ingest(lake, [fix(1)])
    increment = next_increment(lake, "usage")
    row = usage_row("d", NOON, distance_mm=1, duration_ms=1)
    rows = cast_to(without(USAGE, "computed_at", "commit_number", "rules_number"), spark.createDataFrame([row]))
    commit(lake, increment, rows, stamp="computed_at")
    with pytest.raises(CommitConflict):
        commit(lake, increment, rows, stamp="computed_at")
    assert lake.open("usage").count() == 1
    assert (next_increment(lake, "usage").since, bool(next_increment(lake, "usage"))) == (1, False)


def test_whole_keys_come_together_in_order(spark: SparkSession) -> None:
    def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for devices in group_by_key(batches, SCHEMA, "device", 1):
            pairs = [tuple(row.values()) for row in devices.to_pylist()]
            assert pairs == sorted(pairs)
            counted = Counter(name for name, _ in pairs)
            yield pa.RecordBatch.from_pylist([{"device": name, "seq": n} for name, n in counted.items()], SCHEMA)

    rows = spark.createDataFrame([(f"d{at % 3}", at) for at in range(30, 0, -1)], "device string, seq bigint")
    found = map_sorted(rows.repartition(5), "device", joined, SCHEMA, "seq").collect()
    assert sorted((row["device"], row["seq"]) for row in found) == [("d0", 10), ("d1", 10), ("d2", 10)]
