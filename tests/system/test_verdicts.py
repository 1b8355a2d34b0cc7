"""Verdicts on real Pulsar, Delta and Spark: through kills each alert has one, and what is final stays the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from pyspark.sql import SparkSession

from cloud_jobs.geofence.event_revisions import EventRules, GeofenceSettings
from cloud_jobs.geofence.job import TABLE, compute_events
from cloud_jobs.lake.tables import Lake
from cloud_jobs.verdicts.run import verdict_message
from deploy.local import LocalStack, free_port
from geo.alerts import Alert, AlertVerdict, decode_verdict, encode_alert
from geo.spatial import TrackSettings
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix
from tests.cloud_jobs.pulsar_source.world import eventually
from tests.cloud_jobs.verdicts.centre import alert_of
from tests.pulsar_clients import create_topic, open_client
from tests.system.lake_of_fixes import LakeFix, in_force, ingest, lake_of, square
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

SETTINGS = GeofenceSettings(dwell_s=120.0)
FEATURES = [square("square"), square("wide", -0.02, -0.02, 0.05, speed_limit_mps=25.0)]
RULES = EventRules.of(map(json.dumps, FEATURES), TrackSettings(), SETTINGS)
REGIONS = ("eu", "us")
HALF = 30
BOUND_S = 20
# of now: older alerts are refused as far off, as their records are
NIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(minutes=30)


def drive(device: str, region: str, fixes: int = 2 * HALF) -> list[LakeFix]:
    """A vehicle that wanders around the square over midnight."""
    dice, moment, lat, lon = random.Random(region), NIGHT, 0.005, -0.01
    found = []
    for seq in range(1, fixes + 1):
        moment += timedelta(seconds=dice.choice([10, 20, 60, 120]))
        lat, lon = (
            min(max(lat + dice.gauss(0, 0.002), -0.03), 0.03),
            min(max(lon + dice.gauss(0, 0.003), -0.03), 0.03),
        )
        found.append(LakeFix(device, seq, moment, round(lat, 7), round(lon, 7), region, "fleet"))
    return found


def seen_by(region: str, fixes: Iterable[LakeFix]) -> list[Alert]:
    """What a region says on the way that saw these one after the other."""
    centre, said = GeofenceCentre(RULES), dict[str, Alert]()
    for one in fixes:
        t_ms = round(one.time.timestamp() * 1000)
        fix = GeofenceFix(one.device, one.seq, t_ms, one.latitude, one.longitude, None, "fleet")
        for row in centre.take([fix]):
            if not row["retracted"]:
                said.setdefault(row["id"], alert_of(row, region=region))
    return [*said.values()]


def send(stack: LocalStack, region: str, bodies: list[tuple[str, bytes]]) -> None:
    """To the region's own cluster: the centre gets them by replication."""
    cluster = stack.pulsar[region]
    client = open_client(cluster.service_url, cluster.access)
    try:
        producer = client.create_producer(f"persistent://fleet/alerts-{region}/alerts", batching_enabled=True)
        for key, body in bodies:
            producer.send_async(body, lambda *_: None, partition_key=key)
        producer.flush()
    finally:
        client.close()


class VerdictProcess:
    """`cloud-jobs verdicts --follow`, which may be killed."""

    def __init__(self, folder: Path, stack: LocalStack, topic: str) -> None:
        hq, config = stack.pulsar["hq"], folder / "cloud.toml"
        self._port = free_port()
        config.write_text(
            f'lake = "{folder}/lake"\ncheckpoints = "{folder}/checkpoints"\n'
            f'[[clusters]]\nname = "hq"\nservice_url = "{hq.service_url}"\nadmin_url = "{hq.admin_url}"\n'
            f"[access]\n{stack.access('jobs').as_toml()}"
            f'[verdicts]\ntopic = "{topic}"\nsubscription = "verdicts-{topic[-8:]}"\ninterval_s = 0.2\n'
            f"max_provisional_s = {BOUND_S}\n[metrics]\nverdicts_port = {self._port}\n"
        )
        self._command = [sys.executable, "-m", "cloud_jobs", "verdicts", "--config", str(config), "--follow", "--json"]
        self._log = folder / "verdicts.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """With SIGKILL."""
        self._running.kill()
        self._running.wait()

    def stop(self) -> tuple[int, str]:
        self._running.terminate()
        return self._running.wait(60 * PATIENCE), self._log.read_text(encoding="utf-8")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())


@dataclass(frozen=True)
class Decided:
    """A centre after all of it."""

    lake: Lake
    fixes: list[LakeFix]
    lost: str
    announced: set[str]
    messages: list[tuple[str, AlertVerdict]]
    metrics: str

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Those of this test: other tests raise alerts on the same topics."""
        mine = {one.device for one in self.fixes} | {self.lost}
        return [row for row in self.lake.rows(table).to_pylist() if row["device"] in mine]

    def verdicts(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in sorted(self.rows("verdicts"), key=lambda row: row["revision"])}


def published(stack: LocalStack, topic: str) -> list[tuple[str, AlertVerdict]]:
    hq = stack.pulsar["hq"]
    client = open_client(hq.service_url, hq.access)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            found.append((message.partition_key(), decode_verdict(message.data())))
        return found
    finally:
        client.close()


