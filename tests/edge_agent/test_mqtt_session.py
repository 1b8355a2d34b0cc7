"""A connection to a broker that says what it likes: bounded, one kind of error, and never more than it asked for."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.errors import LinkClosed, LinkError
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.mqtt_session import MqttSession
from edge_agent.uplink.protocol import NoGateway, OutgoingBatch, UplinkEvent
from tests.edge_agent.makers import DEVICE, fill, open_buffer
from tests.edge_agent.scripted_region import Road, acks, drive
from tests.examples import examples
from tests.waiting import deadline_s
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MANY, RECEIVE_BYTES, TRUNCATED_BYTES, MqttMessage, MqttSessionOptions
from waybill.record import IntervalSet

CONNACK = b"\x20\x03\x00\x00\x00"


def connack(properties: bytes) -> bytes:
    return b"\x20" + bytes([3 + len(properties)]) + b"\x00\x00" + bytes([len(properties)]) + properties


class ScriptedBroker:
    """Answers CONNECT with `hello`, then does what `serve` does with the connection."""

    def __init__(self, hello: bytes, serve: Callable[[socket.socket], object] = lambda sock: None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._hello = hello
        self._serve = serve
        self.received = bytearray()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(5)
            sock.recv(4096)
            sock.sendall(self._hello)
            self._serve(sock)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)


@contextmanager
def broker(hello: bytes, serve: Callable[[socket.socket], object] = lambda sock: None) -> Iterator[ScriptedBroker]:
    it = ScriptedBroker(hello, serve)
    try:
        yield it
    finally:
        it.close()


def session(port: int, taken: list[MqttMessage], max_packet_bytes: int = 1 << 20) -> MqttSession:
    options = MqttSessionOptions(client_id="x", max_packet_bytes=max_packet_bytes)
    return MqttSession(BrokerSettings(port=port, connect_timeout_s=2), options, taken.append)


def poll_until_it_ends(it: MqttSession) -> None:
    deadline = deadline_s(5)
    try:
        while time.monotonic() < deadline:
            it.poll(0.2)
    except LinkError:
        return
    pytest.fail("the connection did not end")


@given(st.binary(max_size=300))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_bytes_a_broker_sends_the_only_error_is_a_lost_link(data: bytes) -> None:
    with broker(CONNACK, lambda sock: sock.sendall(data)) as it:
        link = session(it.port, [])
        with suppress(LinkError):
            link.open()
            poll_until_it_ends(link)
        link.close()


def test_messages_that_come_with_the_answer_to_connect_wait_until_the_caller_knows_that_the_session_is_resumed() -> (
    None
):
    resumed = b"\x20\x03\x01\x00\x00"
    with broker(resumed + b"\x32\x08\x00\x01t\x00\x07\x00ab", lambda sock: sock.recv(4096)) as it:
        taken: list[MqttMessage] = []
        link = session(it.port, taken)
        link.open()
        assert link.session_present
        assert taken == []
        with suppress(LinkError):
            link.poll(2)
        assert [message.mid for message in taken] == [7]
        link.close()


def test_of_a_message_that_is_too_large_the_beginning_and_the_size_are_kept_and_the_next_one_is_whole() -> None:
    size, small = 40 << 20, b"\x32\x09\x00\x01t\x00\x06\x00abc"
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])

    def serve(sock: socket.socket) -> None:
        sock.sendall(b"\x32" + length + b"\x00\x01t\x00\x05\x00")
        for _ in range(size >> 20):
            sock.sendall(bytes((1 << 20) if _ else (1 << 20) - 6))
        sock.sendall(small)
        sock.recv(100)

    taken: list[MqttMessage] = []
    with broker(CONNACK, serve) as it:
        options = MqttSessionOptions(client_id="x", max_packet_bytes=1 << 16, truncates_larger=True)
        link = MqttSession(BrokerSettings(port=it.port, connect_timeout_s=2), options, taken.append)
        link.open()
        kept, deadline = 0, deadline_s(10)
        while len(taken) < 2 and time.monotonic() < deadline:
            link.poll(0.2)
            kept = max(kept, len(link._client._in_packet["packet"]))
        link.close()
    large, after = taken
    assert (large.mid, large.topic, len(large.payload) + large.missing) == (5, "t", size - 6)
    assert (after.mid, after.payload, after.missing) == (6, b"abc", 0)
    assert max(kept, len(large.payload)) <= TRUNCATED_BYTES + RECEIVE_BYTES


def test_a_batch_that_reached_nobody_is_reported_and_a_result_that_reached_nobody_is_not() -> None:
    def serve(sock: socket.socket) -> None:
        sock.settimeout(5)
        rest, answered = b"", 0
        while answered < 2:
            rest += sock.recv(4096)
            while len(rest) >= 2 and len(rest) >= 2 + rest[1]:
                packet, rest = rest[: 2 + rest[1]], rest[2 + rest[1] :]
                if packet[0] >> 4 == 3:
                    at = 4 + struct.unpack_from(">H", packet, 2)[0]
                    sock.sendall(b"\x40\x03" + packet[at : at + 2] + b"\x10")
                    answered += 1
        sock.recv(100)

    with broker(CONNACK, serve) as it:
        uplink = MqttUplink(DeviceSettings(id="d"), UplinkSettings(region="eu", host="127.0.0.1", port=it.port))
        uplink.open()
        uplink.report(b"{}")
        uplink.send(OutgoingBatch(7, IntervalSet([(1, 1)]), b"x"))
        events: list[UplinkEvent] = []
        deadline = deadline_s(5)
        while not events and time.monotonic() < deadline:
            events = uplink.poll(0.2)
        assert events == [NoGateway()]
        uplink.close()


def test_a_message_of_qos_0_is_taken_and_not_acknowledged_and_of_qos_2_ends_the_connection() -> None:
    after_qos_0 = bytearray()

    def serve(sock: socket.socket) -> None:
        sock.sendall(b"\x31\x06\x00\x01t\x00hi")
        sock.settimeout(0.5)
        with suppress(TimeoutError):
            after_qos_0.extend(sock.recv(100))
        sock.sendall(b"\x34\x08\x00\x01t\x00\x05\x00hi")
        sock.settimeout(5)
        sock.recv(100)

    taken: list[MqttMessage] = []
    with broker(CONNACK, serve) as it:
        link = session(it.port, taken)
        link.open()
        while not taken:
            link.poll(0.2)
        link.acknowledge(taken[0].mid)
        poll_until_it_ends(link)
        link.close()
    assert (taken[0].mid, len(taken), bytes(after_qos_0)) == (0, 1, b"")


def test_no_more_is_published_than_the_broker_takes_at_once_and_the_rest_follows() -> None:
    most_unanswered = 0
    answered = 0

    def serve(sock: socket.socket) -> None:
        nonlocal most_unanswered, answered
        rest, open_mids = b"", list[int]()
        while answered < 20:
            sock.settimeout(0.03)
            try:
                rest += sock.recv(4096)
            except TimeoutError:
                mid = open_mids.pop(0)
                sock.sendall(b"\x40\x02" + struct.pack(">H", mid))
                answered += 1
                continue
            while len(rest) >= 2 and len(rest) >= 2 + rest[1]:
                length = rest[1]
                open_mids.append(struct.unpack_from(">H", rest, 5)[0])
                rest = rest[2 + length :]
            most_unanswered = max(most_unanswered, len(open_mids))

    with broker(connack(b"\x21\x00\x04"), serve) as it:
        link = session(it.port, [])
        link.open()
        for _ in range(20):
            link.publish("t", b"x")
        deadline, published = deadline_s(10), 0
        while published < 20 and time.monotonic() < deadline:
            link.poll(0.1)
            published += len(link.take_publish_results())
        link.close()
    assert (most_unanswered, published) == (4, 20)


class Shared(Road):
    """A region where another agent of the same id takes the session over half a second after each connection."""

    def __init__(self, until_s: float, alone_from_s: float) -> None:
        super().__init__(self.speak, until_s)
        self.ended_s: list[float] = []
        self.connected_s: float | None = None
        self.alone_from_s = alone_from_s
        self.states: list[tuple[float, bool]] = []

    def speak(self, now_s: float, _region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        assert self.drainer
        self.states.append((now_s, self.drainer.regions.takeovers.is_suspected))
        self.connected_s = now_s if self.connected_s is None else self.connected_s
        if now_s - self.connected_s >= 0.5 and now_s < self.alone_from_s and not new:
            self.ended_s.append(now_s)
            self.connected_s = None
            raise LinkClosed("the broker closed the connection")
        return acks(new)


def test_an_agent_whose_session_is_taken_over_connects_ever_more_seldom_though_it_is_acknowledged_each_time(
    tmp_path: Path,
) -> None:
    buffer = open_buffer(tmp_path)
    for number in range(1, 201):
        fill(buffer, [number])
    road = Shared(until_s=7_500, alone_from_s=3_600)
    with capture_logs() as lines:
        drive(buffer, road, drain={"batch_records": 1, "merge_below_records": 0, "window": 2})
    assert 60 <= len(road.ended_s) <= 200, "an hour of waits of up to a minute"
    lost = [line["error"] for line in lines if line["event"] == "uplink lost"]
    assert not any("another agent" in one for one in lost[: MANY - 1])
    assert all(f"another agent has the id '{DEVICE}'" in one for one in lost[MANY - 1 :])
    assert [are_many for now_s, are_many in road.states if now_s > 3_600 + 60 + 120] == [False] * len(
        [now_s for now_s, _ in road.states if now_s > 3_600 + 60 + 120]
    )
    assert road.states[-1][0] > 7_000


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (4, "one-time token"),
        (5, "one-time token"),
        (0x86, "one-time token"),
        (0x87, "one-time token"),
        (1, "MQTT 5"),
        (0x84, "MQTT 5"),
        (0x88, "busy"),
        (0x8A, "banned"),
    ],
)
def test_a_refused_connection_is_said_in_words_and_with_what_to_do(code: int, said: str) -> None:
    with broker(bytes([0x20, 3, 0, code, 0])) as it:
        link = session(it.port, [])
        with pytest.raises(LinkError) as caught:
            link.open()
        link.close()
    assert said in str(caught.value)
    assert "alformed" not in str(caught.value)


@pytest.mark.parametrize(("reason", "kept"), [(0x00, set()), (0x11, set()), (0x87, {"former/#"})])
def test_a_former_subscription_ends_with_the_brokers_answer_and_a_refusal_is_no_end_of_the_connection(
    reason: int, kept: set[str]
) -> None:
    def serve(sock: socket.socket) -> None:
        packet = sock.recv(4096)
        assert packet[0] == 0xA2
        sock.sendall(b"\xb0\x04" + packet[2:4] + bytes((0, reason)))
        sock.recv(4096)

    with broker(b"\x20\x03\x01\x00\x00", serve) as it:
        link = session(it.port, [])
        link.open()
        link.unsubscribe("former/#")
        assert (link.is_subscribed, link.kept_topics) == (False, {"former/#"})
        deadline = deadline_s(5)
        while not link.is_subscribed and time.monotonic() < deadline:
            link.poll(0.2)
        assert (link.is_subscribed, link.kept_topics) == (True, kept)
        link.close()
