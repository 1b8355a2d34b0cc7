"""Region and centre on real servers, with a load of vehicles: brokers, Pulsar, a gateway, alert processes.

As a program it is the load: as many agents at the region's broker, whose batches of fixes were made beforehand.
"""

import json
import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pulsar

from benchmarks.gateway.device_load import (
    LoadSettings,
    device_name,
    publish_packet,
    run_load,
    running_load,
    settings_of_load,
)
from benchmarks.gateway.region import device_certificates, gateway_process
from benchmarks.stacks import measured_stack
from cloud_jobs.reference.files import Signing, make_version, publish
from deploy.local import DaemonProcess, LocalStack, PortBook, stack_operator
from deploy.local.stack_settings import alert_process, gateway_settings
from gateway.alerts.config import AlertSettings, ReportedTracks
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import FixColumns
from gateway.alerts.partition_evaluation import ReadBatch, parts_of, read_batch
from gateway.alerts.status import AlertsStatus, read_alerts_status
from geo.alerts import Alert, decode_alert
from geo.spatial import FenceSet, GateSet, PublishedEventSettings, fences_from_geojson
from tests.waiting import wait_until
from waybill.identity.sealing import Unsealer
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import Batch, DeviceChannel, Position, Record, device_topic, encode
from waybill.settings import load

# Where vehicles drive, and the fences there.

ROWS, COLUMNS = 25, 40
_CELL_M: Final = 200.0
_YARD_M: Final = 100.0
_SOUTH, _WEST = 50.0, 8.0
_DEGREE_M: Final = 111_320.0
_TRACKS_M: Final = (20.0, 40.0, 60.0, 80.0, 120.0, 140.0, 160.0, 180.0)
"""Of each row of cells, half of them through yards. None along a side, where events depend on how fixes come."""
_SPEED_MPS: Final = 20.0
_LENGTH_M: Final = COLUMNS * _CELL_M
_BORDER_M: Final = _LENGTH_M + 2_000.0
_APART_M: Final = 300.0
_FROM_BORDER_M: Final = 20.0
"""So far from its border each fix of a timed vehicle is: beyond the 10 m within which nothing counts."""


def place(east_m: float, north_m: float) -> tuple[float, float]:
    """Latitude and longitude."""
    return (_SOUTH + north_m / _DEGREE_M, _WEST + east_m / (_DEGREE_M * math.cos(math.radians(_SOUTH))))


def on_track(number: int, at_s: float) -> tuple[float, float]:
    driven_m = (number * 37.0 + _SPEED_MPS * at_s) % (2 * _LENGTH_M)
    row, track = divmod(number % (ROWS * len(_TRACKS_M)), len(_TRACKS_M))
    return place(min(driven_m, 2 * _LENGTH_M - driven_m), row * _CELL_M + _TRACKS_M[track])


def at_border(number: int, fix: int) -> tuple[float, float]:
    """Where a timed vehicle is at its fix of that number: on the other side than at the one before."""
    return place(_BORDER_M + (_FROM_BORDER_M if fix % 2 else -_FROM_BORDER_M), number * _APART_M)


