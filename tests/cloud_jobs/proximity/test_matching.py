"""Which known encounter each one is: the one that it overlaps most, found in one sweep over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.proximity import encounter_revisions
from cloud_jobs.proximity.encounter_revisions import EncounterRevision, Part, new_revisions

DAY_MS = 86_400_000


def apart(bounds: set[int]) -> list[tuple[float, float]]:
    """Stretches that do not touch each other."""
    limits = sorted(bounds)
    return [(float(start), float(end)) for start, end in zip(limits[::2], limits[1::2], strict=False)]


stretches = st.sets(st.integers(0, 40), max_size=20).map(apart)


def parts(start_ms: float, end_ms: float) -> tuple[Part, ...]:
    return (Part(0, start_ms, end_ms, 1.0, start_ms),)


def by_every_pair(
    known: list[EncounterRevision], encounters: list[tuple[Part, ...]]
) -> tuple[dict[str, float], set[str], int]:
    """Beginnings of those that stand on, the retracted, and how many are new: by looking at every pair."""
    left, kept, new = list(known), dict[str, float](), 0
    for (part,) in encounters:
        near = [one for one in left if one.start_ms <= part.end_ms and one.end_ms >= part.start_ms]
        if not near:
            new += 1
            continue
        best = max(
            near, key=lambda one: (min(one.end_ms, part.end_ms) - max(one.start_ms, part.start_ms), one.start_ms)
        )
        left.remove(best)
        kept[best.id] = part.start_ms
    return kept, {one.id for one in left}, new


@given(stretches, stretches, st.randoms(use_true_random=False))
def test_each_is_the_one_that_it_overlaps_most_in_the_order_of_time(
    before: list[tuple[float, float]], now: list[tuple[float, float]], random: Any
) -> None:
    known = [EncounterRevision(f"id-{at}", at, parts(*one)) for at, one in enumerate(before)]
    encounters = [parts(*one) for one in now]
    kept, retracted, new = by_every_pair(known, encounters)
    random.shuffle(known)
    news = new_revisions(known, encounters, {one.id for one in known}, "a|b")
    known_by_id = {one.id: one for one in known}
    assert {one.id for one in news if one.retracted} == retracted
    assert sum(one.id not in known_by_id for one in news) == new
    moved = {one.id: one.start_ms for one in news if one.id in known_by_id and not one.retracted}
    same = {name for name in kept if known_by_id[name].parts in encounters}
    still = {name: start for name, start in kept.items() if name in same and name not in moved}
    assert moved | still == kept
    assert all(one.revision == known_by_id[one.id].revision + 1 for one in news if one.id in known_by_id)


@pytest.mark.parametrize("shift_ms", [0, 5_000, 40_000_000])
def test_thousands_of_encounters_of_one_pair_are_compared_a_few_times_each(
    shift_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40_000
    step_ms = DAY_MS // count
    encounters = [parts(at * step_ms, at * step_ms + step_ms // 2) for at in range(count)]
    known = [
        EncounterRevision(f"{at:06}", 0, parts(at * step_ms + shift_ms, at * step_ms + step_ms // 2 + shift_ms))
        for at in range(count)
    ]
    calls: Counter[str] = Counter()
    real = encounter_revisions._overlap_ms

    def counted(*arguments: Any) -> float:
        calls["overlap"] += 1
        return real(*arguments)

    monkeypatch.setattr(encounter_revisions, "_overlap_ms", counted)
    news = new_revisions(known, encounters, {one.id for one in known}, "a|b")
    assert calls["overlap"] <= 3 * count
    assert len(news) == 0 if shift_ms == 0 else len(news) > 0


def test_of_an_encounter_that_falls_apart_the_first_part_keeps_the_id_and_of_two_that_join_the_longer() -> None:
    long = EncounterRevision("long", 0, parts(0.0, 100.0))
    news = new_revisions([long], [parts(0.0, 10.0), parts(20.0, 90.0)], {"long"}, "a|b")
    assert [(one.id == "long", one.start_ms, one.end_ms) for one in news] == [(True, 0.0, 10.0), (False, 20.0, 90.0)]
    short = replace(long, id="short", parts=parts(0.0, 10.0))
    longer = replace(long, id="longer", parts=parts(20.0, 90.0))
    news = new_revisions([short, longer], [parts(0.0, 100.0)], {"short", "longer"}, "a|b")
    assert {(one.id, one.retracted) for one in news} == {("short", True), ("longer", False)}
