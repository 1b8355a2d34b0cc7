"""Ids of encounters follow from the pair, the slice in which an encounter began, and which of those there it is."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.proximity.encounter_revisions import INPUT, Part, identified, joined_parts, revise
from cloud_jobs.proximity.meeting import slice_day
from cloud_jobs.proximity.slices import SLICE_MS
from tests.cloud_jobs.proximity.centre import DAY_SLICES, as_rows, known_row

DAY = 20_000
FIRST = DAY * DAY_SLICES


def part(number: int, start_s: float, end_s: float) -> Part:
    """Seconds within a slice of the day."""
    begin_ms = (FIRST + number) * SLICE_MS
    return Part(FIRST + number, begin_ms + 1000 * start_s, begin_ms + 1000 * end_s, 5.0, begin_ms + 1000 * start_s)


def ids(*parts: Part, pair: tuple[str, str] = ("a", "b")) -> list[str]:
    """In the order of time."""
    return [*identified("acme", *pair, joined_parts(parts))]


def test_an_encounter_that_lasts_longer_or_begins_earlier_in_its_slice_keeps_its_id() -> None:
    (short,) = ids(part(3, 100, 200))
    assert ids(part(3, 100, 900), part(4, 0, 900), part(5, 0, 10)) == [short]
    assert ids(part(3, 20, 900)) == [short]
    assert ids(part(2, 800, 900), part(3, 0, 200)) != [short]


def test_of_two_that_join_and_of_one_that_falls_apart_the_first_keeps_the_id() -> None:
    first, second = ids(part(3, 100, 200), part(4, 100, 200))
    assert ids(part(3, 100, 900), part(4, 0, 200)) == [first]
    assert ids(part(3, 100, 150), part(3, 160, 200))[0] == first
    assert second not in ids(part(3, 100, 150), part(3, 160, 200))


def test_another_pair_and_another_slice_have_other_ids() -> None:
    pairs = [("a", "b"), ("a", "c"), ("*", "a"), ("*", "b")]
    found = [name for pair in pairs for number in range(90) for name in ids(part(number, 0, 1), pair=pair)]
    assert len(set(found)) == 4 * 90


def published(table: list[dict[str, object]], parts: list[Part], asked: set[int]) -> list[dict[str, object]]:
    """A run over some slices, of which these are all parts."""
    rows: list[dict[str, object]] = [
        one._asdict() | {"pair": "acme/a\nacme/b", "device_a": "acme/a", "device_b": "acme/b"}
        for one in parts
        if one.slice in asked
    ]
    rows += [known_row(row) | {"pair": "acme/a\nacme/b", "asked": [*asked]} for row in table]
    return as_rows(revise(pa.Table.from_pylist(rows, schema=INPUT)))


meetings = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 17), st.integers(1, 4)), max_size=8)


@given(st.lists(st.tuples(meetings, st.sets(st.integers(0, 4))), max_size=5), meetings)
def test_whatever_was_known_of_some_slices_the_end_is_that_of_one_run_over_all(
    history: list[tuple[list[tuple[int, int, int]], set[int]]], final: list[tuple[int, int, int]]
) -> None:
    def parts(found: list[tuple[int, int, int]]) -> list[Part]:
        return [part(number, 50 * begin, min(50 * (begin + length), 900)) for number, begin, length in found]

    every = {FIRST + number for number in range(5)}
    table: list[dict[str, object]] = []
    for found, asked in [*history, (final, {number - FIRST for number in every})]:
        table += published(table, parts(found), {FIRST + number for number in asked})
    newest = {row["id"]: row for row in sorted(table, key=lambda row: str(row["revision"]).zfill(9))}
    names = ("id", "start", "end", "min_m", "min_at", "parts", "day")
    in_force = [[row[name] for name in names] for row in newest.values() if not row["retracted"]]
    batch = [[row[name] for name in names] for row in published([], parts(final), every)]
    assert sorted(in_force, key=str) == sorted(batch, key=str)
    assert {row["day"] for row in table} <= {slice_day(FIRST)}


def test_parts_of_slices_of_which_positions_are_erased_stay_as_they_are_known() -> None:
    whole = [part(number, 0, 900) for number in range(4)]
    table = published([], whole, {FIRST + number for number in range(4)})
    asked = [FIRST + number for number in range(4)]
    rows: list[dict[str, object]] = [known_row(row) | {"pair": "acme/a\nacme/b", "asked": asked} for row in table]
    before = {"a": FIRST, "b": FIRST + 2}
    seen: set[tuple[str, str]] = set()

    def first_computable(tenant: str, device: str) -> int:
        seen.add((tenant, device))
        return before[device]

    # nothing of the fixes is left: without the erasure all would be taken back
    (kept,) = as_rows(revise(pa.Table.from_pylist(rows, schema=INPUT), first_computable))
    assert (kept["retracted"], kept["id"], kept["revision"]) == (False, table[0]["id"], 1)
    assert (kept["start"], kept["end"]) == (whole[0].start_ms * 1000, whole[1].end_ms * 1000)
    assert seen == {("acme", "a"), ("acme", "b")}
