"""Space and age run out: the last class is dropped first, and everything is declared."""

import pytest

from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.store.retention import BufferRetention
from tests.edge_agent.makers import fill, open_buffer, sent_and_declared
from waybill.record import IntervalSet

CLASSES = (
    ClassSettings(name="urgent", topics=("e",), urgent=True),
    ClassSettings(name="position", topics=("p",)),
    ClassSettings(name="other", topics=("#",)),
)
ROOM = 1 << 40


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
    delivered, declared = sent_and_declared(buffer)
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
