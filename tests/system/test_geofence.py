"""Geofence events on real Spark and Delta: streaming equals batch, again writes nothing, nothing is lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from pyspark.sql import SparkSession

from cloud_jobs.errors import Overtaken
from cloud_jobs.geofence import job
from cloud_jobs.geofence.config import GeofenceSettings
from cloud_jobs.geofence.job import TABLE, tell_events
from cloud_jobs.geofence.message import event_message
from cloud_jobs.lake import Lake
from cloud_jobs.outbox import Outbox, to_topic
from cloud_jobs.reference import publish, read_folder
from deploy.local import LocalStack
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import NIGHT, NOON, Fix, in_force, ingest, lake_of, square

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


def world(devices: int = 8, fixes: int = 60) -> list[Fix]:
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
            found.append(Fix(f"eu-{number:04}", seq, moment, round(lat, 7), round(lon, 7)))
    return found


def run(spark: SparkSession, lake: Lake) -> job.GeofenceRun:
    return tell_events(spark, lake, TrackSettings(), SETTINGS)


def told(lake: Lake) -> bytes:
    """The events without their ids and revisions, which tell how fixes came; as bytes."""
    names = ("device", "time", "kind", "place", "value")
    rows = [{name: row[name] for name in names} for row in in_force(lake, TABLE)]
    return json.dumps(sorted(rows, key=lambda row: tuple(map(str, row.values()))), default=str).encode()


def test_streaming_equals_batch_byte_for_byte_and_again_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    fixes = world()
    batch, stream = lake_of(tmp_path / "batch", FEATURES), lake_of(tmp_path / "stream", FEATURES)
    ingest(batch, fixes)
    assert run(spark, batch).told > 50
    shuffled = list(fixes)
    random.Random(1).shuffle(shuffled)
    for at in range(2):
        ingest(stream, shuffled[at::2])
        assert run(spark, stream).told
    assert told(stream) == told(batch)
    assert {row["kind"] for row in in_force(batch, TABLE)} == {
        "enter",
        "exit",
        "dwell",
        "speeding",
        "forward",
        "backward",
    }
    assert max(row["revision"] for row in stream.rows(TABLE).to_pylist()) > 0, "late fixes corrected something"
    version = stream.open(TABLE).version()
    assert run(spark, stream).told == 0
    ingest(stream, [Fix("eu-9999", 1, NOON, 50.0, 50.0)])
    assert run(spark, stream).told == 0
    assert stream.open(TABLE).version() == version + 1
    assert run(spark, stream).touched_days == 0
    assert stream.open(TABLE).version() == version + 1


def messages(stack: LocalStack, topic: str, count: int, timeout_s: float = 30) -> list[tuple[str, dict[str, Any]]]:
    client = pulsar.Client(stack.pulsar["hq"].service_url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        end = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < end:
            if reader.has_message_available():
                message = reader.read_next(5_000)
                found.append((message.partition_key(), json.loads(message.data())))
        return found
    finally:
        client.close()


def test_a_crash_before_publishing_loses_nothing_and_of_two_runs_at_once_one_writes_nothing(
    spark: SparkSession, stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"persistent://fleet/events/geofence-{uuid4().hex[:8]}"
    lake = lake_of(tmp_path / "lake", FEATURES)
    fixes = world(2)
    ingest(lake, fixes[::2])
    run(spark, lake)
    outbox = Outbox(lake, TABLE, tmp_path / "note")
    send = to_topic([stack.pulsar["hq"].service_url], topic, event_message)

    def killed(rows: Any) -> None:
        send(row for at, row in enumerate(rows) if at < 5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outbox.flush(killed)
    ingest(lake, fixes[1::2])
    real = job.commit

    def another_first(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        real(*arguments, **named)

    monkeypatch.setattr(job, "commit", another_first)
    version = lake.open(TABLE).version()
    with pytest.raises(Overtaken):
        run(spark, lake)
    assert lake.open(TABLE).version() == version + 1
    rows = {f"{row['id']}/{row['revision']}": row for row in lake.rows(TABLE).to_pylist()}
    assert outbox.flush(send) == len(rows) == lake.open(TABLE).count()
    assert outbox.flush(send) == 0
    found = messages(stack, topic, len(rows) + 5)
    assert len(found) == len(rows) + 5
    assert dict(found) == {key: event_message(row) for key, row in rows.items()}


def test_the_command_follows_new_records_with_fences_from_their_topic(stack: LocalStack, tmp_path: Path) -> None:
    hq, place = stack.pulsar["hq"], uuid4().hex[:8]
    folder = tmp_path / "reference"
    folder.mkdir()
    fence = square(f"square-{place}", effective_from="2026-01-01T00:00:00Z")
    (folder / "fences.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [fence]}))
    for name in ("tariffs.json", "accounts.json"):
        (folder / name).write_text("[]")
    publish(hq.service_url, read_folder(folder))
    topic = f"persistent://fleet/events/geofence-{place}"
    config = tmp_path / "cloud.toml"
    config.write_text(
        f'lake = "{tmp_path}/lake"\ncheckpoints = "{tmp_path}/checkpoints"\n'
        f'[[clusters]]\nname = "hq"\nservice_url = "{hq.service_url}"\nadmin_url = "{hq.admin_url}"\n'
        f'[geofence]\ntopic = "{topic}"\ninterval_s = 0.5\n'
    )
    lake = lake_of(tmp_path / "lake")
    inside = [Fix("eu-0001", seq, NOON + timedelta(minutes=seq), 0.005, -0.009 + 0.005 * seq) for seq in (1, 2, 3, 4)]
    ingest(lake, inside[:2])
    command = [sys.executable, "-m", "cloud_jobs", "geofence", "--config", str(config), "--follow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            first = [row for _, row in messages(stack, topic, 1, 240) if row["place"] == f"square-{place}"]
            ingest(lake, inside[2:])
            every = [row for _, row in messages(stack, topic, 2, 120) if row["place"] == f"square-{place}"]
            process.send_signal(signal.SIGTERM)
            _, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, complaints
    assert [(row["kind"], row["revision"]) for row in first] == [("enter", 0)]
    assert [(row["kind"], row["time"]) for row in every][-1] == ("exit", "2026-01-05T12:03:48.000Z")
