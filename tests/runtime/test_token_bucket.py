"""A rate with a burst, and what is taken beyond it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.daemon.backoff import TokenBucket

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
