"""Waits that double, with jitter, up to a maximum."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from waybill.daemon.backoff import Backoff


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
