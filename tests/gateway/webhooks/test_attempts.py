"""When a delivery is tried again, and when it is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.config import RetrySettings
from gateway.webhooks.posting import HttpOutcome, next_step

FAILED = HttpOutcome(False, "failed", "500")
WAITS = st.tuples(st.floats(0.01, 100), st.floats(0.01, 3600)).map(sorted)
RETRIES = st.builds(
    lambda waits, **more: RetrySettings(backoff_first_s=waits[0], backoff_max_s=waits[1], **more),
    WAITS,
    max_attempts=st.integers(1, 50),
    max_age_s=st.floats(1, 10_000),
)
JITTER = st.floats(0, 1, exclude_max=True)


@given(RETRIES, JITTER, st.floats(0, 5000) | st.none())
def test_every_delivery_ends_within_its_attempts_and_its_age(
    retry: RetrySettings, jitter: float, pause_s: float | None
) -> None:
    age_s = 0.0
    for attempt in range(1, retry.max_attempts + 1):
        step = next_step(FAILED._replace(pause_s=pause_s), attempt, age_s, retry, lambda: jitter)
        if step.wait_s is None:
            assert step.reason == ("exhausted" if attempt == retry.max_attempts else "expired")
            return
        assert step.wait_s >= (pause_s or 0)
        assert step.wait_s <= max(retry.backoff_max_s, pause_s or 0)
        age_s += step.wait_s
        assert age_s <= retry.max_age_s
    raise AssertionError("it never ends")


@given(RETRIES, JITTER, st.integers(1, 60), st.floats(0, 1e9))
def test_what_is_final_is_never_tried_again(retry: RetrySettings, jitter: float, attempt: int, age_s: float) -> None:
    for reason in ("delivered", "refused", "redirected"):
        assert next_step(HttpOutcome(True, reason, ""), attempt, age_s, retry, lambda: jitter) == (None, reason)


@given(JITTER)
def test_waits_double_with_jitter_up_to_their_maximum(jitter: float) -> None:
    retry = RetrySettings(backoff_first_s=1, backoff_max_s=60, max_attempts=100, max_age_s=10_000)
    waits = [next_step(FAILED, attempt, 0, retry, lambda: jitter).wait_s for attempt in range(1, 20)]
    assert waits == [min(2.0 ** (number), 60) * (0.5 + jitter / 2) for number in range(19)]
