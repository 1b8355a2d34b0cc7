"""Ids of encounters follow from the pair, the slice in which an encounter began, and which of those there it is."""

from __future__ import annotations

import math

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloud_jobs.derived.outbox import NOTE
from cloud_jobs.proximity.encounter_revisions import BEGIN, INPUT, identified, joined_parts, parts_in, revise
from cloud_jobs.proximity.encounters import SLICE_MS, slice_day
from tests.cloud_jobs.proximity.centre import DAY_SLICES, as_rows, known_row
from tests.examples import examples

DAY = 20_000
FIRST = DAY * DAY_SLICES


Row = dict[str, float]


def part(number: int, start_s: float, end_s: float, *, meets: bool = True) -> Row:
    """Seconds within a slice of the day, within the distance or only not apart."""
    start, end = ((FIRST + number) * SLICE_MS + 1000 * at for at in (start_s, end_s))
    row = {"slice": FIRST + number, "from_ms": start, "to_ms": end, "min_m": 5.0 if meets else 9.0, "t_min_ms": start}
    return row | ({"start_ms": start, "end_ms": end} if meets else {"start_ms": math.inf, "end_ms": -math.inf})


def ids(*parts: Row, pair: tuple[str, str] = ("a", "b")) -> list[str]:
    """In the order of time."""
    return [*identified("acme", *pair, joined_parts(parts_in(parts))[0])]


def encounters(*parts: Row) -> list[list[int]]:
    """The slices of each."""
    return [[one.slice - FIRST for one in found] for found in joined_parts(parts_in(parts))[0]]


def test_an_encounter_ends_where_two_are_apart_and_not_where_they_are_only_beyond_the_distance() -> None:
    first, last = part(0, 100, 200), part(2, 300, 400)
    between = [part(0, 200, 900, meets=False), part(1, 0, 900, meets=False), part(2, 0, 300, meets=False)]
    assert encounters(first, *between, last) == [[0, 2]]
    for at in range(3):
        assert encounters(first, *(one for number, one in enumerate(between) if number != at), last) == [[0], [2]]
    assert encounters(*between) == []
    # parts that overlap, as several tasks find them, are one
    (found,) = parts_in([part(0, 0, 5), part(0, 4, 9), part(0, 0, 5), part(0, 8, 12, meets=False)])
    assert (found.start_ms, found.end_ms, found.open) == (part(0, 0, 9)["start_ms"], part(0, 0, 9)["end_ms"], BEGIN)


def test_an_encounter_that_lasts_longer_or_begins_earlier_in_its_slice_keeps_its_id() -> None:
    (short,) = ids(part(3, 100, 200))
    assert ids(part(3, 100, 900), part(4, 0, 900), part(5, 0, 10)) == [short]
    assert ids(part(3, 20, 900)) == [short]
    assert ids(part(2, 800, 900), part(3, 0, 200)) != [short]


def published(table: list[dict[str, object]], parts: list[Row], asked: set[int]) -> list[dict[str, object]]:
    """A run over some slices, of which these are all parts."""
    rows: list[dict[str, object]] = [
        one | {"pair": "acme/a\nacme/b", "device_a": "acme/a", "device_b": "acme/b"}
        for one in parts
        if one["slice"] in asked
    ]
    rows += [known_row(row) | {"pair": "acme/a\nacme/b", "asked": [*asked]} for row in table]
    return as_rows(revise(pa.Table.from_pylist(rows, schema=INPUT)))


def is_note(row: dict[str, object]) -> bool:
    return str(row["id"]).startswith(NOTE)


Meeting = tuple[int, int, bool]
BESIDE: list[list[Meeting]] = [[], [(0, 18, False)], [(0, 18, False)], [(0, 3, True)], [(15, 3, True)]]
within = st.tuples(st.integers(0, 17), st.integers(1, 18), st.booleans())
contents = st.sampled_from(BESIDE) | st.lists(within, max_size=3)
runs = st.dictionaries(st.integers(0, 4), contents, min_size=1)


@settings(max_examples=examples(400))
@example([{1: [(0, 18, False)]}, {0: [(15, 3, True)], 2: [(0, 3, True)]}])
@given(st.lists(runs, max_size=6))
def test_whatever_came_to_light_of_some_slices_at_once_the_end_is_that_of_one_run_over_all(
    history: list[dict[int, list[Meeting]]],
) -> None:
    facts: dict[int, list[Row]] = {}
    table: list[dict[str, object]] = []
    for seen in history:
        for number, met in seen.items():
            facts[number] = [
                part(number, 50 * begin, min(50 * (begin + length), 900), meets=meets) for begin, length, meets in met
            ]
        asked = {FIRST + number for number in seen}
        table += published(table, [one for found in facts.values() for one in found], asked)
    newest = {row["id"]: row for row in sorted(table, key=lambda row: str(row["revision"]).zfill(9))}
    names = ("id", "start", "end", "min_m", "min_at", "parts", "day")
    # notes too, if they say anything
    holds = (row for row in newest.values() if not row["retracted"] or (is_note(row) and row["parts"] != "[]"))
    in_force = [[row[name] for name in names] for row in holds]
    every = {FIRST + number for number in range(5)}
    batch = [
        [row[name] for name in names] for row in published([], [one for met in facts.values() for one in met], every)
    ]
    assert sorted(in_force, key=str) == sorted(batch, key=str)
    assert {row["day"] for row in table} <= {slice_day(FIRST)}
