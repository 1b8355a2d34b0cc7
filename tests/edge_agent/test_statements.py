"""What the agent states of its head is true, whatever it does later; where it does not know, it states nothing."""

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.clocks import HeadStatement
from edge_agent.drain.dispatcher import Statements
from edge_agent.uplink.protocol import HeartbeatAnswered, OutgoingBatch, UplinkEvent
from tests.edge_agent.intake_parts import IntakeHarness, stored_records
from tests.edge_agent.makers import DEVICE, fill, open_buffer
from tests.edge_agent.scripted_region import Road, acks, drive
from tests.edge_agent.world import SteadyClocks
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Batch, Canary, Record, Tombstone, decode, encode, read_header

SECOND = 1_000_000
GRACE_US = 300 * SECOND


def canary(mid: int, time_us: int) -> MqttMessage:
    payload = json.dumps({"time": time_us // 1000, "id": f"c{mid}"}).encode()
    return MqttMessage(mid, 1, False, "vehicle/canary", payload)


class Vehicle:
    def __init__(self, folder: Path, clocks: SteadyClocks | None = None) -> None:
        self.clocks = clocks or SteadyClocks()
        self.last: HeadStatement | None = None
        self.ever: list[HeadStatement] = []
        self.harness = IntakeHarness(folder, clocks=self.clocks, on_statement=self._on_statement)
        self.intake = self.harness.record_intake
        self._mid = 0

    def _on_statement(self, statement: HeadStatement | None) -> None:
        self.last = statement
        if statement is not None:
            self.ever.append(statement)

    def look(self, after_s: float = 0) -> HeadStatement | None:
        self.clocks.now_us += int(after_s * SECOND)
        self.intake.state_head()
        return self.last

    def message(self, age_s: float = 0) -> None:
        self._mid = self._mid % 30_000 + 1
        self.intake.receive(canary(self._mid, self.clocks.wall_us() - int(age_s * SECOND)), 0.0)

    def falsified(self) -> list[HeadStatement]:
        """The statements that a stored record proves wrong. The times of messages are whole milliseconds."""
        records = stored_records(self.harness.buffer)
        return [
            one
            for one in self.ever
            if any(it.seq > one.head and it.device_time_us < one.stated_us - 1000 for it in records)
        ]


def test_nothing_is_stated_while_the_broker_may_deliver_what_it_kept(tmp_path):
    vehicle = Vehicle(tmp_path)
    vehicle.harness.connect(resumed=True)
    vehicle.message(age_s=86_400)
    vehicle.harness.commit()
    assert vehicle.look(1) is None
    vehicle.message(age_s=4)
    vehicle.harness.commit()
    assert vehicle.look(1) is not None


def test_a_message_that_waits_for_its_commit_holds_the_statement(tmp_path):
    vehicle = Vehicle(tmp_path)
    vehicle.harness.connect(resumed=False)
    vehicle.message(age_s=10)
    came_us = vehicle.clocks.wall_us()
    found = vehicle.look(3600)
    assert found is not None
    assert (found.head, found.stated_us) == (0, came_us - GRACE_US)
    vehicle.harness.commit()
    after = vehicle.look(2)
    assert after is not None
    assert (after.head, after.stated_us) == (1, vehicle.clocks.wall_us() - GRACE_US)
    assert vehicle.falsified() == []


def test_a_jump_of_the_clock_takes_the_statement_back_until_the_former_clock_is_past(tmp_path):
    vehicle = Vehicle(tmp_path)
    vehicle.harness.connect(resumed=False)
    assert vehicle.look(2) is not None
    vehicle.clocks.offset_us += 86_400 * SECOND
    assert vehicle.look(2) is None
    assert vehicle.look(298) is None
    assert vehicle.look(3) is not None


def test_a_message_older_than_the_grace_is_counted_and_takes_the_statement_back(tmp_path):
    vehicle = Vehicle(tmp_path)
    vehicle.harness.connect(resumed=False)
    vehicle.look(2)
    vehicle.message(age_s=3600)
    assert vehicle.last is None
    assert vehicle.harness.buffer.counters.value("late") == 1
    vehicle.harness.commit()
    assert len(vehicle.falsified()) == 1


steps = st.one_of(
    st.tuples(st.just("message"), st.integers(0, 290)),
    st.tuples(st.just("wait"), st.integers(0, 400)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("away"), st.integers(0, 4000)),
)


@given(st.lists(steps, max_size=25))
def test_no_statement_is_falsified_by_messages_within_the_grace(tmp_path_factory, life):
    vehicle = Vehicle(tmp_path_factory.mktemp("v"))
    vehicle.harness.connect(resumed=False)
    for what, number in life:
        if what == "message":
            vehicle.message(age_s=number)
        elif what == "wait":
            vehicle.look(number)
        elif what == "commit":
            vehicle.harness.commit()
        elif what == "away":
            # what the vehicle sends meanwhile waits at its broker, and comes first of all
            vehicle.intake.on_disconnected()
            sent_us = vehicle.clocks.wall_us()
            vehicle.look(number)
            vehicle.harness.connect(resumed=True)
            vehicle.message(age_s=(vehicle.clocks.wall_us() - sent_us) / SECOND)
        vehicle.look(1)
    vehicle.harness.commit()
    assert vehicle.falsified() == []
    vehicle.harness.buffer.close()


def stated(now_s: float = 0.0) -> Statements:
    made = Statements(DEVICE, 300, 30, now_s)
    made.current = HeadStatement(7, 9, 5_000)
    return made


def test_a_stored_batch_states_what_is_true_when_it_leaves():
    batch = Batch(DEVICE, 7, 4, (Record(4, 1, Canary(id="x")),))
    found = decode(stated().add_statement(encode(batch), 0.0))
    assert (found.head, found.stated_us, found.records) == (9, 5_000, batch.records)
    nothing = Statements(DEVICE, 300, 30, 0.0)
    assert nothing.add_statement(encode(batch), 0.0) == encode(batch)


def test_a_former_epoch_states_only_where_its_end_is_declared():
    open_end = Batch(DEVICE, 6, 4, (Record(4, 1, Canary(id="x")),))
    evicted = Batch(DEVICE, 6, 4, (), (Tombstone(1, 4, "quota"),))
    ended = Batch(DEVICE, 6, 4, (), (Tombstone(2, 4, "corrupt"),))
    found = [read_header(stated().add_statement(encode(one), 0.0)) for one in (open_end, evicted, ended)]
    assert [(header.head, header.stated_us) for header in found] == [(4, 0), (4, 0), (4, 5_000)]


def test_a_heartbeat_is_due_when_nothing_new_was_stated_for_long_and_one_is_under_way_at_most():
    made = stated()
    assert made.due_in(0.0) == 300
    made.add_statement(encode(Batch(DEVICE, 7, 4, (Record(4, 1, Canary(id="x")),))), 200.0)
    assert made.due_in(200.0) is None, "it would say nothing new"
    made.current = HeadStatement(7, 9, 6_000)
    assert made.due_in(499.0) == 1
    epoch, data = made.take_heartbeat(500.0)
    assert (epoch, decode(data)) == (7, Batch(DEVICE, 7, 9, stated_us=6_000))
    made.current = HeadStatement(7, 9, 7_000)
    assert made.due_in(800.0) == 0
    assert Statements(DEVICE, 300, 900, 0.0).due_in(1e9) is None
    slow = Statements(DEVICE, 60, 900, 0.0)
    slow.current = HeadStatement(7, 9, 1)
    slow.take_heartbeat(60.0)
    slow.current = HeadStatement(7, 9, 2)
    assert slow.due_in(130.0) == 830
    slow.end_heartbeat()
    assert slow.due_in(130.0) == 0


def beating(road: Road, epoch: int) -> None:
    """The intake states its head every time it is asked: the head is 10 and the moment is the road's."""
    assert road.drainer is not None
    road.drainer.inbox.on_statement(HeadStatement(epoch, 10, 1 + int(road.now_s * SECOND)))


def test_an_idle_agent_sends_heartbeats_and_a_paused_one_waits(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def answer(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        beating(road, buffer.epoch)
        return [*acks([one for one in new if one.seqs]), *[HeartbeatAnswered() for one in new if not one.seqs]]

    road = Road(answer, 1000.0)
    drainer = drive(buffer, road, drain={"heartbeat_s": 60})
    beats = [(now_s, one) for now_s, _, one in road.sent if not one.seqs]
    assert len(beats) == drainer.statements.heartbeats == 16
    assert all(read_header(one.data).is_heartbeat and read_header(one.data).head == 10 for _, one in beats)
    assert all(later - before >= 60 for (before, _), (later, _) in pairwise(beats))
    assert drainer.dispatcher.in_flight == 0
