"""What one device with a good certificate can do to its region's broker, which runs as in production."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gateway.access.broker import BrokerFiles
from gateway.access.broker_log import BrokerLogs, RefusedConnection
from gateway.access.config import AccessSettings
from tests.system.access_region import AccessRegion, has_ended, new_root
from tests.waiting import wait_until
from waybill.mqtt.broker_log import MAX_SUBSCRIPTIONS
from waybill.record import DeviceChannel, device_topic
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

MAX_BATCH_BYTES = 1 << 20
_PUBLISH_QOS_1, _PUBLISH_QOS_2, _SUBSCRIBE, _DISCONNECT = 0x32, 0x34, 0x82, b"\xe0\x00"


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def packet(kind: int, body: bytes) -> bytes:
    length, left = b"", len(body)
    while True:
        left, digit = left >> 7, left & 127
        length += bytes([digit | (128 if left else 0)])
        if not left:
            return bytes([kind]) + length + body


def publish(kind: int, number: int, device: str, payload: bytes) -> bytes:
    return packet(
        kind, text(device_topic("acme", device, DeviceChannel.BATCH)) + struct.pack(">HB", number, 0) + payload
    )


class Region:
    """A real broker, and the parts of the access daemon that look after it."""

    def __init__(self, folder: Path) -> None:
        self.region = AccessRegion("eu", folder / "eu", new_root(folder / "root"), "pulsar://127.0.0.1:1")
        self.region.start_broker()
        self.settings = load(AccessSettings, self.region.config)
        self.files = BrokerFiles(self.settings.broker, "eu", self.settings.gateways)
        self.logs = BrokerLogs(self.settings, self.files.open_guard())

    @property
    def memory_mb(self) -> int:
        assert self.region.broker is not None
        lines = Path(f"/proc/{self.region.broker.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10

    @property
    def lives(self) -> bool:
        assert self.region.broker is not None
        return self.region.broker.poll() is None

    def connect(self, device: str, *, expiry_s: int = 0) -> ssl.SSLSocket:
        context = self.region.certificate("acme", device)
        plain = socket.create_connection(("127.0.0.1", self.region.port), timeout=10)
        session = context.wrap_socket(plain, server_hostname="127.0.0.1")
        properties = struct.pack(">BBI", 5, 0x11, expiry_s)
        session.sendall(packet(0x10, text("MQTT") + struct.pack(">BBH", 5, 2, 60) + properties + text("x")))
        assert session.recv(200)[0] == 0x20
        return session

    def refused(self, reason: RefusedConnection) -> int:
        self.logs.end_sessions()
        return self.logs.connections_refused["devices"].get(reason, 0)

    def reload(self) -> None:
        """As the access daemon does it."""
        self.logs.end_sessions()
        self.files.reload()
        self.files.open_guard().await_reload()

    def assert_takes_a_batch(self) -> None:
        """The largest batch that the wire has arrives."""
        with closing(self.connect("good")) as session:
            session.sendall(publish(_PUBLISH_QOS_1, 1, "good", os.urandom(MAX_BATCH_BYTES)))
            assert session.recv(10)[0] == 0x40


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with pytest.MonkeyPatch.context() as environment:
        # What Mosquitto frees is overwritten: it ends at once by what it still uses.
        environment.setenv("MALLOC_PERTURB_", "165")
        made = Region(tmp_path_factory.mktemp("region"))
    yield made
    made.region.stop()


@pytest.mark.nightly
def test_messages_that_a_device_never_releases_take_no_memory(region: Region) -> None:
    before_mb = region.memory_mb
    session = region.connect("hoarder")
    with suppress(OSError):
        for number in range(1, 61):
            session.sendall(publish(_PUBLISH_QOS_2, number, "hoarder", os.urandom(MAX_BATCH_BYTES)))
    assert has_ended(session)
    assert region.memory_mb < before_mb + 20
    region.assert_takes_a_batch()


@pytest.mark.nightly
def test_a_packet_that_is_larger_than_any_batch_ends_its_connection(region: Region) -> None:
    session = region.connect("large")
    with suppress(OSError):
        session.sendall(publish(_PUBLISH_QOS_1, 1, "large", b"x" * (3 << 20)))
    assert has_ended(session)
    region.assert_takes_a_batch()


@pytest.mark.nightly
def test_the_session_of_a_device_with_too_many_subscriptions_ends_and_no_topic_is_in_the_log(region: Region) -> None:
    modest, greedy = region.connect("modest"), region.connect("greedy")
    for session, count in ((modest, MAX_SUBSCRIPTIONS), (greedy, 20_000)):
        topics = b"".join(text(f"secret/{number}") + b"\1" for number in range(count))
        session.sendall(packet(_SUBSCRIBE, b"\0\1\0" + topics))
        assert session.recv(1) == b"\x90"
    wait_until(lambda: region.refused(RefusedConnection.SUBSCRIPTIONS) >= 20_000 - MAX_SUBSCRIPTIONS, 20)
    assert has_ended(greedy)
    modest.sendall(publish(_PUBLISH_QOS_1, 2, "modest", b"x"))
    modest.close()
    assert "secret" not in region.region.log_file.read_text()
    region.assert_takes_a_batch()


@pytest.mark.nightly
def test_the_broker_outlives_devices_that_leave_sessions_behind(region: Region) -> None:
    before, leavings = region.refused(RefusedConnection.KEPT_SESSION), 0
    for _ in range(3):
        for device in ("sleeper", "napper"):
            with closing(region.connect(device, expiry_s=60)) as session:
                session.sendall(_DISCONNECT)
                leavings += 1
        wait_until(lambda: region.refused(RefusedConnection.KEPT_SESSION) - before == leavings, 20)  # noqa: B023
        region.reload()
        region.assert_takes_a_batch()
    # Once a second the broker looks through the sessions that expire.
    next_s = time.monotonic() + 2.2
    wait_until(lambda: time.monotonic() > next_s or not region.lives, 20)
    assert region.lives
    region.assert_takes_a_batch()
