"""What was sent and what arrives of it: records, events, and the usage of a quarter of an hour."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canary.config import CANARY_RECORD, POSITION, CanaryScript, ProbeItem, ScriptSettings
from gateway.canary.lake_observers import ProbeCover, QuarterUsage, covered, usage_fault
from gateway.canary.probes import SentProbes, canary_name
from gateway.canary.watch import EventBook, EventOfProbe, RecordBook, RecordOfProbe, content_fault, records_of_batch
from geo.spatial import DayEvent, identified
from waybill.record import Batch, Body, Canary, Position, Record, encode

PER_QUARTER = 4


@given(st.booleans(), st.lists(st.booleans(), max_size=20))
def test_after_any_history_a_quarter_is_known_exactly_if_nothing_in_it_was_cut_or_followed_a_cut(
    has_driven: bool, is_whole: list[bool]
) -> None:
    sent, unknown, whole = SentProbes(after_cut=has_driven), set[int](), dict[int, list[int]]()
    after_cut = has_driven
    for number, ends_whole in enumerate(is_whole):
        quarter = number // PER_QUARTER
        if after_cut:
            unknown.add(quarter)
        sent.begin(number, quarter)
        after_cut = not ends_whole
        if ends_whole:
            sent.end()
            whole.setdefault(quarter, []).append(number)
        else:
            sent.cut()
            unknown.add(quarter)
    quarters = range(len(is_whole) // PER_QUARTER + 1)
    assert {quarter for quarter in quarters if sent.is_unknown(quarter)} == unknown
    assert {quarter: sent.whole(quarter) for quarter in quarters if sent.whole(quarter)} == whole


def test_probes_drive_to_and_fro() -> None:
    sent = SentProbes(after_cut=False)
    assert sent.may_follow(6)
    sent.begin(6, 0)
    sent.end()
    assert [number for number in range(7, 12) if sent.may_follow(number)] == [7, 9, 11]


SCRIPT = CanaryScript(ScriptSettings(latitude=54.6, longitude=4.2))
TENANT, DEVICE, NUMBER = "canary", "canary-eu", 1_000


def event(kind: str, off_ms: int = 0, seq: int = 3) -> EventOfProbe:
    """An event of the probe as the engine finds it, `off_ms` from its moment."""
    item = next(one for one in SCRIPT.event_items(NUMBER) if one.name == kind)
    found = DayEvent(item.t_ms + off_ms, kind, "canary-eu", 0.0, 1, seq)
    (name,) = identified(TENANT, DEVICE, [found])
    return EventOfProbe(name, found)


def book() -> EventBook:
    return EventBook(SCRIPT, TENANT, DEVICE)


@given(st.lists(st.sampled_from(["enter", "exit"]), max_size=8))
def test_each_event_is_the_item_of_the_probe_however_often_it_comes(kinds: list[str]) -> None:
    one = book()
    for kind in kinds:
        item, fault = one.note(NUMBER, event(kind))
        assert (item and item.name, fault) == (kind, "")


@given(st.integers(-10_000, 10_000))
def test_an_event_that_is_off_by_more_than_its_rounding_is_wrong(off_ms: int) -> None:
    assert bool(book().note(NUMBER, event("enter", off_ms))[1]) == (abs(off_ms) > 5)


def test_one_event_under_two_ids_is_a_double() -> None:
    one = book()
    one.note(NUMBER, event("enter"))
    item, fault = one.note(NUMBER, event("enter", seq=4))
    assert (item, "two ids" in fault) == (None, True)


SHOWN_DEVICE, SHOWN_NUMBER, EPOCH = "canary-eu", 7, 3


def records() -> list[RecordOfProbe]:
    places = {
        SCRIPT.begins_ms(SHOWN_NUMBER) + fix.after_ms: (fix.latitude, fix.longitude)
        for fix in SCRIPT.fixes(SHOWN_NUMBER)
    }
    return [
        RecordOfProbe(
            item,
            EPOCH,
            seq,
            places[item.t_ms] if item.name == POSITION else None,
            canary_name(SHOWN_DEVICE, SHOWN_NUMBER),
        )
        for seq, item in enumerate(SCRIPT.record_items(SHOWN_NUMBER), 1)
    ]


@pytest.mark.parametrize("is_once", [True, False])
@given(shown=st.lists(st.sampled_from(records()), max_size=40))
def test_in_any_order_and_repetition_each_item_is_new_once_and_a_repetition_is_a_double_in_a_table(
    is_once: bool, shown: list[RecordOfProbe]
) -> None:
    book, new, doubles = RecordBook(is_once=is_once), list[ProbeItem](), 0
    for record in shown:
        found, count = book.note(SHOWN_NUMBER, [record])
        new += found
        doubles += count
    assert sorted(new) == sorted({record.item for record in shown})
    assert doubles == (len(shown) - len(new) if is_once else 0)


def test_the_same_item_under_another_record_id_is_a_double() -> None:
    book, (first, *_) = RecordBook(is_once=False), records()
    book.note(SHOWN_NUMBER, [first])
    assert book.note(SHOWN_NUMBER, [first._replace(seq=99)]) == ([], 1)
    assert book.note(SHOWN_NUMBER, [first._replace(epoch=99)]) == ([], 1)


@given(st.randoms())
def test_what_was_sent_has_no_fault_and_a_place_or_name_that_is_another_has(order: random.Random) -> None:
    mine = records()
    order.shuffle(mine)
    assert {content_fault(SCRIPT, SHOWN_DEVICE, SHOWN_NUMBER, one) for one in mine} == {""}
    fix = next(one for one in mine if one.item.name == POSITION)
    assert content_fault(SCRIPT, SHOWN_DEVICE, SHOWN_NUMBER, fix._replace(place=(54.6, 4.3)))
    name = next(one for one in mine if one.item.name == CANARY_RECORD)
    assert content_fault(
        SCRIPT, SHOWN_DEVICE, SHOWN_NUMBER, name._replace(name=canary_name(SHOWN_DEVICE, SHOWN_NUMBER + 1))
    )


def test_a_batch_gives_its_fixes_and_canaries_and_one_of_another_device_nothing() -> None:
    bodies: list[Body] = [Canary(id="x"), Position(latitude=1.0, longitude=2.0)]
    batch = Batch(
        SHOWN_DEVICE, EPOCH, 2, tuple(Record(at, 5_000_000, body) for at, body in enumerate(bodies, 1)), (), 0
    )
    named, fix = records_of_batch(encode(batch), SHOWN_DEVICE)
    assert (named.item, named.name) == (ProbeItem(CANARY_RECORD, 5_000), "x")
    assert (fix.item, fix.record_id, fix.place) == (ProbeItem(POSITION, 5_000), (EPOCH, 2), (1.0, 2.0))
    assert records_of_batch(encode(batch), "another") == []


INSIDE_MM = 100_000
ITEMS = [ProbeItem("position", at) for at in range(5)]


@given(st.integers(0, 60))
def test_what_whole_probes_drove_is_right_and_one_entry_more_or_less_is_not(count: int) -> None:
    probes = [ProbeCover.WHOLE] * count
    right = QuarterUsage(count, count * INSIDE_MM)
    assert usage_fault(right, probes, INSIDE_MM, before=ProbeCover.WHOLE) == ""
    for entries in (count - 1, count + 1):
        assert usage_fault(right._replace(entries=entries), probes, INSIDE_MM, before=ProbeCover.WHOLE)
    for distance_mm in (count * (INSIDE_MM - 3) - 1, count * (INSIDE_MM + 3) + 1):
        assert usage_fault(right._replace(distance_mm=distance_mm), probes, INSIDE_MM, before=ProbeCover.WHOLE)


@given(st.lists(st.sampled_from(ProbeCover), max_size=12), st.data())
def test_whatever_the_parts_that_are_covered_may_have_driven_is_right(
    probes: list[ProbeCover], data: st.DataObject
) -> None:
    whole = probes.count(ProbeCover.WHOLE)
    perhaps = data.draw(st.integers(0, probes.count(ProbeCover.PART)))
    usage = QuarterUsage(whole + perhaps, (whole + perhaps) * INSIDE_MM)
    assert usage_fault(usage, probes, INSIDE_MM, before=ProbeCover.WHOLE) == ""
    assert usage_fault(QuarterUsage(len(probes) + 2, 0), probes, INSIDE_MM, before=ProbeCover.WHOLE)


@given(st.lists(st.integers(1, 20), min_size=5, max_size=5), st.integers(0, 21))
def test_a_probe_is_covered_by_what_its_records_are(numbers: list[int], covers: int) -> None:
    there = sum(number <= covers for number in numbers)
    wanted = ProbeCover.WHOLE if there == 5 else ProbeCover.PART if there else ProbeCover.NOTHING
    assert covered(ITEMS, dict(zip(ITEMS, numbers, strict=True)), covers) is wanted
