"""The order of acknowledgement through the loop: batch, Pulsar's receipt, the device's acknowledgement, PUBACK."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.gateway.sides import FakeBroker, Published, Region
from tests.gateway.strategies import batch, settings, topic
from waybill.record import IntervalSet, read_header


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region().connect()
    yield made
    made.close()


def receivers_of(heard: list[Published | int | None]) -> list[object]:
    """What the gateway sent: devices of acknowledgements, and message ids of PUBACKs, in their order."""
    return [it.device if isinstance(it, Published) else it for it in heard]


def test_asked_to_stop_it_finishes_what_it_took_and_then_ends(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    region.turn()
    region.now_s += 1
    region.turn()
    assert not region.loop.is_finished
    assert region.status.state == "stopping"
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))  # the broker had sent it before it heard of it
    region.until(lambda: len(region.pulsar.waiting) == 2)
    region.pulsar.answer()
    region.pulsar.answer()
    region.until(lambda: region.loop.is_finished, step_s=0.05)
    region.until(lambda: len(region.broker.heard) == 4)
    assert receivers_of(region.broker.heard) == ["d1", "d2", 1, 2]
    region.loop.disconnect()
    assert region.loop.close() == 0


def test_a_stop_that_takes_too_long_acknowledges_nothing_that_is_not_safe(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    timeout_s = settings().stop_timeout_s
    region.now_s += 0.6 * timeout_s
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))
    region.turn(8)
    assert len(region.pulsar.waiting) == 1, "the second half of the time is for what was taken"
    region.now_s += 0.5 * timeout_s
    assert region.loop.is_finished
    region.loop.disconnect()
    region.until(lambda: region.broker.heard)
    assert region.broker.heard == [None], "the connection ended, and nothing was acknowledged on it"
    assert region.loop.close() == 1


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
