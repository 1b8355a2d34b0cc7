"""Who may take part in the demo: its vehicles are enrolled by one-time tokens, and one is locked out at the end."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from deploy.demo.errors import DemoError
from deploy.local import LocalStack, TlsFiles
from simulator.scenario import ScenarioVehicle
from waybill.daemon.durable_file import create_durably
from waybill.daemon.tls import tls_context
from waybill.identity.claims import TOKEN_LIFETIME, make_token
from waybill.identity.operator_settings import OPERATOR_SETTINGS, read_operator_settings
from waybill.identity.registry import Claim, DeviceChange, DeviceState, expect, revoke
from waybill.identity.registry_session import RegistrySession, exactly

__all__ = ["ExpectedDevice", "LockedOut", "enrolled", "expect_devices", "expect_vehicles", "lock_out"]

_CONFIRM_S, _END_S, _TRY_S = 30.0, 30.0, 5.0
_OPERATOR = "the-demo"


@dataclass(frozen=True, slots=True)
class LockedOut:
    """What became of a vehicle that was revoked. `after_s`: until its session ended; None: it did not."""

    device: str
    after_s: float | None
    refused_in: tuple[str, ...]
    regions: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether its session ended, and no region lets it in again."""
        return self.after_s is not None and self.refused_in == self.regions

    @property
    def found(self) -> str:
        """In words."""
        ended = "its session did not end" if self.after_s is None else f"ended after {self.after_s:.2f} s"
        return f"{self.device}: {ended}, refused in {' and '.join(self.refused_in) or 'no region'}"


class ExpectedDevice(NamedTuple):
    """A device that is to enrol: tenant and name, its region, and where its one-time token is written."""

    sender: tuple[str, str]
    region: str
    token_file: Path


def expect_vehicles(stack: LocalStack, vehicles: Iterable[ScenarioVehicle], token_file: Callable[[str], Path]) -> None:
    """Makes vehicles known to the registry, each with a token in a file. Raises IdentityError."""
    devices = [ExpectedDevice(one.sender, one.region, token_file(one.device)) for one in vehicles]
    expect_devices(stack, devices, "drives in the demo")


def expect_devices(stack: LocalStack, devices: Iterable[ExpectedDevice], reason: str) -> None:
    """Makes devices known to the registry. Raises IdentityError."""
    entries, now = [], datetime.now(UTC)
    change = DeviceChange(now, _OPERATOR, reason)
    for device in devices:
        token, file = make_token(), device.token_file
        file.parent.mkdir(parents=True, exist_ok=True)
        create_durably(file, token.text.get_secret_value().encode() + b"\n", mode=0o600)
        claim = Claim(id=token.id, password_hash=token.password_hash, until=now + TOKEN_LIFETIME)
        entries.append(expect(*device.sender, region=device.region, claim=claim, change=change))
    with _registry(stack) as registry:
        missing = registry.change({one.name: exactly(one) for one in entries}, _CONFIRM_S).missing
    if missing:
        raise DemoError(f"the access daemons of {', '.join(missing)} did not confirm the devices")


def enrolled(stack: LocalStack, names: Iterable[str], poll: Callable[[int], None], timeout_s: float) -> int:
    """How many of these devices have a certificate by the registry, once all have or the time is over."""
    wanted, ends = list(names), time.monotonic() + timeout_s
    with _registry(stack) as registry:
        while True:
            found = [one for one in map(registry.get, wanted) if one is not None]
            count = sum(one.state is DeviceState.ACTIVE and bool(one.certificates) for one in found)
            if count == len(wanted) or time.monotonic() > ends:
                return count
            poll(count)


def lock_out(stack: LocalStack, name: str, region: str, certificate: TlsFiles) -> LockedOut:
    """Connects as a device whose certificate somebody took, revokes it, and tries again in every region."""
    regions = tuple(sorted(stack.brokers))
    with (
        ThreadPoolExecutor(max_workers=1) as pool,
        _registry(stack) as registry,
        open_session(stack.brokers[region].port, tls_context(certificate)) as session,
    ):
        entry = registry.get(name)
        assert entry is not None, "it was enrolled"
        # A thread of its own: the end is noticed when it comes, whatever the publication still waits for.
        ended = pool.submit(_ended_s, session)
        began = time.monotonic()
        registry.change({name: exactly(revoke(entry, DeviceChange(datetime.now(UTC), _OPERATOR, "stolen")))})
        ended_s = ended.result()
        after_s = None if ended_s is None else ended_s - began
    refused = tuple(one for one in regions if _is_refused(stack.brokers[one].port, certificate))
    return LockedOut(name, after_s, refused, regions)


def _registry(stack: LocalStack) -> RegistrySession:
    return RegistrySession(read_operator_settings(stack.folder / OPERATOR_SETTINGS))


def open_session(port: int, context: ssl.SSLContext, timeout_s: float = _END_S) -> ssl.SSLSocket:
    """A session with a certificate: an MQTT 5 CONNECT and its CONNACK. Raises OSError where it is refused."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    # Nagle's algorithm would hold the CONNECT back until the handshake's last packet is acknowledged.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        session = context.wrap_socket(plain, server_hostname="127.0.0.1")
        body = b"\x00\x04MQTT\x05\x02" + struct.pack(">H", 600) + b"\x00\x00\x00"
        session.sendall(b"\x10" + bytes([len(body)]) + body)
        answer = session.recv(100)
    except OSError:
        plain.close()
        raise
    if len(answer) < 4 or answer[3]:
        session.close()
        raise ConnectionRefusedError(f"the broker answers {answer[:6]!r}")
    return session


def _ended_s(session: ssl.SSLSocket) -> float | None:
    """When the broker ended a session, by the monotonic clock; None: not within the time-out."""
    try:
        while session.recv(100):
            pass
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic()


def _is_refused(port: int, files: TlsFiles) -> bool:
    # What another region hears of comes over a link: it may be a moment later.
    ends = time.monotonic() + _TRY_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            open_session(port, tls_context(files)).close()
            time.sleep(0.1)
            continue
        return True
    return False
