"""From the publication of a revocation to the end of the device's session, beside thousands of other sessions.

A real Pulsar, a real Mosquitto with mutual TLS, and the access daemon, on this machine. `python -m
benchmarks.gateway.revocation [DEVICES]`.
"""

from __future__ import annotations

import resource
import select
import socket
import ssl
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography import x509

from deploy.local import PulsarCluster
from identity import issue_device, make_request
from identity.registry import DeviceChange, DeviceEntry, expect, revoke
from identity.registry_publisher import RegistryPublisher
from runtime.pulsar_client import PulsarAccess
from tests.system.access_region import LIFE, AccessRegion, new_root
from tests.waiting import wait_until

SINGLE, BURST = 200, 1000
_TENANT = "acme"


def main(devices: int = 10_000) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="revocation-") as folder:
            _measure(Path(folder), devices)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure(folder: Path, devices: int) -> None:
    cluster = PulsarCluster("eu", folder / "pulsar")
    region: AccessRegion | None = None
    try:
        cluster.start()
        cluster.wait(180)
        _namespaces(cluster.admin_url)
        (folder / "eu").mkdir()
        region = AccessRegion("eu", folder / "eu", new_root(folder / "root"), cluster.service_url)
        region.start_broker()
        region.start_daemon()
        began = time.monotonic()
        measured = min(SINGLE + BURST, devices)
        sessions = [_session(region, f"d-{number}", is_listed=number < measured) for number in range(devices)]
        print(f"{devices} sessions with mutual TLS in {time.monotonic() - began:.0f} s", flush=True)
        with RegistryPublisher(cluster.service_url, PulsarAccess()) as publisher:
            publisher.publish(_known("nobody"))
            single = [_revoke_one(publisher, f"d-{number}", sessions[number]) for number in range(measured // 6)]
            _print("one at a time", single)
            burst = _revoke_all(publisher, {f"d-{n}": sessions[n] for n in range(measured // 6, measured)})
            _print(f"{len(burst)} at once, each from its own publication", burst)
        status = region.status()
        assert status is not None
        print(f"reloads of the broker {status.reloads}, sessions ended {status.sessions_ended}")
        assert sorted(single)[int(len(single) * 0.99)] < 1, "a revocation is to end a session within a second"
    finally:
        if region is not None:
            region.stop()
        cluster.stop()


def _namespaces(admin_url: str) -> None:
    admin = f"{admin_url}/admin/v2"
    wait_until(lambda: "eu" in httpx.get(f"{admin}/clusters").json(), 20)
    httpx.put(f"{admin}/tenants/fleet", json={"allowedClusters": ["eu"]}).raise_for_status()
    retention = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    for namespace in ("reference", "access"):
        httpx.put(f"{admin}/namespaces/fleet/{namespace}", json=retention).raise_for_status()


def _session(region: AccessRegion, device: str, *, is_listed: bool) -> socket.socket:
    """A device's session; one that `is_listed` can be revoked by its serial number, as it is among the issued."""
    key, now = region.device_key, datetime.now(UTC)
    request = make_request(key, f"{_TENANT}/{device}")
    if is_listed:
        issued = region.authority.device(request, _TENANT, device, now=now, lifetime=LIFE)
    else:
        serial = x509.random_serial_number()
        authority = region.authority.authority
        issued = issue_device(authority, request, _TENANT, device, now=now, serial=serial, lifetime=LIFE)
    # Not durably: syncing the files of thousands of devices took longer than all else here.
    certificate = region.folder / "beside.pem"
    certificate.write_bytes(issued.chain_pem + key.private_pem())
    context = ssl.create_default_context(cadata=region.authority.root_pem.decode())
    context.load_cert_chain(str(certificate))
    return region.connect(context)


def _known(device: str) -> DeviceEntry:
    return expect(_TENANT, device, region="eu", claim=None, change=_change())


def _change() -> DeviceChange:
    return DeviceChange(datetime.now(UTC), "benchmark", "measured")


def _revoke_one(publisher: RegistryPublisher, device: str, session: socket.socket) -> float:
    entry = revoke(_known(device), _change())
    began = time.monotonic()
    publisher.publish(entry)
    _wait_for_end(session)
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


def _wait_for_end(session: socket.socket) -> None:
    session.settimeout(30)
    try:
        session.recv(100)
    except OSError:
        return


def _print(what: str, took: list[float]) -> None:
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(f"{what}: {len(took)}, p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {took[-1] * 1000:.0f} ms")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
