"""How long batches gather before they are evaluated together."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.partition import MAX_PAUSE_S, pause_s


@given(st.floats(0, 10), st.integers(0, 1_000))
def test_evaluations_of_few_messages_take_a_third_of_a_thread_and_no_alert_waits_long(took_s, messages):
    pause = pause_s(took_s, messages, 1_001)
    assert pause <= MAX_PAUSE_S
    assert took_s <= (took_s + pause) / 3 + 1e-9 or pause == MAX_PAUSE_S
