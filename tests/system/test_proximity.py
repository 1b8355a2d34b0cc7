"""Encounters on real Spark and Delta: once over partitions and regions, equal in any order, and no hot cell."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake import Lake
from cloud_jobs.outbox import Outbox
from cloud_jobs.proximity import job
from cloud_jobs.proximity.config import ProximitySettings
from cloud_jobs.proximity.job import TABLE, ProximityRun, tell_encounters
from cloud_jobs.proximity.message import encounter_message
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import NIGHT, NOON, Fix, in_force, ingest, lake_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def run(spark: SparkSession, lake: Lake, **settings: Any) -> ProximityRun:
    return tell_encounters(spark, lake, TrackSettings(), ProximitySettings(**settings))


def told(lake: Lake) -> bytes:
    """The encounters without their ids and revisions, which tell how fixes came; as bytes."""
    names = ("device_a", "device_b", "start", "end", "min_m", "min_at", "parts")
    rows = [[row[name] for name in names] for row in in_force(lake, TABLE)]
    return json.dumps(sorted(rows, key=str), default=str).encode()


def depot(devices: int, fixes: int) -> list[Fix]:
    """Vehicles that shunt about one yard of 300 m, from two regions, over midnight; and two that are far away."""
    dice = random.Random(3)
    found = []
    for number in range(devices):
        region = "eu" if number % 2 else "us"
        lat, lon = 50.0 + dice.random() * 0.003, dice.random() * 0.004
        for seq in range(1, fixes + 1):
            moment = NIGHT + timedelta(minutes=15, seconds=30 * seq + dice.randrange(20))
            lat, lon = lat + dice.gauss(0, 0.0001), lon + dice.gauss(0, 0.0001)
            found.append(Fix(f"{region}-{number:04}", seq, moment, round(lat, 7), round(lon, 7), region))
    for device in ("eu-far1", "us-far2"):
        found += [Fix(device, seq, NIGHT + timedelta(minutes=seq), 10.0, 10.0) for seq in (1, 2)]
    return found


def test_streaming_equals_batch_with_a_hot_cell_in_blocks_or_whole(spark: SparkSession, tmp_path: Path) -> None:
    fixes = depot(40, 16)
    batch, stream = lake_of(tmp_path / "batch"), lake_of(tmp_path / "stream")
    ingest(batch, fixes)
    assert run(spark, batch).told > 200
    random.Random(1).shuffle(fixes)
    for at in range(2):
        ingest(stream, fixes[at::2])
        assert run(spark, stream, segments_per_task=100, cell_m=300.0).told
    assert told(stream) == told(batch)
    rows = in_force(batch, TABLE)
    assert all(row["device_a"] < row["device_b"] for row in rows)
    assert {(row["device_a"][:2], row["device_b"][:2]) for row in rows} >= {("eu", "us"), ("eu", "eu"), ("us", "us")}
    assert ("eu-far1", "us-far2") in {(row["device_a"], row["device_b"]) for row in rows}
    version = stream.open(TABLE).version()
    assert run(spark, stream) == ProximityRun(2, 2, 0, 0)
    assert stream.open(TABLE).version() == version


def test_no_task_holds_more_than_its_bound_of_a_hot_cell(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path)
    ingest(lake, [fix for fix in depot(200, 10) if "far" not in fix.device])
    sizes: list[list[int]] = []
    real = job._blocks

    def watched(*arguments: Any) -> Any:
        blocks = real(*arguments)
        sizes.append([row["count"] for row in blocks.groupBy("task").count().collect()])
        return blocks

    monkeypatch.setattr(job, "_blocks", watched)
    assert run(spark, lake, segments_per_task=200).told > 1_000
    (held,) = sizes
    assert len(held) > 10, "the yard is many tasks"
    assert max(held) < 2 * 2 * 200, "a block holds two groups, and groups are even within a factor of two"


def test_encounters_that_were_not_published_before_a_crash_are_after_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    pair = [Fix(device, seq, NOON + timedelta(minutes=seq), 50.0, 0.0) for device in ("a", "b") for seq in (1, 2, 3)]
    ingest(lake, pair[:5])
    run(spark, lake)
    sent: list[dict[str, Any]] = []
    ingest(lake, pair[5:])
    run(spark, lake)
    outbox = Outbox(lake, TABLE, tmp_path / "note")
    assert outbox.flush(lambda rows: sent.extend(map(encounter_message, rows))) == 2
    assert [(one["revision"], one["end"]) for one in sorted(sent, key=lambda one: one["revision"])] == [
        (0, "2026-01-05T12:02:00.000Z"),
        (1, "2026-01-05T12:03:00.000Z"),
    ]
    assert outbox.flush(sent.extend) == 0
