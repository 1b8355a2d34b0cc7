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
from tests.system.lake_of_fixes import NIGHT, Fix, in_force, ingest, lake_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


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


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many pieces each task of each run held."""
    held: list[list[int]] = []
    real = job._blocks

    def watched(*arguments: Any) -> Any:
        blocks = real(*arguments)
        held.append([row["count"] for row in blocks.groupBy("task").count().collect()])
        return blocks

    monkeypatch.setattr(job, "_blocks", watched)
    return held


def test_streaming_equals_batch_with_a_hot_cell_in_blocks_or_whole(
    spark: SparkSession, tmp_path: Path, tasks: list[list[int]]
) -> None:
    fixes = depot(60, 12)
    batch, stream = lake_of(tmp_path / "batch"), lake_of(tmp_path / "stream")
    ingest(batch, fixes)
    assert run(spark, batch, segments_per_task=150).told > 200
    assert len(tasks[0]) > 10, "the yard is many tasks"
    assert max(tasks[0]) < 2 * 2 * 150, "a block holds two groups, and groups are even within a factor of two"
    outbox = Outbox(stream, TABLE, tmp_path / "note")
    random.Random(1).shuffle(fixes)
    for at in range(2):
        ingest(stream, fixes[at::2])
        assert run(spark, stream, cell_m=2_000.0).told
    assert told(stream) == told(batch)
    rows = in_force(batch, TABLE)
    assert all(row["device_a"] < row["device_b"] for row in rows)
    assert {(row["device_a"][:2], row["device_b"][:2]) for row in rows} >= {("eu", "us"), ("eu", "eu"), ("us", "us")}
    assert ("eu-far1", "us-far2") in {(row["device_a"], row["device_b"]) for row in rows}
    assert run(spark, stream) == ProximityRun(2, 2, 0, 0)
    assert stream.open(TABLE).version() == 2
    sent: list[dict[str, Any]] = []
    written = stream.rows(TABLE).to_pylist()
    assert outbox.flush(lambda due: sent.extend(map(encounter_message, due))) == len(written)
    assert outbox.flush(sent.extend) == 0
    by_key = {(one["id"], one["revision"]): one for one in sent}
    assert by_key == {(row["id"], row["revision"]): encounter_message(row) for row in written}
