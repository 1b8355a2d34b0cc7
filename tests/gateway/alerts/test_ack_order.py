"""Nothing is acknowledged before Pulsar has every alert that follows from it and from what came before it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.alert_sender import AckOrder, TakenMessages


@given(st.lists(st.integers(0, 4), max_size=30), st.randoms(use_true_random=False))
def test_in_whatever_order_receipts_come_a_position_is_acknowledged_when_all_before_it_are_receipted(
    alerts: list[int], order: random.Random
) -> None:
    known: AckOrder[int] = AckOrder()
    open_: list[TakenMessages[int]] = []
    receipted, acknowledged, waiting = [0] * len(alerts), -1, list(enumerate(alerts))
    while waiting or open_:
        if waiting and (not open_ or order.random() < 0.5):
            position, count = waiting.pop(0)
            open_ += [known.take(position, count)] * count
        else:
            one = open_.pop(order.randrange(len(open_)))
            known.on_receipt(one)
            receipted[one.position] += 1
        position_now = known.pop_done()
        if position_now is not None:
            assert position_now > acknowledged
            acknowledged = position_now
        assert all(receipted[at] == alerts[at] for at in range(acknowledged + 1))
        assert known.unreceipted == len(open_)
    assert acknowledged == len(alerts) - 1, "and in the end all of it is"
    assert len(known) == 0
