"""The gateway's engine by example."""

from collections.abc import Callable

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.engine import MAX_PENDING_RANGES, AckCoalescer, NotSent, Produce, SendAck
from gateway.inflight import RANGE_BYTES, Refusal, Sender
from tests.examples import examples
from tests.gateway.strategies import batch, engine, topic
from waybill.record import Ack, IntervalSet, RefusalReason, decode_ack, encode_ack
from waybill.record.ack import MAX_ACK_RANGES

D1 = Sender("fleet", "d1")


def produced(order: Produce | NotSent) -> Produce:
    assert isinstance(order, Produce)
    return order


def test_a_batch_goes_to_pulsar_untouched_with_its_names_as_properties() -> None:
    payload = batch("d1", 1, 3)
    order = produced(engine().on_batch(topic("d1"), payload, 7, 0.0))
    properties = {"tenant": "fleet", "device": "d1", "region": "eu", "epoch": "1"}
    assert order == Produce(order.token, refused=False, key="d1", payload=payload, properties=properties)


def test_a_refused_batch_goes_to_the_refused_ones_and_its_sender_gets_the_reason() -> None:
    made = engine()
    payload = batch("d1", 1, 3)[:-1]
    order = produced(made.on_batch(topic("d1"), payload, 7, 0.0))
    assert order.refused
    assert order.payload == payload
    assert order.properties["reason"] == "truncated"
    assert order.properties["topic"] == topic("d1")
    assert made.take_due_acks(99.0, 10) == []
    made.on_persisted(order.token, 0.0)
    assert made.take_due_acks(0.0, 10) == [SendAck(D1, Ack(refusal="truncated"))]
    assert made.release() == [7]


def test_a_batch_that_pulsar_will_never_take_is_refused() -> None:
    made = engine()
    order = produced(made.on_batch(topic("d1"), batch("d1", 1, 3), 7, 0.0))
    again = produced(made.refuse(order.token, Refusal(RefusalReason.TOO_LARGE, "at most so many"), 0.0))
    assert again.refused
    assert again.token == order.token
    made.on_persisted(order.token, 0.0)
    assert made.take_due_acks(0.0, 10) == [SendAck(D1, Ack(1, IntervalSet([(1, 3)]), refusal="too-large"))], (
        "which it was"
    )


def test_a_batch_that_comes_again_while_it_is_in_flight_is_produced_once_and_released_twice() -> None:
    made = engine()
    payload = batch("d1", 1, 3)
    order = produced(made.on_batch(topic("d1"), payload, 7, 0.0))
    assert made.on_batch(topic("d1"), payload, 8, 0.0) is NotSent.JOINED
    made.on_persisted(order.token, 0.0)
    made.take_due_acks(0.0, 10)
    assert made.release() == [7, 8]


def test_an_overloaded_gateway_asks_for_a_pause_with_the_acknowledgement() -> None:
    made = engine(mqtt={"host": "h", "receive_maximum": 2})
    orders = [produced(made.on_batch(topic(f"d{n}"), batch(f"d{n}", 1, 1), n, 0.0)) for n in (1, 2)]
    made.on_persisted(orders[0].token, 2.0)
    made.on_persisted(orders[1].token, 2.0)
    pauses = {message.sender.device: message.ack.pause_s for message in made.take_due_acks(2.0, 10)}
    assert pauses == {"d1": 5.0, "d2": 0.0}


def test_qos_0_fills_neither_the_window_nor_any_list() -> None:
    made = engine()
    for n in range(1, 1000):
        made.on_batch(topic(f"d{n}"), batch(f"d{n}", 1, 1), 0, 0.0)
        made.on_batch(topic("d1"), batch("d1", 1, 1), 0, 0.0)
    assert len(made.in_flight) == 8, "the window, and the same batch over and over"
    assert not made.in_flight._order
    assert made.has_room, "QoS 1 still finds room"
    assert isinstance(made.on_batch(topic("other"), batch("other", 1, 1), 1, 0.0), Produce)
    assert made.on_batch(topic("d2000"), batch("d2000", 1, 1), 0, 0.0) is NotSent.NO_ROOM
    for delivery in list(made.in_flight):
        made.on_persisted(delivery.token, 0.0)
    made.take_due_acks(0.0, 100)
    assert made.release() == [1]
    assert not made.in_flight._done
    assert made.is_idle


def test_what_devices_are_owed_is_bounded_and_every_acknowledgement_can_be_sent() -> None:
    ledger = AckCoalescer(0.05)
    scattered = IntervalSet((first, first) for first in range(1, 60_001, 2))
    taken = 0
    for token in range(20):
        shifted = IntervalSet((first + token * 100_000, last + token * 100_000) for first, last in scattered.ranges)
        taken += ledger.add(D1, 1, shifted, token=token, now_s=0.0)
    assert ledger._ranges <= MAX_PENDING_RANGES
    assert ledger.forgotten == 20 - taken > 0
    owed = ledger.take_due(1.0, lambda _: 0, 1000)
    assert all(len(decode_ack(encode_ack(one.ack)).seqs.ranges) <= MAX_ACK_RANGES for one in owed)
    assert sum(one.seqs.count for one in owed) == taken * scattered.count
    assert sorted(token for one in owed for token in one.tokens) == list(range(taken))
    assert ledger._ranges == 0


