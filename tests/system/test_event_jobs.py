"""What both jobs of events share: two tenants, a run that lags behind compaction, the files of a run, erasures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.geofence import job as geofence
from cloud_jobs.geofence.config import GeofenceSettings
from cloud_jobs.geofence.job import GeofenceRun, compute_events
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.tables import Lake
from cloud_jobs.proximity import job as proximity
from cloud_jobs.proximity.config import ProximitySettings
from cloud_jobs.proximity.job import ProximityRun, compute_encounters
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import NOON, LakeFix, in_force, ingest, lake_of, square

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]
DAY = timedelta(days=1)
Run = Callable[[SparkSession, Lake], GeofenceRun | ProximityRun]


def run_geofence(spark: SparkSession, lake: Lake) -> GeofenceRun:
    return compute_events(spark, lake, TrackSettings(), GeofenceSettings())


def run_proximity(spark: SparkSession, lake: Lake) -> ProximityRun:
    return compute_encounters(spark, lake, TrackSettings(), ProximitySettings())


GEOFENCE, PROXIMITY = (geofence, run_geofence), (proximity, run_proximity)


def trips(device: str, start: datetime, tenant: str = "acme") -> Iterator[LakeFix]:
    """Through the square and back, ten times in two hours."""
    seq = round((start - NOON).total_seconds()) * 10
    for at in range(120):
        step = at % 12
        lon = 0.003 * min(step, 12 - step) - 0.005 + 0.00001 * len(tenant)
        yield LakeFix(device, seq + at, start + timedelta(minutes=at), 0.005, round(lon, 7), tenant=tenant)


def facts(lake: Lake, table: str) -> bytes:
    rows = [row | {"revision": None, "emitted_at": None, "commit_number": None} for row in in_force(lake, table)]
    return json.dumps(sorted(rows, key=lambda row: str(row["id"])), default=str).encode()


def compact_and_vacuum(lake: Lake, table: str) -> None:
    opened = lake.open(table)
    opened.optimize.compact()
    opened.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize(
    ("job", "run"),
    [pytest.param(*GEOFENCE, id="geofence"), pytest.param(*PROXIMITY, id="proximity", marks=pytest.mark.nightly)],
)
def test_a_run_that_lags_behind_compaction_goes_on_and_tenants_are_apart(
    spark: SparkSession, tmp_path: Path, job: Any, run: Run
) -> None:
    owners = [(device, tenant) for tenant in ("acme", "other") for device in ("a", "b")]
    fixes = [fix for device, tenant in owners for fix in trips(device, NOON, tenant)]
    batch, stream, alone = (lake_of(tmp_path / name, [square("square")]) for name in ("batch", "stream", "alone"))
    ingest(batch, fixes)
    assert run(spark, batch).revisions
    random.Random(5).shuffle(fixes)
    ingest(stream, fixes[::3])
    run(spark, stream)
    for part in (fixes[1::3], fixes[2::3]):
        ingest(stream, part)
        compact_and_vacuum(stream, "records")
        compact_and_vacuum(stream, job.TABLE)
    late = run(spark, stream)
    assert (late.commits_behind, late.records_behind) == (2, len(fixes) - len(fixes[::3]))
    assert facts(stream, job.TABLE) == facts(batch, job.TABLE)
    rows = in_force(batch, job.TABLE)
    assert {row["tenant"] for row in rows} == {"acme", "other"}
    # the other tenant changes nothing of this one's
    ingest(alone, [fix for fix in fixes if fix.tenant == "acme"])
    run(spark, alone)
    mine = json.dumps(sorted(r["id"] for r in in_force(alone, job.TABLE)))
    assert mine == json.dumps(sorted(row["id"] for row in rows if row["tenant"] == "acme"))


@pytest.mark.parametrize(
    ("job", "run"),
    [pytest.param(*GEOFENCE, id="geofence", marks=pytest.mark.nightly), pytest.param(*PROXIMITY, id="proximity")],
)
def test_a_late_fix_reads_the_files_of_its_days_alone_and_erased_days_stay_as_they_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, run: Run
) -> None:
    lake = lake_of(tmp_path / "lake", [square("square")])
    for day in range(6):
        ingest(lake, [fix for device in ("a", "b") for fix in trips(device, NOON + day * DAY)])
    run(spark, lake)
    opened: list[set[str]] = []
    real = job.positions_in

    def watched(*arguments: Any) -> Any:
        opened.append({path.split("/")[0] for path in arguments[-1].paths})
        return real(*arguments)

    monkeypatch.setattr(job, "positions_in", watched)
    # out of the square at 12:03 on the first day, and on the last
    moments = [NOON + timedelta(minutes=3, seconds=5), NOON + 5 * DAY + timedelta(minutes=3, seconds=5)]
    ingest(lake, [LakeFix("a", 7_000_000 + at, moment, 0.0105, 0.004) for at, moment in enumerate(moments)])
    assert run(spark, lake).revisions
    read = {path.removeprefix("device_date=") for path in opened.pop()}
    assert read <= {f"2026-01-{day:02}" for day in (5, 6, 7, 9, 10)}, "those within reach of a day within reach"
    before = facts(lake, job.TABLE)
    assert declare_erasure(lake, Erasure("acme", "a", NOON + 3 * DAY), datetime(2026, 2, 1, tzinfo=UTC))
    again = [moment + timedelta(seconds=20) for moment in (NOON, NOON + DAY)]
    ingest(lake, [LakeFix("a", 8_000_000 + at, moment, 0.0105, 0.004) for at, moment in enumerate(again)])
    done = run(spark, lake)
    assert (done.fixes_after_erasure, done.revisions, bool(done)) == (2, 0, False)
    assert run(spark, lake).fixes_after_erasure == 0, "counted once"
    # of another device the day can be computed; what it has with the erased one stays
    ingest(lake, [LakeFix("b", 9_000_000, NOON + timedelta(minutes=3, seconds=7), 0.0105, 0.004)])
    run(spark, lake)
    kept = [row for row in in_force(lake, job.TABLE) if "a" in (row.get("device"), row.get("device_a"))]
    assert all(str(row["id"]).encode() in before for row in kept)
    assert len(kept) == sum(1 for row in json.loads(before) if "a" in (row.get("device"), row.get("device_a")))
