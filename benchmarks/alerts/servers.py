"""Region and centre of the benchmark on real servers: brokers, Pulsar with replication, a gateway, alert processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from cryptography.x509 import random_serial_number

from benchmarks.alerts.streets import features
from benchmarks.gateway.device_load import LoadSettings, device_name
from cloud_jobs.reference.files import Signing, make_version, publish
from deploy.local import (
    DaemonProcess,
    LocalStack,
    PortBook,
    PulsarSettings,
    StackSettings,
    http_health,
    stack_operator,
)
from deploy.local.stack_settings import alert_process, gateway_settings
from gateway.alerts.config import AlertSettings
from gateway.alerts.status import AlertsStatus, read_alerts_status
from waybill.identity.authority import KeyPair, issue_device, make_request
from waybill.settings import load

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
[namespaces."{tenant}/telemetry-{region}".topics.batches]
partitions = 2
[namespaces."{tenant}/telemetry-{region}".topics.refused]
[namespaces."{tenant}/alerts-{region}"]
retention = { minutes = 600, size_mb = 256 }
[namespaces."{tenant}/alerts-{region}".topics.alerts]
[namespaces."{tenant}/alerts-{region}".topics.processes]
[namespaces."fleet/reference"]
clusters = "all"
retention = { minutes = -1, size_mb = -1 }
[namespaces."fleet/reference".topics.fences]
[namespaces."fleet/reference".topics.tariffs]
[namespaces."fleet/reference".topics.accounts]
[namespaces."fleet/reference".topics.legal-entities]
[namespaces."fleet/reference".topics.exchange-rates]
[namespaces."fleet/reference".topics.alert-rules]
[namespaces."fleet/reference".topics.revocation-lists]
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
        """Of an alert process, from 1 on. Raises NoAnswer."""
        config = self.stack.folder / f"alerts-{REGION}-alerts-{number}" / "alerts.toml"
        return read_alerts_status(load(AlertSettings, config).status)

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the servers by their names."""
        return {server.name: server.pid for server in self.stack.servers if server.pid is not None}

    @contextmanager
    def load(self, fixes_per_s: int, seconds: float, name: str = "load") -> Iterator[subprocess.Popen[str]]:
        """So many fixes a second for so long. It has begun when this gives the process, whose last line is a result."""
        devices = max(1, fixes_per_s // FIXES_PER_DEVICE_S)
        settings = LoadSettings(
            port=self.stack.brokers[REGION].port,
            certificates=_certificates(self.stack, [device_name(name, number) for number in range(devices)]),
            batch_bytes=0,
            seconds=seconds,
            rate=fixes_per_s / RECORDS_PER_BATCH,
            name=name,
            tenant=TENANT,
            records=RECORDS_PER_BATCH,
        )
        file = self.stack.folder / f"{name}.json"
        file.write_text(json.dumps(asdict(settings)))
        command = [sys.executable, "-m", "benchmarks.alerts.fleet_load", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready", "the load did not begin"
            try:
                yield process
            finally:
                process.terminate()


def _certificates(stack: LocalStack, devices: list[str]) -> list[tuple[str, str, str]]:
    """CA, certificate and key of each device of the load. They have one key: to make hundreds takes a while."""
    assert stack.authority is not None
    region, key, folder = stack.authority.region(REGION).authority, KeyPair.generate(), stack.folder / "load"
    folder.mkdir(exist_ok=True)
    made = []
    for device in devices:
        issued = issue_device(
            region,
            make_request(key, f"{TENANT}/{device}"),
            TENANT,
            device,
            now=datetime.now(UTC),
            serial=random_serial_number(),
            lifetime=timedelta(days=1),
        )
        # Not durably, as `AuthorityFolder` would: syncing hundreds of files takes longer than all else.
        file = folder / f"{device}.pem"
        file.write_bytes(issued.chain_pem + key.private_pem())
        made.append((str(stack.authority.file), str(file), str(file)))
    return made


@contextmanager
def alert_servers(folder: Path, processes: int, timed: int) -> Iterator[AlertServers]:
    """Everything up, the fences in force, the partitions taken, and the link to the centre slow."""
    (folder / "topology.toml").write_text(_TOPOLOGY)
    settings = StackSettings(pulsar=PulsarSettings(heap_mb=512, full_compiler=True))
    say("starting clusters eu and hq, the region's broker")
    with LocalStack(folder / "stack", topology=folder / "topology.toml", settings=settings) as stack:
        operator = stack_operator(stack.folder)
        versions = [make_version("fence", one) for one in features(timed)]
        publish(
            [stack.pulsar[REGION].service_url], versions, stack.access(), signing=Signing(operator.key, "a benchmark")
        )
        stack.links[f"{REGION}->{CENTRE}"].delay(ADDED_DELAY_S)
        say(f"{len(versions):,} fences published; starting the gateway and {processes} alert process(es)")
        stack.add(_gateway(stack))
        alerts = [alert_process(stack, REGION, number) for number in range(1, processes + 1)]
        for one in alerts:
            stack.add(one)
        for one in alerts:
            _put_first(one.pid)
        servers = AlertServers(stack, alerts)
        _wait_until_taken(servers)
        yield servers


def _wait_until_taken(servers: AlertServers) -> None:
    """Returns once the partitions are shared and every process knows all fences."""
    ends = time.monotonic() + _WITHIN_S
    each = 2 // len(servers.processes)
    while time.monotonic() < ends:
        found = [servers.status(number) for number in range(1, len(servers.processes) + 1)]
        if all(one.healthy and len(one.partitions_held) == each for one in found):
            return
        time.sleep(0.2)
    raise TimeoutError(f"the partitions are not shared after {_WITHIN_S:.0f} s: {found}")


def _put_first(pid: int | None) -> None:
    """As `CPUWeight=` of `deploy/systemd/fleet-alerts.service` does: here every daemon has a session of its own."""
    assert pid is not None
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(ALERTS_NICE)


def _gateway(stack: LocalStack) -> DaemonProcess:
    port = PortBook(stack.folder / "gateways.json").port(REGION)
    folder = stack.folder / "gateway"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "gateway.toml"
    # TLS and tokens, and no registry: insecure allows that alone here.
    config.write_text("insecure = true\n" + gateway_settings(stack, REGION, port))
    return DaemonProcess.python(
        "gateway",
        "gateway",
        ["run", "--config", str(config)],
        folder,
        healthy_when=http_health(f"http://127.0.0.1:{port}/health"),
    )
