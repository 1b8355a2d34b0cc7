"""Alerts are sent until there is a receipt of each, however often sending fails, and never too many at once."""

import random
from collections.abc import Callable
from typing import Any

import pulsar
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.alert_sender import AckOrder, AlertSender
from geo.alerts import Alert, decode_alert
from waybill.daemon.backoff import Backoff


def alert(number: int) -> Alert:
    return Alert(
        id=f"{number:024x}",
        tenant="acme",
        device="d",
        region="eu",
        epoch=1,
        seq=number,
        kind="enter",
        place="yard",
        t_ms=1,
        received_ms=1,
        raised_ms=1,
    )


class ScriptedProducer:
    """Answers when it is asked to, as a client does: each send once, with a receipt or a failure."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self.is_broken = False
        self.most = 0

    def send_async(self, payload: bytes, callback: Callable[[Any, Any], None], **_: Any) -> None:
        if self.is_broken:
            raise pulsar.ConnectError
        self.sent.append((payload, callback))
        self.most = max(self.most, len(self.sent))

    def answer(self, at: int, result: Any) -> int:
        payload, callback = self.sent.pop(at)
        callback(result, None)
        return decode_alert(payload).seq

    def close(self) -> None:
        """Another one is opened."""


@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_each_alert_is_said_to_be_persisted_once_and_only_after_its_receipt(count: int, dice: random.Random) -> None:
    producer, now_s, order = ScriptedProducer(), [0.0], AckOrder[int]()
    box = AlertSender(lambda: producer, Backoff(0.1, 1.0, dice.random), clock=lambda: now_s[0])
    box.add([alert(number) for number in range(count)], order.take(0, count))
    receipted: set[int] = set()
    persisted: list[int] = []
    while len(persisted) < count or producer.sent:
        now_s[0] += dice.random()
        producer.is_broken = dice.random() < 0.2
        persisted += [one.alert.seq for one in box.pump()]
        assert {*persisted} <= receipted
        while producer.sent and dice.random() < 0.7:
            at = dice.randrange(len(producer.sent))
            is_good = dice.random() < 0.7
            seq = producer.answer(at, pulsar.Result.Ok if is_good else pulsar.Result.Timeout)
            receipted |= {seq} if is_good else set()
    persisted += [one.alert.seq for one in box.pump()]
    assert sorted(persisted) == list(range(count))
    assert len(box) == 0