@pytest.fixture(scope="module")
def decided(spark: SparkSession, stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decided]:
    """Two regions raise alerts; the job is killed while it collects, and while it decides and publishes."""
    folder, place = tmp_path_factory.mktemp("verdicts"), uuid4().hex[:8]
    topic = create_topic(stack.pulsar["hq"], f"persistent://fleet/events/verdicts-{place}")
    lost = f"lost-{place}"
    lake = lake_of(folder / "lake", FEATURES)
    fixes = {region: drive(f"{region}-{place}", region) for region in REGIONS}
    # the regions miss some fixes, and the centre never gets anything of one vehicle
    said = {region: seen_by(region, [one for one in fixes[region] if one.seq % 7]) for region in REGIONS}
    said["eu"] += seen_by("eu", drive(lost, "eu", HALF))
    announced = {alert.id for alerts in said.values() for alert in alerts}
    process = VerdictProcess(folder, stack, topic)
    try:
        for region, alerts in said.items():
            bodies = [(alert.device, encode_alert(alert)) for alert in alerts]
            forged = alerts[0].model_copy(update={"device": lost, "seq": 77})
            # each twice, one with the id of another's event, and what is no alert
            send(stack, region, [*bodies, *bodies, ("?", encode_alert(forged)), ("?", b"no alert")])
        eventually("some are collected", lambda: lake.open("alerts").version())
        process.kill()
        process.start()
        eventually("all are collected", lambda: {*lake.rows("alerts")["id"].to_pylist()} >= announced)
        ingest(lake, [one for region in REGIONS for one in fixes[region][:HALF]])
        compute_events(spark, lake, TrackSettings(), SETTINGS)
        eventually("some are decided", lambda: lake.rows("verdicts").num_rows)
        process.kill()
        process.start()
        ingest(lake, [one for region in REGIONS for one in fixes[region][HALF:]])
        compute_events(spark, lake, TrackSettings(), SETTINGS)
        ids = announced | {row["id"] for row in in_force(lake, TABLE)}
        eventually("each has its verdict", lambda: {*lake.rows("verdicts")["id"].to_pylist()} >= ids)
        eventually(
            "they are published",
            lambda: len({key for key, _ in published(stack, topic)}) == lake.rows("verdicts").num_rows,
        )
        metrics = process.metrics()
        status, log = process.stop()
        assert status == 0, log
        drives = [one for region in REGIONS for one in fixes[region]]
        yield Decided(lake, drives, lost, announced, published(stack, topic), metrics)
    finally:
        process.kill()


def test_each_alert_has_one_verdict_through_kills_and_what_no_region_said_is_late(decided: Decided) -> None:
    held = decided.verdicts()
    of = {
        kind: {name for name, row in held.items() if row["verdict"] == kind}
        for kind in ("confirmed", "corrected", "withdrawn", "late")
    }
    final = {row["id"] for row in in_force(decided.lake, TABLE)}
    assert decided.announced == held.keys() - of["late"]
    assert of["confirmed"] | of["corrected"] | of["late"] == final
    assert not final & of["withdrawn"]
    assert of["confirmed"]
    assert of["late"]
    lost = {row["reason"] for row in held.values() if row["device"] == decided.lost}
    assert lost == {"not_received"}


def test_nothing_is_twice_after_the_kills_and_the_topic_says_what_the_table_says(decided: Decided) -> None:
    alerts, rows = decided.rows("alerts"), decided.rows("verdicts")
    assert sorted(row["id"] for row in alerts) == sorted(decided.announced)
    revisions = {(row["id"], row["revision"]): row for row in rows}
    assert len(revisions) == len(rows)
    of_id = {name: [revision for one, revision in revisions if one == name] for name in decided.verdicts()}
    assert all(sorted(found) == [*range(len(found))] for found in of_id.values())
    mine = {row["device"] for row in rows}
    messages = [(key, one) for key, one in decided.messages if one.device in mine]
    said = {key: one.model_dump(mode="json", exclude_none=True) for key, one in messages}
    assert said == {f"{name}/{revision}": verdict_message(row) for (name, revision), row in revisions.items()}
    # what a kill published again is the same to the byte, so that a consumer may drop it by its key
    assert {(key, one.model_dump_json()) for key, one in messages} == {
        (key, AlertVerdict.model_validate_json(json.dumps(one)).model_dump_json()) for key, one in said.items()
    }


def test_what_is_final_is_the_same_to_the_byte_without_alerts(
    decided: Decided, spark: SparkSession, tmp_path: Path
) -> None:
    plain = lake_of(tmp_path / "lake", FEATURES)
    for is_first in (True, False):
        ingest(plain, [one for one in decided.fixes if (one.seq <= HALF) is is_first])
        compute_events(spark, plain, TrackSettings(), SETTINGS)
    assert not plain.rows("alerts").num_rows + plain.rows("verdicts").num_rows
    assert canonical(plain) == canonical(decided.lake)


def canonical(lake: Lake) -> bytes:
    """Every revision of every event, but for the clock's time at which it was written."""
    rows = sorted(lake.rows(TABLE).to_pylist(), key=lambda row: (row["id"], row["revision"]))
    assert rows
    return json.dumps([row | {"emitted_at": None} for row in rows], default=str).encode()
