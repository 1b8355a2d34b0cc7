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
    end_fixes,
    fact_id,
    find_events,
    in_force,
    new_revisions,
    ordinals,
)
from geo.spatial.event_ids import latest_by_id
from tests.geo.spatial.worlds import START_MS, every_fix, fence_lists, fences, identified, joined, line, taken, walks

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


@given(st.lists(states, min_size=1, max_size=4), st.lists(states, max_size=4))
def test_two_that_saw_different_things_on_the_way_end_with_the_same_in_force(
    one: list[dict[str, int]], other: list[dict[str, int]]
) -> None:
    ends = []
    for history in (one, [*other, one[-1]]):
        known: list[Revision[int]] = []
        for now in history:
            known += new_revisions(known, now)
        ends.append(in_force(known))
    assert ends[0] == ends[1]


@given(states, states)
def test_what_is_the_same_is_not_published_and_what_is_gone_keeps_what_it_said(
    before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    known = new_revisions([], before)
    news = latest_by_id(new_revisions(known, now))
    assert news.keys() == {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    gone = {name: one.content for name, one in news.items() if one.retracted}
    assert gone == {name: before[name] for name in before.keys() - now.keys()}


def test_what_was_retracted_and_happened_after_all_is_the_next_revision_of_its_id() -> None:
    known = [Revision("a", 0, "x"), Revision("a", 1, "x", retracted=True)]
    assert new_revisions(known, {"a": "x"}) == [Revision("a", 2, "x")]


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


@given(st.lists(st.sampled_from("abc")))
def test_equal_keys_are_numbered_in_their_order(keys: list[str]) -> None:
    assert ordinals(keys) == [keys[:at].count(key) for at, key in enumerate(keys)]


@given(walks(), fence_lists())
def test_the_fix_of_an_event_is_the_first_kept_one_at_its_time_or_after_it(fixes: Fixes, made: list[Fence]) -> None:
    tracks = every_fix(fixes)
    events = find_events(tracks, FenceSet(made))
    kept = [(fixes.device[row], fixes.t_ms[row], row) for row in tracks.row.tolist()]
    expected = [min((t, row) for name, t, row in kept if name == one.device and t >= one.t_ms)[1] for one in events]
    assert end_fixes(tracks, events).tolist() == expected


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


def test_a_late_fix_after_a_crossing_moves_the_event_and_one_before_it_makes_it_another_event() -> None:
    sparse = line([(9.99, 50.01), (10.03, 50.01)], 40_000)

    def events(*late: tuple[int, float, float]) -> dict[str, GeofenceEvent]:
        times, lon, lat = ([one[at] for one in late] for at in range(3))
        fixes = [sparse, Fixes(device=[0] * len(late), t_ms=START_MS + np.array(times, dtype=int), lat=lat, lon=lon)]
        tracks = every_fix(joined(fixes))
        return identified(tracks, find_events(tracks, DEPOT))

    first = new_revisions([], events())
    assert sorted((one.revision, one.content.kind) for one in first) == [(0, "enter"), (0, "exit")]
    second = new_revisions(first, events((20_000, 9.995, 50.01)))
    assert [(one.id, one.revision, one.retracted) for one in second] == [(one.id, 1, False) for one in first]
    assert sorted(one.content.t_ms - START_MS for one in second) == [22_857, 34_286]
    third = new_revisions([*first, *second], events((20_000, 9.995, 50.01), (30_000, 10.01, 50.01)))
    entered = [one for one in third if one.content.kind == "enter"]
    assert sorted((one.revision, one.retracted) for one in entered) == [(0, False), (2, True)]
    assert [(one.revision, one.retracted) for one in third if one.content.kind == "exit"] == [(2, False)]
    news = new_revisions([*first, *second, *third], events((10_000, 9.99, 50.1), (30_000, 10.03, 50.1)))
    assert {one.retracted for one in news} == {True}
    assert in_force([*first, *second, *third, *news]) == {}
