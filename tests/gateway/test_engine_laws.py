"""What holds of the gateway whatever happens in whatever order: batches, receipts, failures, broken connections."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway import Produce
from gateway.inflight import RANGE_BYTES
from tests.examples import examples
from tests.gateway.strategies import batch, engine, topic
from waybill.record import IntervalSet

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
