"""Records of probes as they show: new, again under their record id, or there under another one; and what they say."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.config import CANARY_RECORD, POSITION, CanaryScript, ProbeItem, ScriptSettings
from deploy.canary.probes import canary_name
from deploy.canary.watch import RecordBook, RecordOfProbe, content_fault, records_of_batch
from waybill.record import Batch, Body, Canary, Position, Record, encode

SCRIPT = CanaryScript(ScriptSettings(latitude=54.6, longitude=4.2))
DEVICE, NUMBER, EPOCH = "canary-eu", 7, 3


def records() -> list[RecordOfProbe]:
    """What a probe leaves, each under its record id."""
    places = {SCRIPT.begins_ms(NUMBER) + fix.after_ms: (fix.latitude, fix.longitude) for fix in SCRIPT.fixes(NUMBER)}
    return [
        RecordOfProbe(
            item, EPOCH, seq, places[item.t_ms] if item.name == POSITION else None, canary_name(DEVICE, NUMBER)
        )
        for seq, item in enumerate(SCRIPT.record_items(NUMBER), 1)
    ]


@given(st.lists(st.sampled_from(records()), max_size=40))
def test_in_any_order_and_repetition_each_item_is_new_once_and_again_otherwise(shown: list[RecordOfProbe]) -> None:
    book, new, again = RecordBook(), list[ProbeItem](), 0
    for record in shown:
        showing = book.note(NUMBER, [record])
        new += showing.new
        again += showing.again
        assert showing.under_other_ids == 0
    assert sorted(new) == sorted({record.item for record in shown})
    assert again == len(shown) - len(new)


def test_the_same_item_under_another_record_id_is_a_double() -> None:
    book, (first, *_) = RecordBook(), records()
    book.note(NUMBER, [first])
    assert book.note(NUMBER, [first._replace(seq=99)]).under_other_ids == 1
    assert book.note(NUMBER, [first._replace(epoch=99)]).under_other_ids == 1


@given(st.randoms())
def test_what_was_sent_has_no_fault_and_a_place_or_name_that_is_another_has(order: random.Random) -> None:
    mine = records()
    order.shuffle(mine)
    assert {content_fault(SCRIPT, DEVICE, NUMBER, one) for one in mine} == {""}
    fix = next(one for one in mine if one.item.name == POSITION)
    assert content_fault(SCRIPT, DEVICE, NUMBER, fix._replace(place=(54.6, 4.3)))
    name = next(one for one in mine if one.item.name == CANARY_RECORD)
    assert content_fault(SCRIPT, DEVICE, NUMBER, name._replace(name=canary_name(DEVICE, NUMBER + 1)))


def test_a_batch_gives_its_fixes_and_canaries_and_one_of_another_device_nothing() -> None:
    bodies: list[Body] = [Canary(id="x"), Position(latitude=1.0, longitude=2.0)]
    batch = Batch(DEVICE, EPOCH, 2, tuple(Record(at, 5_000_000, body) for at, body in enumerate(bodies, 1)), (), 0)
    named, fix = records_of_batch(encode(batch), DEVICE)
    assert (named.item, named.name) == (ProbeItem(CANARY_RECORD, 5_000), "x")
    assert (fix.item, fix.record_id, fix.place) == (ProbeItem(POSITION, 5_000), (EPOCH, 2), (1.0, 2.0))
    assert records_of_batch(encode(batch), "another") == []
