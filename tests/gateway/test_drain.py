"""How a fleet is slowed down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.acks import DrainControl, SharedBucket
from gateway.config import Drain
from gateway.validation import Sender

D1 = Sender("fleet", "d1")


def test_without_a_limit_nobody_pauses() -> None:
    assert DrainControl(Drain(), lambda: 0.5).take_pause_s(D1, 1_000_000, load=0.0, waited_s=0.0, now_s=0.0) == 0.0


def test_the_operator_s_pause_holds_for_everybody_until_it_is_taken_back() -> None:
    control = DrainControl(Drain(pause_s=30), lambda: 0.5)
    assert control.take_pause_s(D1, 1, load=0.0, waited_s=0.0, now_s=0.0) == 30
    control.reconfigure(Drain())
    assert control.take_pause_s(D1, 1, load=0.0, waited_s=0.0, now_s=1.0) == 0.0


def test_a_full_window_is_an_overload_only_when_it_moves_slowly() -> None:
    control = DrainControl(Drain(overload_share=0.9, overload_after_s=1, overload_pause_s=4), lambda: 0.5)
    assert control.take_pause_s(D1, 1, load=1.0, waited_s=0.5, now_s=0.0) == 0.0
    assert control.take_pause_s(D1, 1, load=0.5, waited_s=5.0, now_s=0.0) == 0.0
    assert control.take_pause_s(D1, 1, load=1.0, waited_s=1.0, now_s=0.0) == 4.0


def test_no_pause_is_longer_than_the_longest() -> None:
    control = DrainControl(Drain(max_records_per_s=1, burst_records=1, max_pause_s=60), lambda: 0.5)
    assert control.take_pause_s(D1, 100_000, load=0.0, waited_s=0.0, now_s=0.0) == 60


def test_a_device_that_ignores_its_pauses_makes_the_others_wait_for_no_more_than_the_burst() -> None:
    hostile, other = Sender("fleet", "hostile"), Sender("fleet", "other")
    bucket = SharedBucket(100, 1000, max_pause_s=60)
    for _ in range(10_000):
        bucket.take(hostile, 500, 0.0)
    assert bucket.take(other, 100, 0.0) <= (1000 + 500 + 100) / 100


def test_after_the_flood_a_device_is_asked_for_no_more_than_the_longest_pause_and_the_burst() -> None:
    bucket = SharedBucket(100, 1000, max_pause_s=60)
    for _ in range(100):
        bucket.take(D1, 65_536, 0.0)
    assert bucket.take(D1, 1, 60 + 1000 / 100) < 1000


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3), st.integers(1, 500)), min_size=1, max_size=50))
def test_devices_that_keep_their_pauses_share_the_rate(steps: list[tuple[int, float, int]]) -> None:
    bucket = SharedBucket(100, 500, max_pause_s=1e9)
    now_s, taken, free_at_s = 0.0, 0, dict[int, float]()
    for device, gap_s, count in steps:
        now_s = max(now_s + gap_s, free_at_s.get(device, 0.0))
        taken += count
        free_at_s[device] = now_s + bucket.take(Sender("fleet", f"d{device}"), count, now_s)
        assert taken <= 500 + 100 * max(free_at_s.values()) + 1e-6