def features(timed: int) -> list[dict[str, Any]]:
    yards = [
        _yard(f"yard-{row}-{column}", column * _CELL_M + 50.0, row * _CELL_M)
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    return yards + [_border(number) for number in range(timed)]


def _border(number: int) -> dict[str, Any]:
    north_m = number * _APART_M
    if number % 2:
        return _yard(f"depot-{number}", _BORDER_M, north_m - _YARD_M / 2)
    line = [_point(_BORDER_M, north_m - 50.0), _point(_BORDER_M, north_m + 50.0)]
    geometry = {"type": "LineString", "coordinates": line}
    return {"type": "Feature", "properties": {"id": f"gate-{number}", "gate": True}, "geometry": geometry}


def _yard(name: str, west_m: float, south_m: float) -> dict[str, Any]:
    east_m, north_m = west_m + _YARD_M, south_m + _YARD_M
    corners = ((west_m, south_m), (east_m, south_m), (east_m, north_m), (west_m, north_m), (west_m, south_m))
    ring = [_point(*corner) for corner in corners]
    return {"type": "Feature", "properties": {"id": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def _point(east_m: float, north_m: float) -> list[float]:
    latitude, longitude = place(east_m, north_m)
    return [longitude, latitude]


TENANT, REGION, CENTRE = "fleet", "eu", "hq"
BATCHES = f"persistent://{TENANT}/telemetry-{REGION}/batches"
ALERTS = f"persistent://{TENANT}/alerts-{REGION}/alerts"
ADDED_DELAY_S = 0.08
RECORDS_PER_BATCH = 10
FIXES_PER_DEVICE_S = 10
_WITHIN_S = 60.0
ALERTS_NICE = "-10"
"""Ten times the weight of another: 1.25 for each step."""
_TOPOLOGY = """
centre = "hq"
replication_role = "replication-{cluster}"
[clusters.eu]
[clusters.hq]
[regions.eu]
cluster = "eu"
[tenants.fleet]
operator = true
[namespaces."{tenant}/telemetry-{region}"]
retention = { minutes = 600, size_mb = 1024 }
topics = { batches = { partitions = 2 }, refused = {} }
[namespaces."{tenant}/alerts-{region}"]
retention = { minutes = 600, size_mb = 256 }
topics = { alerts = {}, processes = {} }
[namespaces."fleet/reference"]
clusters = "all"
retention = { minutes = -1, size_mb = -1 }
[namespaces."fleet/reference".topics]
fences = {}
tariffs = {}
accounts = {}
calendars = {}
legal-entities = {}
exchange-rates = {}
alert-rules = {}
[roles.operator]
superuser = true
[roles."gateway-{region}"]
on = "region"
grants."{tenant}/telemetry-{region}" = ["produce"]
[roles."alerts-{region}"]
on = "region"
grants."{tenant}/telemetry-{region}/batches" = ["consume"]
grants."{tenant}/alerts-{region}/alerts" = ["produce"]
grants."{tenant}/alerts-{region}/processes" = ["consume", "produce"]
grants."fleet/reference/fences" = ["consume"]
"""


def say(text: str) -> None:
    """A line of progress, with the load of the machine: other people's work shows in the figures."""
    load_1m = psutil.getloadavg()[0]
    print(f"{time.strftime('%H:%M:%S')}  load {load_1m:4.1f}  {text}", flush=True)


@dataclass(frozen=True, slots=True)
class AlertServers:
    """What runs: the stack, and the alert processes of the region by their numbers."""

    stack: LocalStack
    processes: list[DaemonProcess]

    def status(self, number: int) -> AlertsStatus:
        config = self.stack.folder / f"alerts-{REGION}-alerts-{number}" / "alerts.toml"
        return read_alerts_status(load(AlertSettings, config).status)

    def load(self, fixes_per_s: int, seconds: float) -> AbstractContextManager[subprocess.Popen[str]]:
        """So many fixes a second for so long, in a process that has begun."""
        assert self.stack.authority is not None
        name = "load"
        devices = [device_name(name, number) for number in range(max(1, fixes_per_s // FIXES_PER_DEVICE_S))]
        settings = LoadSettings(
            port=self.stack.brokers[REGION].port,
            certificates=device_certificates(self.stack.authority, self.stack.folder / name, TENANT, devices),
            batch_bytes=0,
            seconds=seconds,
            rate=fixes_per_s / RECORDS_PER_BATCH,
            name=name,
            tenant=TENANT,
            records=RECORDS_PER_BATCH,
        )
        return running_load(self.stack.folder, settings, "benchmarks.alerts.servers")


@contextmanager
def alert_servers(folder: Path, processes: int, timed: int) -> Iterator[AlertServers]:
    """All runs, the fences are in force, the partitions are taken, and the link to the centre is slow."""
    say("starting clusters eu and hq, the region's broker")
    with measured_stack(folder, _TOPOLOGY, 512, 384) as stack:
        operator = stack_operator(stack.folder)
        versions = [make_version("fence", one) for one in features(timed)]
        url, signing = stack.pulsar[REGION].service_url, Signing(operator.key, "a benchmark")
        publish([url], versions, stack.access(), signing=signing)
        stack.links[f"{REGION}->{CENTRE}"].delay(ADDED_DELAY_S)
        say(f"{len(versions):,} fences published; starting the gateway and {processes} alert process(es)")
        port = PortBook(stack.folder / "gateways.json").port(REGION)
        # TLS and tokens, and no registry: insecure allows that alone here.
        text = "insecure = true\n" + gateway_settings(stack, REGION, port)
        stack.add(gateway_process(stack, REGION, port, text))
        alerts = [alert_process(stack, REGION, number) for number in range(1, processes + 1)]
        for one in alerts:
            _put_first(stack.add(one).pid)
        servers = AlertServers(stack, alerts)
        _wait_until_taken(servers)
        yield servers


def _wait_until_taken(servers: AlertServers) -> None:
    """Returns once the partitions are shared and every process knows all fences."""
    count = len(servers.processes)

    def found() -> list[AlertsStatus]:
        return [servers.status(number) for number in range(1, count + 1)]

    wait_until(
        lambda: all(one.healthy and len(one.partitions_held) == 2 // count for one in found()),
        _WITHIN_S,
        said=lambda: f"the partitions are not shared: {found()}",
        every_s=0.2,
    )


def _put_first(pid: int | None) -> None:
    """As `CPUWeight=` of `deploy/systemd/fleet-alerts.service` does."""
    assert pid is not None
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(ALERTS_NICE)


_OPERATION_S = 30
Fix = tuple[str, int]
"""A device and the seq of one of its records."""


class AlertReader:
    """Reads the alerts that a cluster gets from now on. `arrivals`: each, and when it came (seconds since 1970)."""

    def __init__(self, stack: LocalStack, cluster: str) -> None:
        self.arrivals: list[tuple[float, Alert]] = []
        self._client = open_pulsar_client(stack.pulsar[cluster].service_url, stack.access(), timeout_s=_OPERATION_S)
        self._client.create_reader(ALERTS, pulsar.MessageId.latest, reader_listener=self._on_message)

    def close(self) -> None:
        with suppress(pulsar.PulsarException):
            self._client.close()

    @property
    def ids(self) -> set[str]:
        return {alert.id for _, alert in self.arrivals}

    @property
    def first_s(self) -> dict[Fix, float]:
        found: dict[Fix, float] = {}
        for at_s, alert in self.arrivals:
            found.setdefault((alert.device, alert.seq), at_s)
        return found

    def _on_message(self, _: Any, message: Any) -> None:
        at_s = time.time()
        self.arrivals.append((at_s, decode_alert(message.data())))


_READ_MS = 10_000


class Undisturbed(NamedTuple):
    """The ids of all events, and in which partition each device is."""

    ids: set[str]
    partition_of: dict[str, str]


def undisturbed(stack: LocalStack, timed: int) -> Undisturbed:
    """What one evaluation finds in the whole topic."""
    report = fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": features(timed)}))
    rules = AlertRules(FenceSet(report.fences), GateSet(report.gates), ReportedTracks(), PublishedEventSettings())
    ids: set[str] = set()
    partition_of: dict[str, str] = {}
    url, access = stack.pulsar[REGION].service_url, stack.access()
    with closing(open_pulsar_client(url, access, timeout_s=_OPERATION_S)) as client:
        for partition in client.get_topic_partitions(BATCHES):
            live = LiveEvents(rules)
            for part in parts_of(_read(client, partition)):
                partition_of.update((batch[1].header.device, partition) for batch in part.batches)
                columns = FixColumns.of(part.batches)
                ids.update(one.id for one in live.take(columns, part.messages[-1].publish_timestamp()))
    return Undisturbed(ids, partition_of)


def _read(client: Any, partition: str) -> Iterator[tuple[Any, ReadBatch]]:
    reader, unsealer = client.create_reader(partition, pulsar.MessageId.earliest), Unsealer.of_folder(None)
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=_READ_MS)
        batch = read_batch(message.data(), message.properties(), tenants=frozenset({TENANT}), unsealer=unsealer)
        yield message, (*batch, message.publish_timestamp())


def settled(servers: AlertServers, timed: int, *readers: AlertReader, within_s: float = 45.0) -> Undisturbed:
    """The same, once the readers have as much or some time is over."""
    time.sleep(2.0)
    found, ends = undisturbed(servers.stack, timed), time.monotonic() + within_s
    while any(one.ids != found.ids for one in readers) and time.monotonic() < ends:
        time.sleep(1.0)
        # on a busy machine an agent may have sent its last fix only now
        if not all(one.ids <= found.ids for one in readers):
            found = undisturbed(servers.stack, timed)
    return found


def load_batches(began_us: int, settings: LoadSettings, number: int) -> list[bytes]:
    """The batches of a device for the whole of the load, from a moment on (microseconds since 1970)."""
    name = device_name(settings.name, number)
    topic = device_topic(settings.tenant, name, DeviceChannel.BATCH).encode()
    period_s, made = len(settings.certificates) / settings.rate, []
    for turn in range(math.ceil(settings.seconds / period_s) + 1):
        first = turn * settings.records + 1
        records = []
        for seq in range(first, first + settings.records):
            at_s = seq * period_s / settings.records
            latitude, longitude = on_track(number, at_s)
            body = Position(latitude=latitude, longitude=longitude, accuracy_m=4.0)
            records.append(Record(seq, began_us + round(at_s * 1e6), body))
        made.append(publish_packet(topic, turn % 0xFFFF + 1, encode(Batch(name, 7, records[-1].seq, tuple(records)))))
    return made


if __name__ == "__main__":
    asked = settings_of_load()
    # the first batch is of the past by then: a fix ahead of the region's clock would be passed over
    start_us = time.time_ns() // 1000 - round(1e6 * len(asked.certificates) / asked.rate)
    run_load(asked, partial(load_batches, start_us))
