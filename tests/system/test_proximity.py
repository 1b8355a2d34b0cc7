"""Encounters on real Spark and Delta: once over partitions and regions, equal in any order; hot cells; the command."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.job_settings import ProximitySettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.proximity.encounters import CROWD
from cloud_jobs.proximity.job import TABLE, ProximityRun, compute_encounters
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import NIGHT, LakeFix, in_force, ingest, lake_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def run(spark: SparkSession, lake: Lake, **settings: Any) -> ProximityRun:
    return compute_encounters(spark, lake, TrackSettings(), ProximitySettings(**settings))


def facts(lake: Lake) -> bytes:
    """What is in force, with its ids, as bytes; how many revisions led there is history."""
    rows = [row | {"revision": None, "emitted_at": None, "commit_number": None} for row in in_force(lake, TABLE)]
    return json.dumps(sorted(rows, key=lambda row: str(row["id"])), default=str).encode()


def depot(devices: int, fixes: int) -> list[LakeFix]:
    """Vehicles that shunt about one yard of 300 m, from two regions, over midnight; and two that are far away."""
    dice = random.Random(3)
    found = []
    for number in range(devices):
        region = "eu" if number % 2 else "us"
        lat, lon = 50.0 + dice.random() * 0.003, dice.random() * 0.004
        for seq in range(1, fixes + 1):
            moment = NIGHT + timedelta(minutes=15, seconds=30 * seq + dice.randrange(20))
            lat, lon = lat + dice.gauss(0, 0.0001), lon + dice.gauss(0, 0.0001)
            found.append(LakeFix(f"{region}-{number:04}", seq, moment, round(lat, 7), round(lon, 7), region))
    for device in ("eu-far1", "us-far2"):
        found += [LakeFix(device, seq, NIGHT + timedelta(minutes=seq), 10.0, 10.0) for seq in (1, 2)]
    return found


def test_streaming_equals_batch_with_a_hot_cell_in_blocks_or_whole(spark: SparkSession, tmp_path: Path) -> None:
    fixes = depot(60, 12)
    batch, stream = lake_of(tmp_path / "batch"), lake_of(tmp_path / "stream")
    ingest(batch, fixes)
    assert run(spark, batch, segments_per_task=150).revisions > 200
    random.Random(1).shuffle(fixes)
    for at in range(2):
        ingest(stream, fixes[at::2])
        assert run(spark, stream).revisions
    assert facts(stream) == facts(batch)
    rows = in_force(batch, TABLE)
    assert all(row["device_a"] < row["device_b"] for row in rows)
    assert {(row["device_a"][:2], row["device_b"][:2]) for row in rows} >= {("eu", "us"), ("eu", "eu"), ("us", "us")}
    assert ("eu-far1", "us-far2") in {(row["device_a"], row["device_b"]) for row in rows}
    assert run(spark, stream) == ProximityRun(2, 0, 0, 0, 0)
    assert stream.open(TABLE).version() == 2


def yard(devices: range, lat: float = 50.0) -> list[LakeFix]:
    """Vehicles parked within 40 m of each other from 23:50 to 23:53, each with a fix a minute on its own second."""
    moments = [NIGHT + timedelta(minutes=10, seconds=60 * at) for at in range(4)]
    return [
        LakeFix(
            f"eu-{one:05}", at + 1, moment + timedelta(seconds=one % 60), lat + one % 36 / 1e5, one // 36 % 50 / 1e5
        )
        for one in devices
        for at, moment in enumerate(moments)
    ]


@pytest.mark.nightly
def test_three_thousand_in_one_yard_have_one_encounter_each_and_do_not_stall_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path / "lake")
    ingest(lake, yard(range(40)))
    assert run(spark, lake).in_crowds == 0
    assert len(in_force(lake, TABLE)) == 40 * 39 / 2
    pairs = [fix for one in range(0, 400, 2) for fix in yard(range(90_000 + one, 90_002 + one), 51.0 + one / 100)]
    # it comes from a kilometre away and is beyond the yard before the minute is over: in it, it is in the crowd
    passing = [
        LakeFix("p", at, NIGHT + timedelta(minutes=11, seconds=29 * at), 49.9905 + at * 0.005, 0.0002)
        for at in range(3)
    ]
    ingest(lake, [*yard(range(40, 3_000)), *pairs, *passing])
    done = run(spark, lake)
    assert done.in_crowds == 3_001
    encounters = in_force(lake, TABLE)
    crowd = {row["device_b"]: row for row in encounters if row["device_a"] == CROWD}
    assert set(crowd) == {f"eu-{one:05}" for one in range(3_000)} | {"p"}
    assert crowd["eu-00007"]["start"] == NIGHT + timedelta(minutes=10)
    assert crowd["eu-00007"]["end"] == NIGHT + timedelta(minutes=14)
    assert (crowd["p"]["start"], crowd["p"]["end"]) == (NIGHT + timedelta(minutes=11), NIGHT + timedelta(minutes=12))
    met = {(row["device_a"], row["device_b"]) for row in encounters if row["device_a"] != CROWD}
    assert met == {(f"eu-{one:05}", f"eu-{one + 1:05}") for one in range(90_000, 90_400, 2)}
    retracted = [row for row in lake.rows(TABLE).to_pylist() if row["retracted"]]
    assert len(retracted) == 40 * 39 / 2
