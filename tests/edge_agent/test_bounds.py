"""Space and age run out: downsampled before dropped, the last class first, everything declared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.store.retention import BufferRetention, StorageUsage, downsampled, next_eviction_step
from tests.edge_agent.makers import WALL_MS, fill, open_buffer
from tests.strategies import batches
from waybill.record import Batch, Event, IntervalSet, Record, Signal, decode

CLASSES = (
    ClassSettings(name="urgent", topics=("e",), urgent=True),
    ClassSettings(name="position", topics=("p",), downsample_keep_one_in=5),
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
    assert buffer.counters.value("lost_downsampled") + buffer.counters.value("lost_quota") == declared.count


def test_what_may_be_downsampled_is_downsampled_before_anything_is_dropped(tmp_path):
    buffer = filled(tmp_path)
    settings = BufferSettings.model_construct(**{**BufferSettings().model_dump(), "max_bytes": int(size(buffer) * 1.1)})
    BufferRetention(buffer, settings, CLASSES, lambda _: ROOM).enforce()
    _, declared, reasons = sent_and_declared(buffer)
    assert reasons == {"downsampled"}
    assert declared


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


def test_when_there_is_nothing_left_to_give_up_it_ends(tmp_path):
    buffer = filled(tmp_path, 4, 10)
    BufferRetention(buffer, BufferSettings(), CLASSES, lambda _: 0).enforce()
    delivered, declared, _ = sent_and_declared(buffer)
    assert not delivered
    assert declared == IntervalSet([(1, 40)])


def test_what_is_too_old_is_declared_and_a_clock_that_nobody_set_makes_nothing_old(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11), 1, wall_ms=5_000)
    retention = BufferRetention(buffer, BufferSettings(max_age_s=3600), CLASSES, lambda _: ROOM)
    assert retention.expire(WALL_MS, 0) == 0
    fill(buffer, range(11, 21), 2, wall_ms=WALL_MS - 3_700_000)
    fill(buffer, range(21, 31), 2, wall_ms=WALL_MS)
    assert retention.expire(WALL_MS, 0) == 1
    assert sent_and_declared(buffer)[1:] == (IntervalSet([(11, 20)]), {"age"})


@given(batches(), st.integers(2, 10))
def test_downsampling_keeps_some_of_every_series_and_declares_the_rest(batch, keep_one_in):
    fewer = downsampled(batch, keep_one_in)
    assert fewer.header.seqs == batch.header.seqs
    assert set(fewer.records) <= set(batch.records)
    kept_for_ever = {record for record in batch.records if type(record.body).__name__ in {"Event", "Canary"}}
    assert kept_for_ever <= set(fewer.records)
    paths = {record.body.path for record in batch.records if isinstance(record.body, Signal)}
    assert paths == {record.body.path for record in fewer.records if isinstance(record.body, Signal)}


def test_downsampling_takes_one_in_so_many_of_each_series():
    records = [Record(n, n, Signal(path=f"S{n % 2}", value=1.0)) for n in range(1, 21)]
    records.append(Record(21, 21, Event(name="door")))
    fewer = downsampled(Batch("d", 7, 21, tuple(records)), 5)
    assert [record.seq for record in fewer.records] == [1, 2, 11, 12, 21]


@given(
    st.dictionaries(st.integers(0, 2), st.integers(1, 10_000), max_size=3),
    st.integers(0, 10_000),
    st.sets(st.integers(0, 2)),
    st.integers(0, 1 << 27),
)
def test_a_step_is_asked_for_only_beyond_a_bound_and_only_of_what_is_there(sizes, tombstones, downsampleable, free):
    settings = BufferSettings.model_construct(**{**BufferSettings().model_dump(), "max_bytes": 9_000})
    usage = StorageUsage(sizes, tombstones, frozenset(downsampleable & sizes.keys()), free)
    step = next_eviction_step(settings, CLASSES, usage)
    within = usage.total <= 0.8 * 9_000 and free >= settings.free_space_floor_bytes
    if within:
        assert step is None
    elif step is not None:
        assert step.class_index in sizes
        assert step.size > 0
        assert step.action == "downsample" or not usage.downsampleable
