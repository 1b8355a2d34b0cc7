"""From the publication of a revocation to the end of the session, beside thousands of others and half a load."""

import resource
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx

from benchmarks.gateway.device_load import TENANT, result_of
from benchmarks.gateway.region import REGION, MeasuredRegion, known_device, region
from benchmarks.harness import Figure, benchmark_folder, limited, percentile, print_figures
from deploy.demo.processes import open_session
from tests.system.access_region import has_ended
from waybill.identity.registry import DeviceChange, DeviceEntry, revoke

DEVICES, SINGLE, BURST = 10_000, 200, 1000
LOADED_RATE, LOADED_DEVICES, LOADED_S = 3000.0, 200, 40.0
ASKED_S = 1.0
MOST_OF_LOAD = 0.95
"""Of the load that is named: with less, the figure beside it would be of another."""
_AT_ONCE = 4
"""Handshakes under way: the broker has one thread, and one of ours does not keep it busy."""
_TIMEOUT_S = 30.0


def open_sessions(place: MeasuredRegion, devices: list[str]) -> dict[str, socket.socket]:
    """A session with mutual TLS for each device."""

    def session(device: str, ca: str, certificate: str, key: str) -> tuple[str, socket.socket]:
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(certificate, key)
        return device, open_session(place.stack.brokers[REGION].port, context, _TIMEOUT_S)

    files = place.certificates(TENANT, devices)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(pool.map(lambda one: session(one[0], *one[1]), zip(devices, files, strict=True)))


def main() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with benchmark_folder("revocation") as folder, region(folder) as place:
            return print_figures("Revocations", _measure(place, DEVICES))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure(place: MeasuredRegion, devices: int) -> Iterator[Figure]:
    names, began = [f"d-{number}" for number in range(devices)], time.monotonic()
    # every device is in the registry, as in a region that is in use
    known = threading.Thread(target=place.expect, args=(TENANT, names))
    known.start()
    sessions = open_sessions(place, names)
    known.join()
    print(f"{devices} sessions with mutual TLS and entries in {time.monotonic() - began:.0f} s", flush=True)
    count = min(SINGLE, devices // 10)
    with _half_load(place) as rates:
        single = [_revoke_one(place, *sessions.popitem()) for _ in range(count)]
    idle = [_revoke_one(place, *sessions.popitem()) for _ in range(count)]
    burst = _revoke_all(place, dict(sessions.popitem() for _ in range(min(BURST, devices // 10))))
    status = httpx.get(place.stack.access_daemons[REGION].addresses()["status"], timeout=10).json()
    print(f"reloads of the broker {status['reloads']}; {len(sessions)} sessions left")
    assert not _ended(sessions.values()), "a session ended that nobody revoked"
    for what, took in (
        (f"beside {rates[0]:,.0f} batches a second", single),
        ("with nothing else", idle),
        (f"{len(burst)} at once, each from its own publication", burst),
    ):
        p50, p99 = (f"{percentile(took, share) * 1000:.0f} ms" for share in (0.5, 0.99))
        met = percentile(took, 0.99) < ASKED_S
        yield Figure(f"revoked to disconnected, {what}, p50 and p99", f"{p50}, {p99}", f"p99 < {ASKED_S:.0f} s", met)
    yield limited("batches a second beside them", rates[0], ">=", MOST_OF_LOAD * LOADED_RATE)


@contextmanager
def _half_load(place: MeasuredRegion) -> Iterator[list[float]]:
    """A gateway, and devices that send to it; behind it the list has how many batches a second went."""
    rates: list[float] = []
    with place.running(1):
        with place.load(TENANT, LOADED_DEVICES, LOADED_RATE, LOADED_S, batch_bytes=2 << 10) as load:
            yield rates
            assert load.poll() is None, "the load ended before the revocations"
            result = result_of(load)
        rates.append(result.acknowledged / LOADED_S)
        print(f"the load: {rates[0]:,.0f} batches a second, p99 {result.p99_ms:.0f} ms")


def _revoked(device: str) -> DeviceEntry:
    return revoke(known_device(TENANT, device), DeviceChange(datetime.now(UTC), "operator", "measured"))


def _revoke_one(place: MeasuredRegion, device: str, session: socket.socket) -> float:
    assert not _ended([session]), f"the session of {device} had ended before it was revoked"
    entry = _revoked(device)
    began = time.monotonic()
    place.registry.publish(entry)
    assert has_ended(session), f"the session of {device} did not end"
    return time.monotonic() - began


def _revoke_all(place: MeasuredRegion, sessions: dict[str, socket.socket]) -> list[float]:
    began: dict[socket.socket, float] = {}

    def publish() -> None:
        for device, session in sessions.items():
            began[session] = time.monotonic()
            place.registry.publish(_revoked(device))

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
