"""Connections that end one after the other, and what is then probable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.mqtt.mqtt_client import Takeovers

CAUSE = "another agent has the id 'eu-0001'"


def test_connections_that_end_one_after_the_other_are_named_with_the_cause_until_one_lasts() -> None:
    takeovers = Takeovers(CAUSE, 120.0)
    problems = []
    for number in range(4):
        takeovers.on_connected(number * 10.0)
        takeovers.on_alive(number * 10.0 + 5)
        takeovers.on_ended(number * 10.0 + 5)
        problems.append(takeovers.problem)
    assert [bool(one) for one in problems] == [False, False, True, True]
    assert CAUSE in problems[-1]
    takeovers.on_connected(100.0)
    takeovers.on_alive(219.0)
    assert takeovers.problem
    takeovers.on_alive(220.0)
    assert takeovers.problem == ""
    takeovers.on_ended(221.0)
    assert takeovers.problem == ""


@given(st.lists(st.floats(120, 1e6), max_size=20))
def test_connections_that_last_are_never_many(lengths: list[float]) -> None:
    takeovers, now_s = Takeovers(CAUSE, 120.0), 0.0
    for length_s in lengths:
        takeovers.on_connected(now_s)
        now_s += length_s
        takeovers.on_ended(now_s)
        assert not takeovers.is_suspected
