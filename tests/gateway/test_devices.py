"""Which devices are silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.inflight import Sender
from gateway.status import DevicesHeard, SilentDevice


def test_a_device_is_silent_until_it_is_heard_again() -> None:
    known = DevicesHeard(10)
    known.on_heard(Sender("fleet", "d1"), 0.0)
    known.on_heard(Sender("fleet", "d2"), 5.0)
    assert known.list_silent(9.9, 10) == (0, ())
    assert known.list_silent(12.0, 10) == (1, (SilentDevice("fleet", "d1", 12.0),))
    known.on_heard(Sender("fleet", "d1"), 13.0)
    assert known.list_silent(20.0, 10) == (1, (SilentDevice("fleet", "d2", 15.0),))


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10)), max_size=60), st.integers(1, 8))
def test_what_is_known_is_bounded_and_what_is_forgotten_is_counted(steps: list[tuple[int, float]], limit: int) -> None:
    known, now_s, heard = DevicesHeard(limit), 0.0, dict[int, float]()
    for device, gap_s in steps:
        now_s += gap_s
        was_known = f"fleet/d{device}" in known._heard_s
        known.on_heard(Sender("fleet", f"d{device}"), now_s)
        heard[device] = now_s
        assert len(known) <= limit
        assert was_known or known.forgotten >= len(heard) - limit
    newest = sorted(heard.values())[-limit:]
    assert sorted(known._heard_s.values()) == newest
