"""Space and age run out: the last class is dropped first, and everything is declared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.clocks import MAX_PACE, AgeClock
from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.store.retention import BufferRetention
from tests.edge_agent.makers import WALL_MS, fill, open_buffer
from waybill.record import IntervalSet, decode

CLASSES = (
    ClassSettings(name="urgent", topics=("e",), urgent=True),
    ClassSettings(name="position", topics=("p",)),
    ClassSettings(name="other", topics=("#",)),
)
ROOM = 1 << 40


def sent_and_declared(buffer):
    delivered, declared, reasons = IntervalSet(), IntervalSet(), set()
    for index in range(3):
        for block in buffer.read_after(0, index, 10_000):
            batch = decode(buffer.load(block.id))
            delivered, declared = delivered | batch.header.record_seqs, declared | batch.header.lost_seqs
            reasons |= {tombstone.reason for tombstone in batch.tombstones}
    return delivered, declared, reasons


def filled(tmp_path, batches=40, records=100):
    buffer = open_buffer(tmp_path)
    for number in range(batches):
        fill(buffer, range(number * records + 1, (number + 1) * records + 1), 1 + number % 2)
    return buffer


def size(buffer):
    return sum(one.size for one in buffer.depth().values())


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.1])
def test_the_quota_holds_and_every_record_is_kept_or_declared(tmp_path, share):
    buffer = filled(tmp_path)
    quota = int(size(buffer) * share)
    settings = BufferSettings.model_construct(**{**BufferSettings().model_dump(), "max_bytes": quota})
    BufferRetention(buffer, settings, CLASSES, lambda _: ROOM).enforce()
    delivered, declared, _ = sent_and_declared(buffer)
    assert size(buffer) <= quota
    assert delivered | declared == IntervalSet([(1, 4000)])
    assert not delivered & declared
    assert sum(one.records for one in buffer.depth().values()) == delivered.count
    assert buffer.counters.value("lost_quota") == declared.count


def test_a_class_keeps_to_its_own_quota_while_others_stay_whole(tmp_path):
    buffer = filled(tmp_path)
    other = buffer.depth()[2].size
    classes = (*CLASSES[:2], ClassSettings.model_construct(**{**CLASSES[2].model_dump(), "max_bytes": other // 2}))
    BufferRetention(buffer, BufferSettings(), classes, lambda _: ROOM).enforce()
    assert buffer.depth()[2].size <= other // 2
    assert buffer.depth()[1].records == 2000


def test_the_floor_of_the_file_system_is_kept_by_giving_up_the_oldest(tmp_path):
    buffer = filled(tmp_path)
    before = size(buffer)
    settings = BufferSettings(free_space_floor_bytes=10_000)
    BufferRetention(buffer, settings, CLASSES, lambda it: 5_000 + before - size(it)).enforce()
    assert 5_000 <= before - size(buffer) < 10_000
    assert sent_and_declared(buffer)[0] | sent_and_declared(buffer)[1] == IntervalSet([(1, 4000)])


def test_what_is_too_old_is_declared_and_a_clock_that_nobody_set_makes_nothing_old(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11), 1, wall_ms=5_000)
    retention = BufferRetention(buffer, BufferSettings(max_age_s=3600), CLASSES, lambda _: ROOM)
    assert retention.expire(WALL_MS, 0) == 0
    fill(buffer, range(11, 21), 2, wall_ms=WALL_MS - 3_700_000)
    fill(buffer, range(21, 31), 2, wall_ms=WALL_MS)
    assert retention.expire(WALL_MS, 0) == 1
    assert sent_and_declared(buffer)[1:] == (IntervalSet([(11, 20)]), {"age"})


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
