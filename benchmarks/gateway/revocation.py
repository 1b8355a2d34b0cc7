"""From the publication of a revocation to the end of the device's session, beside thousands of other sessions.

A region with all that guards a real one (`servers`), and a gateway under half of its load, on this machine.
`python -m benchmarks.gateway.revocation [DEVICES]`.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509

from benchmarks.gateway.device_load import LoadSettings, device_name
from benchmarks.gateway.servers import REGION, MeasuredRegion, changed_now, known_device, region
from benchmarks.harness import Target, are_met
from deploy.demo.processes import open_session
from tests.system.access_region import has_ended
from waybill.identity.authority import KeyPair, issue_device, make_request
from waybill.identity.registry import revoke

# Thousands of devices with a session each: their certificates, and their connections to a region's broker.

TENANT = "acme"
LIFE = timedelta(days=30)
_AT_ONCE = 4
"""Handshakes under way: the broker has one thread, and one of ours does not keep it busy."""
_TIMEOUT_S = 30.0


def credentials_file(place: MeasuredRegion, key: KeyPair, device: str) -> Path:
    """A device's certificate and key in one file; the certificate is among those that the region's authority issued."""
    authority = place.credentials.authority.region(REGION)
    issued = issue_device(
        authority.authority,
        make_request(key, f"{TENANT}/{device}"),
        TENANT,
        device,
        now=datetime.now(UTC),
        serial=x509.random_serial_number(),
        lifetime=LIFE,
    )
    # Not durably, as `AuthorityFolder.device` would: syncing thousands of files took longer than all else here.
    (authority.folder / "issued" / f"{issued.serial:040x}.pem").write_bytes(issued.chain_pem)
    file = place.folder / f"{device}.pem"
    file.write_bytes(issued.chain_pem + key.private_pem())
    return file


def open_sessions(place: MeasuredRegion, key: KeyPair, devices: Iterable[str]) -> dict[str, socket.socket]:
    """A session with mutual TLS for each device; all have one key, and a certificate each."""
    trusted = place.credentials.authority.file

    def session(device: str) -> tuple[str, socket.socket]:
        file = credentials_file(place, key, device)
        context = ssl.create_default_context(cafile=str(trusted))
        context.load_cert_chain(file)
        file.unlink()
        return device, open_session(place.mqtt.port, context, _TIMEOUT_S)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(pool.map(session, devices))


SINGLE, BURST = 200, 1000
LOADED_RATE, LOADED_DEVICES, LOADED_S = 3000.0, 200, 40.0
ASKED_S = 1.0
MOST_OF_LOAD = 0.95
"""Of the load that is named: with less, the figure beside it would be of another."""


def main(devices: int = 10_000) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory(prefix="revocation-") as folder:
            return _measure(Path(folder), devices)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure(folder: Path, devices: int) -> bool:
    with region(folder) as place:
        names, key = [f"d-{number}" for number in range(devices)], KeyPair.generate()
        began = time.monotonic()
        # Every device is in the registry, as in a region that is in use.
        known = threading.Thread(target=place.expect, args=(TENANT, names))
        known.start()
        sessions = open_sessions(place, key, names)
        print(f"{devices} sessions with mutual TLS in {time.monotonic() - began:.0f} s", flush=True)
        known.join()
        print(f"and as many entries in the registry in {time.monotonic() - began:.0f} s", flush=True)
        with _half_load(place, key) as load:
            single = [_revoke_one(place, *sessions.popitem()) for _ in range(min(SINGLE, devices // 10))]
        _print(f"one at a time, beside {LOADED_RATE:.0f} batches a second", single)
        idle = [_revoke_one(place, *sessions.popitem()) for _ in range(min(SINGLE, devices // 10))]
        _print("one at a time, nothing else", idle)
        burst = _revoke_all(place, dict(sessions.popitem() for _ in range(min(BURST, devices // 10))))
        _print(f"{len(burst)} at once, each from its own publication", burst)
        print(f"reloads of the broker {_reloads(place)}; {len(sessions)} sessions left")
        assert not _ended(sessions.values()), "a session ended that nobody revoked"
        return are_met(
            [
                _target(f"revoked to disconnected, beside {load[0]:,.0f} batches a second, p99", single),
                _target("the same with nothing else, p99", idle),
                _target(f"{len(burst)} revocations at once, p99", burst),
                Target(
                    "batches a second beside them",
                    f">= {MOST_OF_LOAD * LOADED_RATE:,.0f}",
                    f"{load[0]:,.0f}",
                    load[0] >= MOST_OF_LOAD * LOADED_RATE,
                ),
            ]
        )


def _target(what: str, took: list[float]) -> Target:
    return Target(what, f"< {ASKED_S:.0f} s", f"{_p99(took) * 1000:.0f} ms", _p99(took) < ASKED_S)


def _reloads(place: MeasuredRegion) -> int:
    return int(httpx.get(place.guard.addresses()["status"], timeout=10).json()["reloads"])


@contextmanager
def _half_load(place: MeasuredRegion, key: KeyPair) -> Iterator[list[float]]:
    """A gateway, and devices that send to it; behind it the list has how many batches a second went."""
    rates: list[float] = []
    names = [device_name("load", number) for number in range(LOADED_DEVICES)]
    files = [str(credentials_file(place, key, name)) for name in names]
    with place.running(1):
        place.expect(TENANT, names)
        settings = LoadSettings(
            port=place.mqtt.port,
            certificates=[(str(place.credentials.authority.file), file, file) for file in files],
            batch_bytes=2 << 10,
            seconds=LOADED_S,
            rate=LOADED_RATE,
            name="load",
            tenant=TENANT,
        )
        file = place.folder / "load.json"
        file.write_text(json.dumps(asdict(settings)))
        command = [sys.executable, "-m", "benchmarks.gateway.device_load", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            assert load.stdout is not None
            assert load.stdout.readline().strip() == "ready"
            yield rates
            assert load.poll() is None, "the load ended before the revocations"
            answer = json.loads(load.stdout.readline())
        rates.append(answer["acknowledged"] / LOADED_S)
        print(f"the load: {rates[0]:,.0f} batches a second, p99 {answer['p99_ms']:.0f} ms")


def _revoke_one(place: MeasuredRegion, device: str, session: socket.socket) -> float:
    assert not _ended([session]), f"the session of {device} had ended before it was revoked"
    entry = revoke(known_device(TENANT, device), changed_now())
    began = time.monotonic()
    place.registry.publish(entry)
    assert has_ended(session), f"the session of {device} did not end"
    return time.monotonic() - began


def _revoke_all(place: MeasuredRegion, sessions: dict[str, socket.socket]) -> list[float]:
    began: dict[socket.socket, float] = {}

    def publish() -> None:
        for device, session in sessions.items():
            began[session] = time.monotonic()
            place.registry.publish(revoke(known_device(TENANT, device), changed_now()))

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
    sys.exit(0 if main(*(int(argument) for argument in sys.argv[1:2])) else 1)
