"""The uplink against a real broker and a scripted region."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker, MosquittoSettings
from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.errors import LinkError
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.protocol import HeartbeatAnswered, OutgoingBatch, RefusedBatch, Uplink, UplinkEvent
from tests.edge_agent.process import started
from tests.edge_agent.region import MqttRegion
from tests.waiting import PATIENCE, deadline_s
from waybill.record import Ack, Batch, Canary, IntervalSet, Raw, Record, encode

pytestmark = pytest.mark.system
DEVICE = DeviceSettings(id="eu-0001", tenant="acme")
EPOCH = 77


def batch(device: str, first: int, last: int) -> OutgoingBatch:
    records = tuple(Record(seq, seq, Canary(id=f"c{seq}")) for seq in range(first, last + 1))
    return OutgoingBatch(EPOCH, IntervalSet([(first, last)]), encode(Batch(device, EPOCH, last, records)))


def collect(uplink: Uplink, names: IntervalSet, timeout_s: float = 15.0) -> list[UplinkEvent]:
    events: list[UplinkEvent] = []
    deadline = deadline_s(timeout_s)
    missing = names
    while missing and time.monotonic() < deadline:
        for event in uplink.poll(0.2):
            events.append(event)
            if isinstance(event, Ack) and event.epoch == EPOCH:
                missing -= event.seqs
    assert not missing, f"not acknowledged: {missing}"
    return events


class FarSide(MqttRegion):
    """A region on a broker of its own."""

    def __init__(self, broker: MosquittoBroker) -> None:
        super().__init__(broker.port)
        self.broker = broker

    def opened(self) -> MqttUplink:
        uplink = MqttUplink(DEVICE, UplinkSettings(region="eu", host="127.0.0.1", port=self.broker.port))
        uplink.open()
        return uplink


@pytest.fixture
def side(tmp_path: Path) -> Iterator[FarSide]:
    # Fewer than the suite sends at once: who passes over a Receive Maximum is disconnected.
    broker = MosquittoBroker(
        "eu", tmp_path / "eu", settings=MosquittoSettings(max_inflight_messages=4, max_packet_mb=4)
    )
    with started(broker):
        side = FarSide(broker)
        yield side
        side.close()
    assert side.errors == []


def test_what_is_acknowledged_arrived_unchanged(side: FarSide) -> None:
    uplink = side.opened()
    sent = [batch(DEVICE.id, first, first + 9) for first in range(1, 101, 10)]
    for one in sent:
        uplink.send(one)
    collect(uplink, IntervalSet([(1, 100)]))
    uplink.close()
    assert {one.data for one in sent} <= {*side.payloads}


def test_a_heartbeat_arrives_and_is_answered_between_batches(side: FarSide) -> None:
    uplink = side.opened()
    beat = OutgoingBatch(EPOCH, IntervalSet(), encode(Batch(DEVICE.id, EPOCH, 300, stated_us=7)))
    uplink.send(batch(DEVICE.id, 301, 310))
    uplink.send(beat)
    uplink.send(batch(DEVICE.id, 311, 320))
    events = collect(uplink, IntervalSet([(301, 320)]))
    deadline = deadline_s(15)
    while HeartbeatAnswered() not in events and time.monotonic() < deadline:
        events += uplink.poll(0.2)
    uplink.close()
    assert events.count(HeartbeatAnswered()) == 1
    assert beat.data in side.payloads


def test_poll_returns_in_time_and_when_it_is_woken(side: FarSide) -> None:
    uplink = side.opened()
    uplink.poll(0.0)
    began = time.monotonic()
    uplink.poll(0.3)
    assert time.monotonic() - began < 2 * PATIENCE
    threading.Timer(0.2, uplink.wake).start()
    began = time.monotonic()
    uplink.poll(20.0)
    assert time.monotonic() - began < 5 * PATIENCE
    uplink.close()


def test_bytes_on_the_wire_are_at_least_those_of_the_batch(side: FarSide) -> None:
    uplink = side.opened()
    before, _ = uplink.wire_bytes()
    one = batch(DEVICE.id, 301, 600)
    uplink.send(one)
    collect(uplink, one.seqs)
    after, received = uplink.wire_bytes()
    uplink.close()
    assert len(one.data) < after - before < 4 * len(one.data) + 4000
    assert received > 0


def test_what_is_larger_than_it_can_carry_is_refused_by_its_names_and_the_rest_goes_on(side: FarSide) -> None:
    uplink = side.opened()
    records = tuple(Record(seq, seq, Raw(topic="t", payload=os.urandom(1_000_000))) for seq in range(701, 708))
    large = OutgoingBatch(EPOCH, IntervalSet([(701, 707)]), encode(Batch(DEVICE.id, EPOCH, 707, records)))
    uplink.send(large)
    after = batch(DEVICE.id, 710, 719)
    uplink.send(after)
    events = collect(uplink, after.seqs)
    events += [] if any(isinstance(event, RefusedBatch) for event in events) else uplink.poll(5.0)
    uplink.close()
    (refused,) = [event for event in events if isinstance(event, RefusedBatch)]
    assert (refused.epoch, refused.seqs) == (EPOCH, large.seqs)
    assert not any(isinstance(event, Ack) and event.seqs & large.seqs for event in events)


def test_a_region_that_does_not_answer_is_a_link_error_within_the_time_out() -> None:
    uplink = MqttUplink(DEVICE, UplinkSettings(region="eu", host="127.0.0.1", port=9, connect_timeout_s=2))
    began = time.monotonic()
    with pytest.raises(LinkError):
        uplink.open()
    uplink.close()
    assert time.monotonic() - began < 15 * PATIENCE


def test_a_connection_that_is_cut_is_a_link_error(side: FarSide) -> None:
    uplink = side.opened()
    side.broker.stop()

    def use() -> None:
        for number in range(40):
            uplink.send(batch(DEVICE.id, 1000 + number, 1000 + number))
            uplink.poll(0.5)

    with pytest.raises(LinkError):
        use()
    uplink.close()
