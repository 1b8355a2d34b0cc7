"""Which devices are silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inflight import Sender
from gateway.status import MAX_LISTED, DevicesHeard, ListeningClock, SilentDevice, SilentDevices, silent_table


def test_a_device_is_silent_until_it_is_heard_again() -> None:
    known = DevicesHeard(10)
    known.on_heard(Sender("fleet", "d1"), 0.0)
    known.on_heard(Sender("fleet", "d2"), 5.0)
    assert known.list_silent(9.9, 10) == (0, ())
    assert known.list_silent(12.0, 10) == (1, (SilentDevice("fleet", "d1", 12.0),))
    known.on_heard(Sender("fleet", "d1"), 13.0)
    assert known.list_silent(20.0, 10) == (1, (SilentDevice("fleet", "d2", 15.0),))


def test_time_in_which_nobody_listened_is_no_silence_and_takes_none_away() -> None:
    clock = ListeningClock()
    for now_s, listens in ((0, True), (10, True), (11, False), (500, True), (505, True), (600, False), (700, False)):
        clock.update(now_s, listens=listens)
    assert clock.total_s == 10 + 5


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


def test_the_list_is_bounded_and_the_count_is_not() -> None:
    known = DevicesHeard(3000)
    for number in range(2500):
        known.on_heard(Sender("fleet", f"d{number}"), float(number))
    count, listed = known.list_silent(10_000.0, 100)
    assert (count, len(listed), listed[0].device) == (2500, MAX_LISTED, "d0")


@pytest.mark.parametrize(
    ("listening_s", "count", "words"),
    [
        (None, None, "unknown: this gateway is not connected"),
        (30.0, None, "unknown: this gateway has listened for 30 s, 60 s are needed"),
        (60.0, 0, "0 of 7 devices heard since 2026-03-05T06:00:00+00:00"),
    ],
)
def test_an_empty_list_says_whether_it_means_anything(listening_s: float | None, count: int | None, words: str) -> None:
    answer = SilentDevices(after_s=60, since="2026-03-05T06:00:00+00:00", listening_s=listening_s, known=7, count=count)
    assert words in str(silent_table(answer).title)
    assert answer.is_known is words.startswith("0 of")
