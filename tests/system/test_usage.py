"""Usage on real Spark and Delta: every hour that a late fix changes is metered again, whatever gap a track may have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.job import UsageRun, compute_usage
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
GAP = TrackSettings(max_gap_s=2_700.0)


def drive(*minutes: int) -> list[LakeFix]:
    return [LakeFix("eu-1", minute, TEN + timedelta(minutes=minute), 0.005, minute / 10_000) for minute in minutes]


def metered(lake: Lake) -> dict[tuple[datetime, str], tuple[int, int]]:
    """What is in force: millimetres and milliseconds of each hour and zone that have any."""
    rows = sorted(lake.rows("usage").to_pylist(), key=lambda row: row["commit_number"])
    newest = {(row["hour"], row["zone"]): (row["distance_mm"], row["duration_ms"]) for row in rows}
    return {key: amounts for key, amounts in newest.items() if any(amounts)}


def test_a_late_fix_changes_every_hour_that_its_segments_reach(spark: SparkSession, tmp_path: Path) -> None:
    whole, late = lake_of(tmp_path / "whole", [square("square")]), lake_of(tmp_path / "late", [square("square")])
    fixes = drive(-15, 30, 70, 110)
    ingest(whole, fixes)
    assert compute_usage(spark, whole, GAP).touched_hours
    # without the fix of 10:30 there is no segment to 11:10: no gap is longer than 45 minutes with it
    ingest(late, [fix for fix in fixes if fix.seq != 30])
    compute_usage(spark, late, GAP)
    assert metered(late) != metered(whole)
    ingest(late, drive(30))
    run = compute_usage(spark, late, GAP)
    # 10:30 and one and a half hours around it
    assert (run.touched_hours, run.refused_fences) == (4, ())
    assert metered(late) == metered(whole)
    assert {hour.hour for hour, _ in metered(whole)} == {10, 11}
    assert compute_usage(spark, late, GAP) == UsageRun(2, 0, 0, 0, 0, 0, 0, ())
