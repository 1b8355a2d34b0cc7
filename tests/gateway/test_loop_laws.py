"""What holds of the whole loop whatever fails, in whatever order: no acknowledgement before a receipt, none lost."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.gateway.sides import FakeBroker, Published, Region
from tests.gateway.strategies import batch, topic
from waybill.record import IntervalSet, read_header

WINDOW = 4
DEVICES = ("d1", "d2", "d3")
ACKS_AT_ONCE = 2
TOGETHER = 3
"""At most so many messages go to Pulsar as one batch."""


class LoopMachine(RuleBasedStateMachine):
    """A broker that sends again what has no PUBACK, and a Pulsar that answers late, badly or not at all.

    A rule that does not fit now does nothing: when bytes come is the socket's affair, so no rule may depend on it.
    """

    def __init__(self) -> None:
        super().__init__()
        broker = FakeBroker(receive_maximum=ACKS_AT_ONCE)
        self.region = Region(
            broker, mqtt={"receive_maximum": WINDOW}, acks={"window": 10}, pulsar={"batching_max_messages": TOGETHER}
        ).connect()
        self.broker, self.pulsar = broker, self.region.pulsar
        self.queued: list[tuple[str, bytes]] = []  # the broker's, in order: published and no PUBACK yet
        self.sent: list[tuple[int, str, bytes]] = []  # those of them that went out on this connection
        self.acked: dict[str, IntervalSet] = defaultdict(IntervalSet)
        self.published: dict[str, IntervalSet] = defaultdict(IntervalSet)
        self.unanswered: list[Published] = []
        self.looked_at = 0

    @rule(device=st.sampled_from(DEVICES), records=st.integers(1, 4))
    def a_device_sends(self, device: str, records: int) -> None:
        first = self.published[device].count + 1
        self.published[device] |= IntervalSet([(first, first + records - 1)])
        self.queued.append((device, batch(device, first, first + records - 1)))
        self.turn()

    @rule(number=st.integers(0, 99))
    def a_device_is_impatient(self, number: int) -> None:
        if self.queued:
            self.queued.append(self.queued[number % len(self.queued)])
            self.turn()

    @rule(number=st.integers(0, 99), result=st.sampled_from(["Ok", "Ok", "Ok", "Timeout", "ConnectError"]))
    def pulsar_answers(self, number: int, result: str) -> None:
        if self.pulsar.waiting:
            self.pulsar.answer(number % len(self.pulsar.waiting), result)
            self.turn()

    @rule()
    def pulsar_s_client_is_closed(self) -> None:
        self.pulsar.close()
        self.turn()

    @rule()
    def pulsar_goes_or_comes(self) -> None:
        self.pulsar.is_up = not self.pulsar.is_up
        self.turn()

    @rule()
    def the_broker_answers_an_acknowledgement(self) -> None:
        if self.unanswered:
            self.broker.answer(self.unanswered.pop(0))
            self.turn()

    @rule()
    def the_connection_ends(self) -> None:
        self.broker.hang_up()
        self.turn()

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.region.now_s += seconds
        self.turn()

    def turn(self) -> None:
        self.region.turn(2)
        self.look()
        if self.broker.is_subscribed:
            for device, payload in self.queued[len(self.sent) : WINDOW]:
                self.sent.append((self.broker.deliver(topic(device), payload), device, payload))
        self.region.turn(2)
        self.look()

    def look(self) -> None:
        """Each thing that the gateway said, at the moment when it is heard."""
        while self.looked_at < len(self.broker.heard):
            heard = self.broker.heard[self.looked_at]
            self.looked_at += 1
            if heard is None:
                self.sent.clear()
                self.unanswered.clear()
            elif isinstance(heard, Published):
                self.unanswered.append(heard)
                assert len(self.unanswered) <= ACKS_AT_ONCE, "more than the broker's Receive Maximum"
                assert self.pulsar.persisted(heard.device).covers(heard.ack.seqs), "acknowledged and not persisted"
                self.acked[heard.device] |= heard.ack.seqs
            else:
                mid, device, payload = self.sent.pop(0)
                assert heard == mid, "PUBACKs come in the order of the messages"
                assert self.acked[device].covers(read_header(payload).seqs), "released before it is acknowledged"
                self.queued.remove((device, payload))

    @invariant()
    def nothing_is_at_pulsar_twice_at_a_time(self) -> None:
        waiting = [message.payload for message in self.pulsar.waiting]
        assert len(waiting) == len(set(waiting))
        assert len(waiting) <= 2 * WINDOW

    def teardown(self) -> None:
        """When everything works again, every record is persisted, acknowledged and released."""
        self.pulsar.is_up = True

        def all_is_done() -> bool:
            while self.pulsar.waiting:
                self.pulsar.answer()
            while self.unanswered and self.broker.is_subscribed:
                self.broker.answer(self.unanswered.pop(0))
            self.turn()
            return not self.queued and dict(self.acked) == dict(self.published)

        self.region.until(all_is_done, step_s=1)
        assert all(self.pulsar.persisted(device) == seqs for device, seqs in self.published.items())
        self.region.close()


TestLoopLaws = LoopMachine.TestCase
TestLoopLaws.settings = hypothesis_settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
