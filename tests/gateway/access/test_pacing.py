"""When the access daemon does what is to be done: by a clock that nobody sets."""

from __future__ import annotations

import pytest

from gateway.access.loop import SETTLE_AT_MOST, SessionLooks, Settling


def test_changes_that_keep_coming_do_not_put_off_the_first_for_ever() -> None:
    settling, now_s = Settling(0.02), 5.0
    for number in range(1, 100):
        settling.count(number, now_s)
        if settling.is_settled(now_s):
            break
        now_s += 0.01
    assert now_s == pytest.approx(5.0 + SETTLE_AT_MOST * 0.02, abs=0.011)


def test_a_session_that_was_ended_is_looked_for_longer_than_a_connection_without_a_connect_stands() -> None:
    looks = SessionLooks(1.0)
    looks.add(["acme/bus-1"], 100.0)
    assert looks.due_s() == 101.0
    assert [seconds for seconds in range(600) if looks.take(100.0 + seconds)] == [1, 3, 7, 15, 31, 63, 127, 255]
    assert looks.due_s() is None