DEVICES = ("d1", "d2", "d3")


class GatewayModel(RuleBasedStateMachine):
    """A broker that sends again what is not acknowledged, and a Pulsar that answers late and in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.engine = engine(acks={"interval_ms": 50})
        self.unacknowledged: list[tuple[str, bytes]] = []  # the broker's: sent, no PUBACK yet, in order
        self.sent: list[tuple[int, str, bytes]] = []  # on this connection, by message id
        self.mids = 0
        self.at_pulsar: dict[int, Produce] = {}
        self.safe: dict[str, IntervalSet] = {}
        self.acked: dict[str, IntervalSet] = {}
        self.next_seq = dict.fromkeys(DEVICES, 1)
        self.published: set[tuple[str, bytes]] = set()

    def deliver(self, device: str, payload: bytes) -> None:
        self.mids += 1
        self.sent.append((self.mids, device, payload))
        order = self.engine.on_batch(topic(device), payload, self.mids, self.now_s)
        if isinstance(order, Produce):
            assert order.payload == payload
            assert order.token not in self.at_pulsar
            self.at_pulsar[order.token] = order

    @rule(device=st.sampled_from(DEVICES), records=st.integers(1, 5))
    def a_device_sends(self, device: str, records: int) -> None:
        if len(self.sent) >= 8:
            return
        first = self.next_seq[device]
        self.next_seq[device] += records
        payload = batch(device, first, first + records - 1)
        self.published.add((device, payload))
        self.unacknowledged.append((device, payload))
        self.deliver(device, payload)

    @rule(choose=st.randoms(use_true_random=False))
    def a_device_sends_again(self, choose: object) -> None:
        if len(self.sent) >= 8 or not self.published:
            return
        device, payload = sorted(self.published)[choose.randrange(len(self.published))]  # type: ignore[attr-defined]
        self.unacknowledged.append((device, payload))
        self.deliver(device, payload)

    @rule(choose=st.randoms(use_true_random=False))
    def pulsar_has_one(self, choose: object) -> None:
        if self.at_pulsar:
            token = choose.choice(sorted(self.at_pulsar))  # type: ignore[attr-defined]
            order = self.at_pulsar.pop(token)
            delivery = self.engine.on_persisted(token, self.now_s)
            self.safe[order.key] = self.safe.get(order.key, IntervalSet()) | delivery.seqs

    @rule(choose=st.randoms(use_true_random=False))
    def pulsar_fails_and_it_is_tried_again(self, choose: object) -> None:
        if self.at_pulsar:
            token = choose.choice(sorted(self.at_pulsar))  # type: ignore[attr-defined]
            assert self.engine.begin_attempt(token) == self.at_pulsar[token]

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.06]), limit=st.integers(0, 3))
    def the_loop_turns(self, seconds: float, limit: int) -> None:
        self.now_s += seconds
        for message in self.engine.take_due_acks(self.now_s, limit):
            assert not message.ack.refusal
            self.acked[message.sender.device] = self.acked.get(message.sender.device, IntervalSet()) | message.ack.seqs
        self.release()

    def release(self) -> None:
        mids = self.engine.release()
        assert mids == [mid for mid, _, _ in self.sent[: len(mids)]], "acknowledged to the broker out of order"
        for _, device, payload in self.sent[: len(mids)]:
            self.unacknowledged.remove((device, payload))
        del self.sent[: len(mids)]

    @rule()
    def the_connection_breaks(self) -> None:
        self.engine.in_flight.on_reconnect()
        self.sent.clear()
        for device, payload in list(self.unacknowledged):
            self.deliver(device, payload)

    @invariant()
    def nothing_is_acknowledged_that_is_not_safe(self) -> None:
        for device, ranges in self.acked.items():
            assert self.safe.get(device, IntervalSet()).covers(ranges)

    @invariant()
    def the_count_in_flight_is_what_waits_for_pulsar(self) -> None:
        assert len(self.engine.in_flight) == len(self.at_pulsar)
        held = sum(len(order.payload) + RANGE_BYTES for order in self.at_pulsar.values())
        assert self.engine.in_flight.bytes == held, "each of these has one range"
        assert len(self.engine.in_flight) <= 16

    def teardown(self) -> None:
        """Once Pulsar answers, every batch is safe, and acknowledged to its device and to the broker."""
        for token in list(self.at_pulsar):
            order = self.at_pulsar.pop(token)
            self.safe[order.key] = (
                self.safe.get(order.key, IntervalSet()) | self.engine.on_persisted(token, self.now_s).seqs
            )
        self.the_loop_turns_to_the_end(lambda: bool(self.engine.acks))
        assert self.engine.is_idle
        assert self.unacknowledged == []
        assert self.acked == {
            device: IntervalSet([(1, last - 1)]) for device, last in self.next_seq.items() if last > 1
        }

    def the_loop_turns_to_the_end(self, more: Callable[[], bool]) -> None:
        while more():
            for message in self.engine.take_due_acks(self.now_s, 10):
                self.acked[message.sender.device] = (
                    self.acked.get(message.sender.device, IntervalSet()) | message.ack.seqs
                )
        self.release()


TestGateway = GatewayModel.TestCase
TestGateway.settings = hypothesis_settings(max_examples=examples(60), stateful_step_count=40)
