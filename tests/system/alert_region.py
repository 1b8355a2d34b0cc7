"""A region for the alert process's tests: its Pulsar, fences, devices that drive through them, and its alerts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import pulsar

from cloud_jobs.reference.files import make_version, publish
from deploy.local import DaemonProcess, PulsarCluster, free_port, http_health
from gateway.alerts.config import AlertEndpoint
from gateway.alerts.status import AlertsStatus, read_alerts_status
from geo.alerts import Alert, decode_alert
from geo.spatial import (
    DayEvent,
    FenceSet,
    Fixes,
    GateSet,
    PublishedEventSettings,
    TrackSettings,
    build_tracks,
    end_fixes,
    fences_from_geojson,
    find_events,
    identified,
)
from tests.pulsar_clients import open_client
from waybill.record import Batch, Position, Record, encode

TENANT = "fleet"
BATCHES = f"persistent://{TENANT}/telemetry-eu/batches"
ALERTS = f"persistent://{TENANT}/alerts-eu/alerts"
STEP_MS = 10_000
STEP_DEG = 0.005
PER_BATCH = 3
SQUARE = [[8.0175, 49.99], [8.0625, 49.99], [8.0625, 50.01], [8.0175, 50.01], [8.0175, 49.99]]
FEATURES: list[dict[str, Any]] = [
    {"type": "Feature", "properties": {"id": "square"}, "geometry": {"type": "Polygon", "coordinates": [SQUARE]}},
    {
        "type": "Feature",
        "properties": {"id": "bridge", "gate": True},
        "geometry": {"type": "LineString", "coordinates": [[8.0275, 49.99], [8.0275, 50.01]]},
    },
]


@dataclass
class Drive:
    """A device that goes to and fro, 36 m/s, through the square and over the bridge; its last fix is of now."""

    device: str
    batches: int
    start_ms: int = 0
    epoch: int = 7
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = self.batches * PER_BATCH
        self.start_ms = self.start_ms or round(time.time() * 1000) - STEP_MS * count
        for number in range(count):
            there = abs((number + 8) % 16 - 8)
            position = Position(latitude=50.0, longitude=8.0 + STEP_DEG * there, accuracy_m=5.0)
            self.records.append(Record(number + 1, (self.start_ms + STEP_MS * number) * 1000, position))

    def payloads(self) -> list[bytes]:
        """Its batches in their order."""
        parts = [tuple(self.records[at : at + PER_BATCH]) for at in range(0, len(self.records), PER_BATCH)]
        return [encode(Batch(self.device, self.epoch, len(self.records), part)) for part in parts]

    def truth(self, tenant: str = TENANT) -> dict[str, DayEvent]:
        """What the engine says of all fixes, by id."""
        report = fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": FEATURES}))
        positions = [one.body for one in self.records if isinstance(one.body, Position)]
        tracks = build_tracks(
            Fixes(
                device=[0] * len(positions),
                t_ms=[one.device_time_us // 1000 for one in self.records],
                lat=[one.latitude for one in positions],
                lon=[one.longitude for one in positions],
                accuracy_m=[one.accuracy_m or 0.0 for one in positions],
                speed_mps=[float("nan")] * len(positions),
            ),
            TrackSettings().as_reported(),
        )
        events = find_events(tracks, FenceSet(report.fences), GateSet(report.gates), PublishedEventSettings())
        ends = end_fixes(tracks, events).tolist()
        return identified(
            tenant,
            self.device,
            (
                DayEvent(one.t_ms, one.kind, one.place, one.value, self.epoch, self.records[row].seq)
                for one, row in zip(events, ends, strict=True)
            ),
        )


@dataclass
class AlertRegion:
    """One region's Pulsar."""

    pulsar: PulsarCluster
    folder: Path

    @property
    def url(self) -> str:
        """Where its brokers are."""
        return self.pulsar.service_url

    def publish_fences(self, features: Iterable[dict[str, Any]] = FEATURES) -> None:
        publish([self.url], [make_version("fence", one) for one in features], self.pulsar.access)

    @contextmanager
    def sender(self) -> Iterator[BatchSender]:
        client = open_client(self.url, self.pulsar.access)
        try:
            yield BatchSender(client)
        finally:
            client.close()

    def alerts(self, devices: Iterable[str]) -> list[tuple[Alert, int]]:
        """The alerts of some devices, each with the time (ms) at which the cluster had it, in their order."""
        wanted, found = {*devices}, []
        client = open_client(self.url, self.pulsar.access)
        try:
            reader = client.create_reader(ALERTS, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(timeout_millis=10_000)
                alert = decode_alert(message.data())
                assert message.partition_key() == alert.device
                assert message.properties() == {"tenant": alert.tenant, "region": "eu", "id": alert.id}
                if alert.device in wanted:
                    found.append((alert, message.publish_timestamp()))
        finally:
            client.close()
        return found

    def ids(self, drives: Iterable[Drive]) -> set[str]:
        return {alert.id for alert, _ in self.alerts(one.device for one in drives)}

    def process(self, name: str, more: str = "") -> AlertProcess:
        """One that is not started."""
        return AlertProcess(name, self.folder, self.url, more)


class BatchSender:
    """Sends batches as a gateway does: all of a device into one partition."""

    def __init__(self, client: pulsar.Client) -> None:
        self._producers = [client.create_producer(f"{BATCHES}-partition-{number}") for number in range(2)]

    def send(self, device: str, payload: bytes, tenant: str = TENANT) -> None:
        producer = self._producers[crc32(f"{tenant}/{device}".encode()) % 2]
        producer.send(payload, partition_key=device, properties={"tenant": tenant, "device": device, "region": "eu"})

    def send_round(self, drives: Iterable[Drive], number: int) -> None:
        """The batch of that number of each."""
        for one in drives:
            self.send(one.device, one.payloads()[number])


class AlertProcess:
    """An alert process and its configuration."""

    def __init__(self, name: str, folder: Path, url: str, more: str = "") -> None:
        self.endpoint = AlertEndpoint(port=free_port())
        self.config = folder / f"{name}.toml"
        self.config.write_text(
            f'name = "{name}"\nregion = "eu"\ninsecure = true\ntenants = ["{TENANT}"]\n{more}\n'
            f'[pulsar]\nservice_url = "{url}"\n[fences]\nunsigned = true\n'
            # a drive of minutes is sent within seconds
            f"[evaluation]\nmax_age_s = 3600\n[status]\nport = {self.endpoint.port}\n",
            encoding="utf-8",
        )
        self.process = DaemonProcess.python(
            name,
            "gateway",
            ["alerts", "run", "--config", str(self.config)],
            folder / name,
            healthy_when=http_health(f"http://127.0.0.1:{self.endpoint.port}/alive"),
        )

    def start(self) -> None:
        self.process.start()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def status(self) -> AlertsStatus:
        return read_alerts_status(self.endpoint)

    @property
    def held(self) -> int:
        """How many partitions it has and serves."""
        status = self.status()
        return len(status.partitions_held) if status.healthy else 0
