"""Waits that double, with jitter, up to a maximum."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from waybill.daemon.backoff import Backoff, TokenBucket
from waybill.mqtt.mqtt_client import Takeovers


@given(st.integers(0, 1000))
def test_waits_double_with_jitter_up_to_the_longest_and_begin_again(seed: int) -> None:
    backoff = Backoff(1, 60, Random(seed).random)
    waits = [backoff.take_delay_s() for _ in range(10)]
    assert all(min(60, 2**n) / 2 <= wait <= min(60, 2**n) for n, wait in enumerate(waits))
    backoff.reset()
    assert backoff.take_delay_s() <= 1


@given(st.integers(1, 1_000_000), st.floats(0, 1))
def test_a_wait_is_bounded_and_never_nothing_however_often_it_failed(attempt: int, jitter: float) -> None:
    assert 0.1 <= Backoff(0.2, 15, lambda: jitter).delay_s(attempt) <= 15


takes = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), min_size=1, max_size=50)


@given(takes)
def test_who_waits_until_the_debt_is_paid_is_never_faster_than_the_rate(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(100, 200)
    now_s, taken, free_at_s = 0.0, 0, 0.0
    for gap_s, count in steps:
        now_s = max(now_s + gap_s, free_at_s)
        taken += count
        bucket.take(count, now_s)
        free_at_s = now_s + bucket.wait_s(0, now_s)
        assert taken <= 200 + 100 * free_at_s + 1e-6


@given(takes)
def test_who_takes_only_what_is_there_never_exceeds_burst_and_rate(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(10, 20)
    now_s = taken = 0.0
    for gap_s, count in steps:
        now_s += gap_s
        taken += sum(bucket.try_take(now_s) for _ in range(count))
        assert taken <= 20 + 10 * now_s + 1e-6
        assert bucket.tokens(now_s) >= 0


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
