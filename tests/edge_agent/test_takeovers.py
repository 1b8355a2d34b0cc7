"""Two agents of one id: each takes the session from the other, says so, and connects ever more seldom."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from edge_agent.errors import LinkClosed, LinkError, LinkRefused
from edge_agent.uplink.mqtt_session import MqttSession
from edge_agent.uplink.protocol import OutgoingBatch, UplinkEvent
from tests.edge_agent.makers import DEVICE, fill, open_buffer
from tests.edge_agent.scripted_region import Road, acks, drive
from tests.edge_agent.test_mqtt_session import CONNACK, broker, session
from waybill.mqtt.mqtt_client import MANY


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


def use(link: MqttSession, *, write: bool) -> None:
    link.open()
    for _ in range(50):
        if write:
            link.publish("a", b"x" * 1000)
        link.poll(0.1)


def end_of(serve: Callable[[socket.socket], object], *, write: bool) -> LinkError:
    with broker(CONNACK, serve) as it:
        link = session(it.port, [])
        with pytest.raises(LinkError) as caught:
            use(link, write=write)
        link.close()
    return caught.value


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


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
        with pytest.raises(LinkRefused) as caught:
            link.open()
        link.close()
    assert said in str(caught.value)
    assert "alformed" not in str(caught.value)
