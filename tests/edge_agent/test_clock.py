"""A clock that jumps: what it stamped before is corrected, once, and never what may have been sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.clocks import ClockJump, ClockMonitor, CorrectionRules
from edge_agent.store.clock_correction import ClockCorrector
from tests.edge_agent.makers import WALL_MS, open_buffer, pending_record
from waybill.record import decode

SECOND = 1_000_000
RULES = CorrectionRules(same_clock_us=300 * SECOND, drift_ppm=100, jump_us=2 * SECOND)


def test_a_slow_drift_is_followed_and_a_jump_is_noticed_both_ways():
    watch = ClockMonitor("boot", 0, 2 * SECOND)
    assert [watch.check(at * SECOND + at * 1000, at * SECOND) for at in range(100)] == [None] * 100
    forward = watch.check(1_000_000 * SECOND, 100 * SECOND)
    assert forward is not None
    assert forward.delta_us == 999_900 * SECOND - 99_000
    back = watch.check(50 * SECOND, 101 * SECOND)
    assert back is not None
    assert back.delta_us < 0


@given(
    st.integers(-(10**9), 10**9).filter(lambda s: abs(s) > 2),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 900_000),
)
def test_a_time_of_the_jumping_clock_becomes_what_the_right_clock_would_have_said(delta_s, record_s, later_s, lag_us):
    offset_us = 2 * 10**9 * SECOND
    jump = ClockJump("boot", offset_us, delta_s * SECOND, (record_s + later_s) * SECOND)
    stamped_us = record_s * SECOND + offset_us - lag_us
    assert RULES.corrected_time_us(stamped_us, record_s * SECOND, jump) == stamped_us + delta_s * SECOND
    assert RULES.uncertainty_ms(record_s * SECOND, jump) >= 2000 + later_s // 10


@pytest.mark.parametrize("delta_s", [3600 * 24 * 365, -3600])
def test_a_time_from_elsewhere_stays(delta_s):
    jump = ClockJump("boot", 0, delta_s * SECOND, 100 * SECOND)
    right_us = 50 * SECOND + delta_s * SECOND
    assert RULES.corrected_time_us(right_us, 50 * SECOND, jump) is None


def times(buffer):
    blocks = buffer.read_after(0, 1, 1000)
    records = [record for block in blocks for record in decode(buffer.load(block.id)).records]
    return {record.seq: (record.device_time_us // SECOND, record.uncertainty_ms) for record in records}


def filled(tmp_path):
    """Ten batches of one record; the wall clock says what the monotonic clock says."""
    buffer = open_buffer(tmp_path)
    for number in range(1, 11):
        buffer.commit([pending_record(number)], WALL_MS)
    return buffer


def jump_of(delta_s):
    return ClockJump("boot", 0, delta_s * SECOND, 20 * SECOND)


@pytest.mark.parametrize("delta_s", [10_000, -5])
def test_what_was_never_sent_is_corrected_and_what_was_sent_is_not(tmp_path, delta_s):
    buffer = filled(tmp_path)
    sent = {block.id for block in buffer.read_after(0, 1, 3)}
    corrector = ClockCorrector(buffer, RULES)
    assert corrector.resume("boot", 0) == (0, 0)
    assert corrector.correct(jump_of(delta_s), buffer.last_id(), sent) == 7
    corrected = times(buffer)
    assert [corrected[seq][0] for seq in range(1, 11)] == [
        *range(1, 4),
        *(max(0, seq + delta_s) for seq in range(4, 11)),
    ]
    assert [corrected[seq][1] > 0 for seq in range(1, 11)] == [False] * 3 + [True] * 7
    assert buffer.counters.value("corrected") == 7


def test_a_correction_that_a_crash_interrupted_ends_at_the_next_start_and_corrects_nothing_twice(tmp_path, monkeypatch):
    buffer = filled(tmp_path)
    corrector = ClockCorrector(buffer, RULES)
    corrector.resume("boot", 0)
    monkeypatch.setattr("edge_agent.store.clock_correction.BATCHES_PER_STEP", 4)
    step = ClockCorrector._correct_some
    steps: list[int] = []

    def interrupted(self, *arguments):
        if len(steps) == 1:
            raise KeyboardInterrupt
        steps.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(ClockCorrector, "_correct_some", interrupted)
    with pytest.raises(KeyboardInterrupt):
        corrector.correct(jump_of(10_000), buffer.last_id(), set())
    monkeypatch.setattr(ClockCorrector, "_correct_some", step)
    again = open_buffer(tmp_path)
    assert ClockCorrector(again, RULES).resume("boot", 10_000 * SECOND) == (10_000 * SECOND, 6)
    assert [time for time, _ in times(again).values()] == [seq + 10_000 for seq in range(1, 11)]
    assert ClockCorrector(again, RULES).resume("boot", 10_000 * SECOND) == (10_000 * SECOND, 0)
