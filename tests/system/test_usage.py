"""Usage on real Spark and Delta: every hour that a late fix changes is metered again, whatever gap a track may have."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake.schemas import QUANTITIES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage import devices as groups
from cloud_jobs.usage import job
from cloud_jobs.usage.job import UsageRun, compute_usage
from geo.spatial import TrackSettings
from tests.cloud_jobs.publications import rows_of
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
# hours are counted here, and a cleaned place would reach over some more
GAP = TrackSettings(rule="every_fix", max_gap_s=2_700.0)


def drive(*minutes: int) -> list[LakeFix]:
    return [LakeFix("eu-1", minute, TEN + timedelta(minutes=minute), 0.005, minute / 10_000) for minute in minutes]


def in_force(lake: Lake) -> bytes:
    """What is in force, byte for byte, without zeros and what says when and by which commit it was computed."""
    names = ("tenant", "device", "hour", "zone", *QUANTITIES, "digest", "seq_ranges")
    rows = sorted(lake.rows("usage").to_pylist(), key=lambda row: row["commit_number"])
    newest = {tuple(row[name] for name in names[:4]): [row[name] for name in names] for row in rows}
    return json.dumps([row for _, row in sorted(newest.items()) if row[-1] != "{}"], default=str).encode()


def metered(lake: Lake) -> dict[tuple[datetime, str], tuple[int, int]]:
    """What is in force: millimetres and milliseconds of each hour and zone that have any."""
    rows = sorted(lake.rows("usage").to_pylist(), key=lambda row: row["commit_number"])
    newest = {(row["hour"], row["zone"]): (sum(row["distance_mm"]), sum(row["duration_ms"])) for row in rows}
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
    assert compute_usage(spark, late, GAP) == UsageRun(2, 0, 0, 0, 0, 0, ())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_any_order_and_split_gives_the_same_usage_on_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(job, "_FEW_FILES", 0)
    monkeypatch.setattr(groups, "_LEAST_RECORDS", 1)
    random, features = Random(seed), [square("square"), square("east", 0.01)]
    names = [(tenant, f"eu-{at}") for at in range(6) for tenant in ("acme", "other")]
    way = drive(*range(0, 200, 7))
    fixes = [fix._replace(tenant=tenant, device=device) for tenant, device in names for fix in way]
    whole, late = lake_of(tmp_path / "whole", features), lake_of(tmp_path / "late", features[:1])
    ingest(whole, fixes)
    assert compute_usage(spark, whole, GAP).touched_hours
    random.shuffle(fixes)
    for at in range(3):
        ingest(late, fixes[at::3])
        assert compute_usage(spark, late, GAP).rows
        late.open("records").optimize.compact()
    late.append("reference", rows_of("fence", features, first=1))
    assert compute_usage(spark, late, GAP).fence_changes == 1
    assert in_force(late) == in_force(whole)
