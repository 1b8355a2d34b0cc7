"""A partition that gives nothing: whether nothing is left, or what there is does not come."""

from __future__ import annotations

from waybill.pulsar.pulsar_positions import ASK_S, EntryPosition, Silence


def test_what_the_cluster_has_and_does_not_give_is_withheld_once_it_was_asked_twice() -> None:
    seen = Silence()
    assert not seen.is_to_ask(1e9), "nothing was read yet: there is nothing to compare with"
    seen.on_read(EntryPosition(7, 3), 100.0)
    assert not seen.is_to_ask(100.0 + ASK_S / 2)
    assert seen.is_to_ask(100.0 + ASK_S)
    seen.on_end(EntryPosition(7, 4), 110.0)
    once = seen.is_withheld
    assert not seen.is_to_ask(110.0 + ASK_S / 2)
    seen.on_end(EntryPosition(7, 4), 120.0)
    twice = seen.is_withheld
    seen.on_read(EntryPosition(7, 4), 121.0)
    assert (once, twice, seen.is_withheld) == (False, True, False), "once it may be on its way"


def test_of_what_was_there_at_the_beginning_others_may_have_acknowledged_what_is_behind_what_was_not() -> None:
    seen = Silence()
    seen.on_begin(EntryPosition(7, 10), 0.0)
    seen.on_read(EntryPosition(7, 5), 1.0)
    for at in range(1, 5):
        seen.on_end(EntryPosition(7, 10), at * ASK_S)
        assert not seen.is_withheld
    # this came since: nobody else can have acknowledged it
    seen.on_end(EntryPosition(7, 11), 5 * ASK_S)
    seen.on_end(EntryPosition(7, 11), 6 * ASK_S)
    assert seen.is_withheld
