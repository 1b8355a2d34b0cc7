"""From the publication of a revocation to the end of the device's session, beside thousands of other sessions.

A real Pulsar, a real Mosquitto with mutual TLS, the access daemon, and a gateway under half of its load, on this
machine. `python -m benchmarks.gateway.revocation [DEVICES]`.
"""

from __future__ import annotations

import json
import resource
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import httpx

from benchmarks.gateway.crowd import TENANT, credentials_file, open_sessions
from benchmarks.gateway.device_load import LoadSettings, device_name
from deploy.local import DaemonProcess, PulsarCluster, free_port, http_health
from identity import KeyPair, write_credentials
from identity.registry import DeviceChange, DeviceEntry, expect, revoke
from identity.registry_publisher import RegistryPublisher
from runtime.pulsar_client import PulsarAccess
from tests.system.access_region import LIFE, AccessRegion, has_ended, new_root
from tests.waiting import wait_until

SINGLE, BURST = 200, 1000
LOADED_RATE, LOADED_DEVICES, LOADED_S = 4000.0, 200, 40.0
ASKED_S = 1.0


def main(devices: int = 10_000) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="revocation-") as folder:
            _measure(Path(folder), devices)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure(folder: Path, devices: int) -> None:
    with _region(folder) as region, RegistryPublisher(region.service_url, PulsarAccess()) as publisher:
        names = [f"d-{number}" for number in range(devices)]
        began = time.monotonic()
        # Every device is in the registry, as in a region that is in use.
        known = threading.Thread(target=lambda: [publisher.publish(_known(name)) for name in names])
        known.start()
        sessions = open_sessions(region, names)
        print(f"{devices} sessions with mutual TLS in {time.monotonic() - began:.0f} s", flush=True)
        known.join()
        print(f"and as many entries in the registry in {time.monotonic() - began:.0f} s", flush=True)
        with _half_load(region, folder):
            single = [_revoke_one(publisher, *sessions.popitem()) for _ in range(min(SINGLE, devices // 10))]
        _print(f"one at a time, beside {LOADED_RATE:.0f} batches a second", single)
        idle = [_revoke_one(publisher, *sessions.popitem()) for _ in range(min(SINGLE, devices // 10))]
        _print("one at a time, nothing else", idle)
        burst = _revoke_all(publisher, dict(sessions.popitem() for _ in range(min(BURST, devices // 10))))
        _print(f"{len(burst)} at once, each from its own publication", burst)
        status = region.status()
        assert status is not None
        print(f"reloads of the broker {status.reloads}; {len(sessions)} sessions left")
        assert not _ended(sessions.values()), "a session ended that nobody revoked"
        assert max(_p99(single), _p99(idle)) < ASKED_S, "a revocation is to end a session within a second"


@contextmanager
def _region(folder: Path) -> Iterator[AccessRegion]:
    cluster = PulsarCluster("eu", folder / "pulsar")
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        cluster.wait(180)
        _namespaces(cluster.admin_url)
        (folder / "eu").mkdir()
        region = AccessRegion("eu", folder / "eu", new_root(folder / "root"), cluster.service_url)
        stack.callback(region.stop)
        region.start_broker()
        region.start_daemon()
        yield region


def _namespaces(admin_url: str) -> None:
    admin = f"{admin_url}/admin/v2"
    wait_until(lambda: "eu" in httpx.get(f"{admin}/clusters").json(), 20)
    httpx.put(f"{admin}/tenants/fleet", json={"allowedClusters": ["eu"]}).raise_for_status()
    retention = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    for namespace in ("reference", "access", "telemetry-eu"):
        httpx.put(f"{admin}/namespaces/fleet/{namespace}", json=retention).raise_for_status()
    for topic in ("batches", "refused"):
        httpx.put(f"{admin}/persistent/fleet/telemetry-eu/{topic}/partitions", json=2).raise_for_status()


@contextmanager
def _half_load(region: AccessRegion, folder: Path) -> Iterator[None]:
    """A gateway, and devices that send to it."""
    gateway = _gateway(region, folder)
    gateway.start()
    try:
        gateway.wait()
        files = [str(credentials_file(region, device_name("load", number))) for number in range(LOADED_DEVICES)]
        settings = LoadSettings(
            port=region.port,
            certificates=[(str(region.server_tls.ca), file, file) for file in files],
            batch_bytes=2 << 10,
            seconds=LOADED_S,
            rate=LOADED_RATE,
            name="load",
            tenant=TENANT,
        )
        file = folder / "load.json"
        file.write_text(json.dumps(asdict(settings)))
        command = [sys.executable, "-m", "benchmarks.gateway.device_load", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            assert load.stdout is not None
            assert load.stdout.readline().strip() == "ready"
            yield
            assert load.poll() is None, "the load ended before the revocations"
            answer = json.loads(load.stdout.readline())
        print(f"the load: {answer['acknowledged'] / LOADED_S:,.0f} batches a second, p99 {answer['p99_ms']:.0f} ms")
    finally:
        gateway.stop()


def _gateway(region: AccessRegion, folder: Path) -> DaemonProcess:
    key, now, port = KeyPair.generate(), datetime.now(UTC), free_port()
    issued = region.authority.client(key, "gateway@eu-1", now=now, lifetime=LIFE)
    files = write_credentials(
        folder / "gateway", root_pem=region.authority.root_pem, chain_pem=issued.chain_pem, key=key
    )
    share, config = folder / "share", folder / "gateway.toml"
    share.write_text(secrets.token_hex(16))
    config.write_text(f"""
        name = "eu-1"
        region = "eu"
        insecure = true  # Pulsar in plain text, and no registry: what is measured is the way to the broker
        [pulsar]
        service_url = "{region.service_url}"
        tenant = "fleet"
        [status]
        port = {port}
        [mqtt]
        host = "127.0.0.1"
        port = {region.port}
        share_file = "{share}"
        [mqtt.tls]
        ca = "{files.ca}"
        certificate = "{files.certificate}"
        key = "{files.key}"
        """)
    return DaemonProcess.python(
        "eu-1",
        "gateway",
        ["run", "--config", str(config)],
        folder / "gateway",
        env={"PYTHONPATH": str(Path.cwd())},
        healthy_when=http_health(f"http://127.0.0.1:{port}/health"),
    )


def _known(device: str) -> DeviceEntry:
    return expect(TENANT, device, region="eu", claim=None, change=_change())


def _change() -> DeviceChange:
    return DeviceChange(datetime.now(UTC), "benchmark", "measured")


def _revoke_one(publisher: RegistryPublisher, device: str, session: socket.socket) -> float:
    entry = revoke(_known(device), _change())
    began = time.monotonic()
    publisher.publish(entry)
    assert has_ended(session), f"the session of {device} did not end"
    return time.monotonic() - began


def _revoke_all(publisher: RegistryPublisher, sessions: dict[str, socket.socket]) -> list[float]:
    began: dict[socket.socket, float] = {}

    def publish() -> None:
        for device, session in sessions.items():
            began[session] = time.monotonic()
            publisher.publish(revoke(_known(device), _change()))

    took = []
    poll = select.poll()
    by_number = {session.fileno(): session for session in sessions.values()}
    for number in by_number:
        poll.register(number, select.POLLIN)
    threading.Thread(target=publish, daemon=True).start()
    deadline = time.monotonic() + 60
    while by_number and time.monotonic() < deadline:
        for number, _ in poll.poll(100):
            poll.unregister(number)
            took.append(time.monotonic() - began[by_number.pop(number)])
    assert not by_number, f"{len(by_number)} sessions did not end"
    return took


def _ended(sessions: Iterable[socket.socket]) -> int:
    poll = select.poll()
    for session in sessions:
        poll.register(session, select.POLLIN)
    return len(poll.poll(0))


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def _print(what: str, took: list[float]) -> None:
    p50, p99, longest = sorted(took)[len(took) // 2], _p99(took), max(took)
    print(
        f"{what}: {len(took)}, p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {longest * 1000:.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
