"""What is published anew: ids follow from what happened, and what is in force from the facts alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from shapely import box

from geo.spatial import (
    Fence,
    FenceSet,
    Fixes,
    GeofenceEvent,
    Revision,
    fact_id,
    find_events,
    in_force,
    new_revisions,
)
from geo.spatial.event_ids import latest_by_id
from tests.geo.spatial.worlds import every_fix, fence_lists, fences, identified, taken, walks

DEPOT = FenceSet(fences(("depot", box(10.0, 50.0, 10.02, 50.02))))
states = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3))
facts = st.lists(st.text() | st.integers(), max_size=4)


@given(st.lists(states, max_size=6), st.randoms(use_true_random=False))
def test_whatever_was_published_before_the_state_now_is_in_force_and_again_publishes_nothing(
    history: list[dict[str, int]], random: object
) -> None:
    known: list[Revision[int]] = []
    for now in history:
        random.shuffle(known)  # type: ignore[attr-defined]
        known += new_revisions(known, now)
        assert in_force(known) == now
        assert new_revisions(known, now) == []
    numbers = {name: sorted(one.revision for one in known if one.id == name) for name in {one.id for one in known}}
    assert all(found == list(range(len(found))) for found in numbers.values()), "each revision follows on the last"


@given(states, states)
def test_what_is_the_same_is_not_published_and_what_is_gone_keeps_what_it_said(
    before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    known = new_revisions([], before)
    news = latest_by_id(new_revisions(known, now))
    assert news.keys() == {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    gone = {name: one.content for name, one in news.items() if one.retracted}
    assert gone == {name: before[name] for name in before.keys() - now.keys()}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), unique=True), st.randoms())
def test_the_highest_revision_holds_in_whatever_order_they_come(numbers: list[tuple[str, int]], random: object) -> None:
    known = [Revision(name, number, name * number) for name, number in numbers]
    shuffled = list(known)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert latest_by_id(shuffled) == latest_by_id(known)
    highest = {name: max(number for other, number in numbers if other == name) for name, _ in numbers}
    assert {name: one.revision for name, one in latest_by_id(known).items()} == highest


@given(facts, facts)
@example(["a", "b"], ["a|b"])
@example(["a\nb"], ["a", "b"])
@example(["1"], [1])
@example(["\ud800"], [])
def test_other_facts_have_another_id_and_the_same_have_the_same(one: list[str | int], other: list[str | int]) -> None:
    assert (fact_id(*one) == fact_id(*other)) == (one == other)
    assert len(fact_id(*one)) == 24


def test_an_id_is_the_same_in_every_version_of_the_program() -> None:
    assert fact_id("event", "eu-0001", 7) == "80edce090adad21779a5d114"


@given(walks(devices=2), fence_lists(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_revised_as_fixes_arrive_in_any_order_ids_and_events_in_force_are_those_of_a_batch(
    fixes: Fixes, made: list[Fence], random: object, batches: int
) -> None:
    _, keep = np.unique(np.stack([fixes.device, fixes.t_ms]), axis=1, return_index=True)
    fixes = taken(fixes, np.sort(keep))
    order = np.arange(len(fixes))
    random.shuffle(order)  # type: ignore[attr-defined]
    every, known = FenceSet(made), list[Revision[GeofenceEvent]]()
    for part in range(1, batches + 1):
        tracks = every_fix(taken(fixes, np.sort(order[: len(order) * part // batches])))
        known += new_revisions(known, identified(tracks, find_events(tracks, every)))
    tracks = every_fix(fixes)
    batch = identified(tracks, find_events(tracks, every))
    assert list(in_force(known).items()) == sorted(batch.items())
