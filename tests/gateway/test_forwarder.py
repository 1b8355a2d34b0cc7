"""What becomes of one bad message, one bad receipt, one failed attempt; the next one is served all the same."""

from functools import partial
from typing import Any, cast

import pytest

from gateway.effects import MAX_ATTEMPTS, Forwarder, log_refusal
from gateway.engine import Engine, Produce
from gateway.inflight import Delivery
from gateway.metrics import GatewayMetrics
from gateway.pulsar_producer import TOO_BIG, UNSENDABLE, Receipt
from tests.gateway.strategies import batch, message, settings, topic


class Recorded:
    """A producer that notes what it is sent, and gives the receipts that the test puts there."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[Produce] = []
        self.receipts: list[Receipt] = []

    def is_open_for(self, _: str) -> bool:
        return self.is_open

    def send(self, effect: Produce) -> None:
        self.sent.append(effect)

    def take_receipts(self) -> list[Receipt]:
        taken, self.receipts = self.receipts, []
        return taken


class Forwarding:
    """A forwarder with its engine, metrics and producer. A message waits `attempts` seconds for its next attempt."""

    def __init__(self) -> None:
        self.metrics, self.producer = GatewayMetrics(), Recorded()
        self.errors: list[str] = []
        self.engine = Engine(settings(), jitter=lambda: 0.5, on_refused=partial(log_refusal, self.metrics))
        self.forwarder = Forwarder(
            self.engine, cast("Any", self.producer), self.metrics, delay_s=float, on_send_failed=self.errors.append
        )

    def receive(self, name: str, payload: bytes, mid: int = 1) -> None:
        self.forwarder.on_message(message(name, payload, mid), 0.0)

    def answer(self, *receipts: Receipt, now_s: float = 1.0) -> None:
        self.producer.receipts.extend(receipts)
        self.forwarder.handle_receipts(now_s)

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self.engine.in_flight)

    @property
    def tokens(self) -> list[int]:
        return [delivery.token for delivery in self.deliveries]


@pytest.fixture
def forwarding() -> Forwarding:
    return Forwarding()


@pytest.mark.parametrize(("result", "reason"), [(UNSENDABLE, "not-for-pulsar"), (TOO_BIG, "too-large")])
def test_what_pulsar_never_takes_is_refused_and_a_dead_letter_that_it_never_takes_is_given_up(
    forwarding: Forwarding, result: str, reason: str
) -> None:
    forwarding.receive(topic("d1"), batch("d1", 1, 3))
    (token,) = forwarding.tokens
    forwarding.answer(Receipt(token, result))
    assert [effect.refused for effect in forwarding.producer.sent] == [False, True]
    forwarding.answer(Receipt(token, result))
    assert forwarding.deliveries == []
    (due,) = forwarding.engine.take_due_acks(9.0, 10)
    assert (due.ack.refusal, due.ack.seqs.ranges) == (reason, ((1, 3),))
    assert forwarding.engine.release() == [1]
    assert forwarding.metrics.counts["dead_letters_not_kept"] == 1


def test_a_dead_letter_is_given_up_after_some_attempts_and_a_batch_never(forwarding: Forwarding) -> None:
    forwarding.receive(topic("d1"), b"garbage", 1)
    forwarding.receive(topic("d2"), batch("d2", 1, 3), 2)
    for attempt in range(MAX_ATTEMPTS + 5):
        forwarding.answer(*(Receipt(token, "Timeout") for token in forwarding.tokens), now_s=100.0 * attempt)
        forwarding.forwarder.retry_due(100.0 * attempt + 99)
    assert [delivery.sender.device for delivery in forwarding.deliveries] == ["d2"]
    assert set(forwarding.errors) == {"Pulsar refused a batch: Timeout"}
