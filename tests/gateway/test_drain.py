"""How a fleet is slowed down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.backoff import Backoff, delay_s
from gateway.config import Drain
from gateway.drain import DrainControl, TokenBucket

takes = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), min_size=1, max_size=50)


@given(takes)
def test_devices_that_keep_their_pauses_are_never_faster_than_the_rate(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(100, 200, 0.0)
    now_s, taken, free_at_s = 0.0, 0, 0.0
    for gap_s, count in steps:
        now_s = max(now_s + gap_s, free_at_s)
        taken += count
        free_at_s = now_s + bucket.take(count, now_s)
        assert taken <= 200 + 100 * free_at_s + 1e-6


def test_a_crowd_that_arrives_at_once_is_spread_in_the_order_of_its_coming() -> None:
    bucket = TokenBucket(100, 100, 0.0)
    assert [bucket.take(100, 0.0) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_without_a_limit_nobody_pauses() -> None:
    assert DrainControl(Drain(), lambda: 0.5, 0.0).pause_s(1_000_000, load=0.0, waited_s=0.0, now_s=0.0) == 0.0


def test_the_operator_s_pause_holds_for_everybody_until_it_is_taken_back() -> None:
    control = DrainControl(Drain(pause_s=30), lambda: 0.5, 0.0)
    assert control.pause_s(1, load=0.0, waited_s=0.0, now_s=0.0) == 30
    control.change(Drain(), 1.0)
    assert control.pause_s(1, load=0.0, waited_s=0.0, now_s=1.0) == 0.0


def test_a_full_window_is_an_overload_only_when_it_moves_slowly() -> None:
    control = DrainControl(Drain(overload_share=0.9, overload_after_s=1, overload_pause_s=4), lambda: 0.5, 0.0)
    assert control.pause_s(1, load=1.0, waited_s=0.5, now_s=0.0) == 0.0
    assert control.pause_s(1, load=0.5, waited_s=5.0, now_s=0.0) == 0.0
    assert control.pause_s(1, load=1.0, waited_s=1.0, now_s=0.0) == 4.0


def test_no_pause_is_longer_than_the_longest() -> None:
    control = DrainControl(Drain(max_records_per_s=1, burst_records=1, max_pause_s=60), lambda: 0.5, 0.0)
    assert control.pause_s(100_000, load=0.0, waited_s=0.0, now_s=0.0) == 60


@given(st.integers(1, 1000), st.floats(0, 1))
def test_a_wait_is_bounded_and_never_nothing(attempt: int, jitter: float) -> None:
    assert 0.1 <= delay_s(attempt, 15, jitter) <= 15


def test_waits_grow_until_something_succeeds() -> None:
    backoff = Backoff(15, lambda: 1.0)
    assert [backoff.failed() for _ in range(3)] == [0.2, 0.4, 0.8]
    backoff.succeeded()
    assert backoff.failed() == 0.2
