"""Geofence events on real Spark and Delta: streaming equals batch, again writes nothing, nothing is lost."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.geofence.event_revisions import GeofenceSettings
from cloud_jobs.geofence.job import TABLE, GeofenceRun, compute_events
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.tables import fences_in
from geo.spatial import TrackSettings
from tests.cloud_jobs.publications import rows_of
from tests.system.lake_of_fixes import NIGHT, NOON, LakeFix, in_force, ingest, lake_of, square

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SETTINGS = GeofenceSettings(dwell_s=120.0)
FEATURES = [
    square("square"),
    square("wide", -0.02, -0.02, 0.05, speed_limit_mps=25.0),
    {
        "type": "Feature",
        "properties": {"id": "gate", "gate": True},
        "geometry": {"type": "LineString", "coordinates": [[0.015, -0.01], [0.015, 0.02]]},
    },
]


def world(devices: int = 8, fixes: int = 60) -> list[LakeFix]:
    """Vehicles that wander around the square over midnight, with pauses that break their tracks."""
    dice = random.Random(7)
    found = []
    for number in range(devices):
        moment, lat, lon = NIGHT - timedelta(minutes=dice.randrange(90)), 0.005, -0.01
        for seq in range(1, fixes + 1):
            moment += timedelta(seconds=dice.choice([10, 20, 60, 60, 120, 400]))
            lat, lon = (
                min(max(lat + dice.gauss(0, 0.002), -0.03), 0.03),
                min(max(lon + dice.gauss(0, 0.003), -0.03), 0.03),
            )
            found.append(LakeFix(f"eu-{number:04}", seq, moment, round(lat, 7), round(lon, 7)))
    return found


def run(spark: SparkSession, lake: Lake) -> GeofenceRun:
    return compute_events(spark, lake, TrackSettings(), SETTINGS)


def facts(lake: Lake) -> bytes:
    """What is in force, with its ids, as bytes; how many revisions led there is history."""
    rows = [row | {"revision": None, "emitted_at": None, "commit_number": None} for row in in_force(lake, TABLE)]
    return json.dumps(sorted(rows, key=lambda row: str(row["id"])), default=str).encode()


def published(lake: Lake, feature: dict[str, Any], hour: int) -> None:
    """A fence as it is taken from its topic."""
    lake.append("reference", rows_of("fence", [feature], 100 * hour))


def test_streaming_equals_batch_byte_for_byte_with_late_fixes_and_late_fences(
    spark: SparkSession, tmp_path: Path
) -> None:
    fixes, (small, wide, gate) = world(), FEATURES
    batch = lake_of(tmp_path / "batch", FEATURES)
    ingest(batch, fixes)
    assert run(spark, batch).revisions > 50
    # the other centre first knows half of the fixes in any order, no gate, and a wide fence of the wrong size
    stream = lake_of(tmp_path / "stream", [small, square("wide", -0.02, -0.02, 0.03, speed_limit_mps=25.0)])
    shuffled = list(fixes)
    random.Random(1).shuffle(shuffled)
    ingest(stream, shuffled[::2])
    assert run(spark, stream).revisions
    ingest(stream, shuffled[1::2])
    published(stream, wide, hour=1)
    late = run(spark, stream)
    assert late.revisions
    assert late.fence_changes == 1
    published(stream, gate, hour=2)
    later = run(spark, stream)
    assert (later.ingest_number, later.fence_changes) == (late.ingest_number, 1), (
        "no new record, and still it is published"
    )
    assert later.revisions
    assert facts(stream) == facts(batch)
    assert {row["kind"] for row in in_force(batch, TABLE)} == {
        "enter",
        "exit",
        "dwell",
        "speeding",
        "forward",
        "backward",
    }
    corrected = [row for row in stream.rows(TABLE).to_pylist() if row["revision"] > 0]
    assert {row["retracted"] for row in corrected} == {True, False}, "late fixes and fences moved and took back events"
    version = stream.open(TABLE).version()
    assert run(spark, stream) == GeofenceRun(2, 0, 0, 0, 0, ())
    ingest(stream, [LakeFix("eu-9999", 1, NOON, 50.0, 50.0)])
    published(stream, square("far", 100.0), hour=3)
    published(stream, square("no area", 100.0, side=0.0), hour=3)
    refused = fences_in(stream).refused
    assert [one.id for one in refused] == ["no area"]
    far = GeofenceRun(3, 1, 1, 2, 0, refused)
    assert run(spark, stream) == far, "nobody was near the new fence: only the fix has its days"
    assert stream.open(TABLE).version() == version + 1
    assert run(spark, stream) == GeofenceRun(3, 0, 0, 0, 0, refused)
    assert stream.open(TABLE).version() == version + 1
