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
from typer.testing import CliRunner

from cloud_jobs.derived.incremental import commit
from cloud_jobs.derived.outbox import Outbox, event_message, topic_sender
from cloud_jobs.errors import CommitConflict
from cloud_jobs.geofence import job
from cloud_jobs.geofence.event_revisions import GeofenceSettings
from cloud_jobs.geofence.job import TABLE, GeofenceRun, compute_events
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.tables import fences_in
from deploy.local import LocalStack, stack_operator
from geo.spatial import TrackSettings
from tests.cloud_jobs.publications import rows_of
from tests.pulsar_clients import create_topic, open_client
from tests.system.lake_of_fixes import NIGHT, NOON, LakeFix, in_force, ingest, lake_of, square
from tests.waiting import PATIENCE, deadline_s

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
    assert run(spark, stream) == GeofenceRun(2, 0, 0, 0, 0, 0, 0, ())
    ingest(stream, [LakeFix("eu-9999", 1, NOON, 50.0, 50.0)])
    published(stream, square("far", 100.0), hour=3)
    published(stream, square("no area", 100.0, side=0.0), hour=3)
    refused = fences_in(stream).refused
    assert [one.id for one in refused] == ["no area"]
    far = GeofenceRun(3, 1, 1, 1, 2, 0, 0, refused)
    assert run(spark, stream) == far, "nobody was near the new fence: only the fix has its days"
    assert stream.open(TABLE).version() == version + 1
    assert run(spark, stream) == GeofenceRun(3, 0, 0, 0, 0, 0, 0, refused)
    assert stream.open(TABLE).version() == version + 1


def messages(stack: LocalStack, topic: str, count: int, timeout_s: float = 30) -> list[tuple[str, dict[str, Any]]]:
    client = open_client(stack.pulsar["hq"].service_url, stack.pulsar["hq"].access)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found: list[tuple[str, dict[str, Any]]] = []
        end = deadline_s(timeout_s)
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
    topic = create_topic(stack.pulsar["hq"], f"persistent://fleet/events/geofence-{uuid4().hex[:8]}")
    lake = lake_of(tmp_path / "lake", FEATURES)
    fixes = world(2)
    ingest(lake, fixes[::2])
    run(spark, lake)
    outbox = Outbox(lake, TABLE, tmp_path / "note")
    send = topic_sender([stack.pulsar["hq"].service_url], topic, event_message, stack.access("jobs"))

    def killed(rows: Any) -> None:
        send(row for at, row in enumerate(rows) if at < 5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outbox.flush(killed)
    ingest(lake, fixes[1::2])
    real = commit

    def another_first(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        real(*arguments, **named)

    monkeypatch.setattr(job, "commit", another_first)
    version = lake.open(TABLE).version()
    with pytest.raises(CommitConflict):
        run(spark, lake)
    assert lake.open(TABLE).version() == version + 1
    rows = {f"{row['id']}/{row['revision']}": row for row in lake.rows(TABLE).to_pylist()}
    assert outbox.flush(send) == len(rows) == lake.open(TABLE).count()
    assert outbox.flush(send) == 0
    found = messages(stack, topic, len(rows) + 5)
    assert len(found) == len(rows) + 5
    assert dict(found) == {key: event_message(row) for key, row in rows.items()}


@pytest.mark.nightly
def test_the_command_follows_new_records_and_new_fences_from_their_topic(stack: LocalStack, tmp_path: Path) -> None:
    hq, place = stack.pulsar["hq"], uuid4().hex[:8]
    folder = tmp_path / "reference"
    folder.mkdir()
    fence = square(f"square-{place}", effective_from="2026-01-01T00:00:00Z")
    (folder / "fences.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [fence]}))
    topic = create_topic(stack.pulsar["hq"], f"persistent://fleet/events/geofence-{place}")
    config = tmp_path / "cloud.toml"
    config.write_text(
        f'lake = "{tmp_path}/lake"\ncheckpoints = "{tmp_path}/checkpoints"\n'
        f'[[clusters]]\nname = "hq"\nservice_url = "{hq.service_url}"\nadmin_url = "{hq.admin_url}"\n'
        # it publishes a fence and reads it as a job
        f"[access]\n{stack.access().as_toml()}"
        f'[geofence]\ntopic = "{topic}"\ninterval_s = 0.5\nreference_interval_s = 1\n'
        + (operator := stack_operator(stack.folder)).reference_settings()
    )
    lake = lake_of(tmp_path / "lake")
    inside = [
        LakeFix("eu-0001", seq, NOON + timedelta(minutes=seq), 0.005, -0.009 + 0.005 * seq) for seq in (1, 2, 3, 4)
    ]
    ingest(lake, inside[:2])

    def reference(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    command = [sys.executable, "-m", "cloud_jobs", "geofence", "--config", str(config), "--follow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            end = deadline_s(240)
            while lake.open(TABLE).version() < 1 and time.monotonic() < end:
                time.sleep(0.2)
            published = reference(
                *("put", str(folder), "--config", str(config), "--key", str(operator.key_file), "-m", "a test")
            )["published"]
            assert {kind: count for kind, count in published.items() if count} == {"fence": 1}
            first = [row for _, row in messages(stack, topic, 1, 120) if row["place"] == f"square-{place}"]
            ingest(lake, inside[2:])
            every = [row for _, row in messages(stack, topic, 2, 120) if row["place"] == f"square-{place}"]
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60 * PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, log
    shown = [
        row
        for row in reference("list", "--lake", f"{tmp_path}/lake")["versions"]
        if row["id"] == fence["properties"]["id"]
    ]
    assert [(row["effective_from"], row["problem"]) for row in shown] == [("2026-01-01T00:00:00Z", "")]
    assert [(row["kind"], row["revision"]) for row in first] == [("enter", 0)]
    assert [(row["kind"], row["time"]) for row in every][-1] == ("exit", "2026-01-05T12:03:48.000Z")
