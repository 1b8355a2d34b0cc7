"""Facts from events: how visits are paired, and that order, duplicates and old revisions change nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.rating.facts import (
    EVENT_COLUMNS,
    DeviceFacts,
    Facts,
    Passage,
    Visit,
    driven_quarters,
    facts_of,
    rows_of_facts,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import GEOFENCE_EVENTS, USAGE

SCHEMA = pa.schema([GEOFENCE_EVENTS.field(name) for name in EVENT_COLUMNS])
MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
BEGIN, END = 100 * DAY, 131 * DAY


def event(kind: str, minute: int, value: float = 0.0, **changes: Any) -> dict[str, Any]:
    """An event some minutes after the period's begin; its name is its kind and minute."""
    row = {"id": f"{kind}{minute}", "revision": 0, "tenant": "fleet", "device": "van", "kind": kind, "place": "port"}
    row |= {"time": BEGIN + minute * MINUTE, "value": value, "retracted": False} | changes
    return {name: row[name] for name in EVENT_COLUMNS}


def all_facts(*rows: dict[str, Any]) -> Facts:
    return facts_of(pa.Table.from_pylist([*rows], schema=SCHEMA), BEGIN, END)


def facts(*rows: dict[str, Any]) -> DeviceFacts:
    """Of the only device."""
    (found,) = all_facts(*rows).values()
    return found


def visits(*rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Begin, end and moment of charging in minutes, entered, left, ids of each visit that ended."""
    made = facts(*rows).visits
    ended = [one for one in made if one.charged_us < END]
    return [(*((at - BEGIN) // MINUTE for at in one[3:6]), one.entered, one.left, one.ids) for one in ended]


def test_a_visit_is_an_enter_and_the_next_exit_at_the_same_fence() -> None:
    outer = [event("enter", 10), event("dwell", 15, 300.0), event("exit", 100, 5400.0)]
    inner = [event("enter", 20, place="quay", id="a"), event("exit", 30, 600.0, place="quay", id="b")]
    assert visits(*outer, *inner) == [
        (10, 100, 100, True, True, ("enter10", "dwell15", "exit100")),
        (20, 30, 30, True, True, ("a", "b")),
    ]


def test_what_was_not_seen_is_not_shown_as_certain() -> None:
    assert visits(event("exit", 50, 600.0)) == [(40, 50, 50, False, True, ("exit50",))]
    # the device showed up inside, and again after the night
    inside = [event("dwell", 5, 300.0), event("dwell", 905, 300.0), event("exit", 1000, 900.0)]
    assert visits(*inside) == [(0, 1000, 1000, False, True, ("dwell5", "dwell905", "exit1000"))]
    # the way out was in a gap: charged when the device enters again
    lost = [event("enter", 10), event("dwell", 15, 300.0), event("enter", 200), event("exit", 230, 1800.0)]
    assert visits(*lost) == [
        (10, 15, 200, True, False, ("enter10", "dwell15")),
        (200, 230, 230, True, True, ("enter200", "exit230")),
    ]
    assert visits(event("enter", 10), event("exit", 20, 600.0), event("exit", 40, 6000.0))[1][:2] == (20, 40)


def test_a_border_crossed_in_one_moment() -> None:
    again = [event("enter", 10), event("exit", 20, 600.0), event("enter", 20), event("exit", 30, 600.0)]
    assert [one[:2] for one in visits(*again)] == [(10, 20), (20, 30)]
    assert visits(event("enter", 10), event("exit", 10)) == [(10, 10, 10, True, True, ("enter10", "exit10"))]


def test_a_period_has_what_is_charged_in_it_and_a_day_before() -> None:
    minutes = 31 * 1440
    before = [event("enter", -3000), event("exit", -2000, 60000.0), event("enter", -1000), event("exit", -900, 6000.0)]
    over = [event("enter", -10, place="quay", id="a"), event("exit", 10, 1200.0, place="quay", id="b")]
    later = [event("enter", minutes - 5), event("exit", minutes, 300.0)]
    found = facts(*before, *over, *later)
    first, still, last = found.visits
    assert (first.ids, last.ids) == (("enter-1000", "exit-900"), ("a", "b"))
    assert (still.ids, still.end_us, still.charged_us, still.left) == ((f"enter{minutes - 5}",), END, END, False)
    gates = [event("forward", at, place="bridge") for at in (-1441, -1440, 5, minutes)]
    assert [one.id for one in facts(*gates).passages] == ["forward-1440", "forward5"]
    assert facts(event("backward", 7, place="bridge")).passages == [
        Passage("fleet", "van", "bridge", BEGIN + 7 * MINUTE, False, "backward7")
    ]


KINDS = st.sampled_from(["enter", "exit", "dwell", "forward", "backward", "speeding"])
PLACES = st.tuples(KINDS, st.integers(-50, 50), st.integers(0, 3), st.sampled_from("ab"), st.sampled_from("xy"))


@given(made=st.lists(PLACES, max_size=12), data=st.data())
def test_order_duplicates_and_old_revisions_change_nothing(made: list[Any], data: st.DataObject) -> None:
    rows = [
        event(kind, at, 60.0 * value, id=f"{number}", place=place, device=device)
        for number, (kind, at, value, place, device) in enumerate(made)
    ]
    expected = all_facts(*rows)
    older = [row | {"time": row["time"] + MINUTE, "retracted": number % 2 == 0} for number, row in enumerate(rows)]
    newer = [row | {"revision": 1} for row in rows]
    gone = [row | {"id": f"gone {row['id']}", "revision": of, "retracted": of == 1} for row in rows for of in (0, 1)]
    assert all_facts(*data.draw(st.permutations([*older, *newer, *newer, *gone]))) == expected
    found = [visit for one in expected.values() for visit in one.visits]
    ids = [name for one in found for name in one.ids]
    assert sorted(ids) == sorted(row["id"] for row in rows if row["kind"] in {"enter", "exit", "dwell"})
    assert all(one.begin_us <= one.end_us <= one.charged_us for one in found)


def test_driven_quarters_are_of_any_zone() -> None:
    def row(zone: str, hour: int, *distance_mm: int) -> dict[str, Any]:
        quantity = dict.fromkeys(("duration_ms", "entries", "crossings", "events", "content_bytes"), [0] * 4)
        text = {"seq_ranges": "{}", "fence_version": "", "digest": "0" * 16}
        moment = datetime(1970, 1, 1, hour, tzinfo=UTC)
        return (
            {"tenant": "fleet", "device": "van", "hour": moment, "zone": zone, "distance_mm": [*distance_mm]}
            | quantity
            | text
            | {"engine_version": 1, "day": moment.date(), "computed_at": moment, "commit_number": 1}
        )

    rows = [row("quay", 2, 0, 5, 0, 1), row("port", 2, 0, 7, 0, 0), row("", 1, 9, 9, 9, 9), row("*", 1, 0, 0, 0, 0)]
    (found,) = driven_quarters(pa.Table.from_pylist(rows, schema=USAGE)).items()
    assert found == (TenantDevice("fleet", "van"), [9, 11])
    assert driven_quarters(USAGE.empty_table()) == {}


def test_a_charge_names_its_events() -> None:
    stay = Visit("fleet", "van", "port", 5, 9, 9, True, True, ("b", "c"))
    passage = Passage("fleet", "van", "bridge", 7, True, "a")
    rows = rows_of_facts([stay, passage])
    assert (rows.rows, rows.first_hour.microsecond, rows.last_hour.microsecond) == (3, 5, 9)
    assert rows == rows_of_facts([passage, stay]) != rows_of_facts([stay])
