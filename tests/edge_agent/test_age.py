"""Age is judged by a clock that does not jump."""

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.clocks import MAX_PACE, AgeClock
from edge_agent.config import BufferSettings
from edge_agent.store.retention import BufferRetention
from tests.edge_agent.makers import WALL_MS, fill, open_buffer
from tests.edge_agent.test_bounds import CLASSES, ROOM, sent_and_declared
from waybill.record import IntervalSet

YEARS_11_MS = 11 * 365 * 86_400_000
DAY_MS = 86_400_000


def test_a_wall_clock_eleven_years_ahead_for_one_tick_makes_nothing_too_old(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11), wall_ms=WALL_MS)
    retention = BufferRetention(buffer, BufferSettings(), CLASSES, lambda _: ROOM)
    assert retention.expire(WALL_MS, 0) == 0
    assert retention.expire(WALL_MS + YEARS_11_MS, 60_000) == 0
    assert retention.expire(WALL_MS + 120_000, 120_000) == 0
    assert sent_and_declared(buffer)[0].count == 10


@given(st.lists(st.tuples(st.integers(0, 1 << 45), st.integers(0, 1 << 30)), min_size=1), st.integers(1, 1 << 44))
def test_the_clock_for_age_never_runs_ahead_of_the_wall_clock_nor_faster_than_its_pace(looks, left_ms):
    clock, monotonic_ms, before_ms = AgeClock(left_ms), 0, left_ms
    for place, (wall_ms, ran_ms) in enumerate(looks):
        monotonic_ms += ran_ms
        now_ms = clock.advance(wall_ms, monotonic_ms)
        assert now_ms <= wall_ms
        assert now_ms <= (before_ms or wall_ms) + MAX_PACE * (ran_ms if place else 0)
        before_ms = now_ms


def test_what_was_stamped_before_the_clock_was_set_is_as_old_as_what_followed_it(tmp_path):
    buffer = open_buffer(tmp_path)
    for number in range(1, 101):
        fill(buffer, [number], wall_ms=30_000)
    fill(buffer, [101], wall_ms=WALL_MS)
    fill(buffer, [102], wall_ms=WALL_MS + 10 * DAY_MS)
    retention = BufferRetention(buffer, BufferSettings(max_age_s=86_400), CLASSES, lambda _: ROOM)
    for day in range(10):
        retention.expire(WALL_MS + day * DAY_MS, day * DAY_MS)
    delivered, declared, reasons = sent_and_declared(buffer)
    assert (delivered, declared, reasons) == (IntervalSet([(102, 102)]), IntervalSet([(1, 101)]), {"age"})


def test_of_what_no_set_clock_stamped_no_age_is_known(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11), wall_ms=30_000)
    retention = BufferRetention(buffer, BufferSettings(max_age_s=60), CLASSES, lambda _: ROOM)
    assert retention.expire(WALL_MS, 0) == retention.expire(WALL_MS + DAY_MS, DAY_MS) == 0
