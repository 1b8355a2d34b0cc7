"""Visits and passages by the truth: a vehicle drives 1 unit of 0.0001 degrees a second to the east along a parallel."""

import json
from datetime import UTC, datetime, timedelta

from simulator.truth import TruePosition
from tests.truth.events import facts_of
from tests.truth.facts import TrueFacts, TruePassage, TrueVisit
from tests.truth.usage import TrueFences

START = datetime(2026, 3, 2, 10, tzinfo=UTC)
FROM = "2026-01-01T00:00:00+00:00"
OF = ("fleet", "van")


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def fences() -> TrueFences:
    """A fence from second 100 to second 900, and a gate at second 50 that is passed from its left to its right."""
    ring = [[0.01, -1], [0.09, -1], [0.09, 1], [0.01, 1], [0.01, -1]]
    zone = {"properties": {"id": "port", "priority": 0, "effective_from": FROM}}
    zone["geometry"] = {"type": "Polygon", "coordinates": [ring]}
    gate = {"properties": {"id": "gate", "gate": True, "effective_from": FROM}}
    gate["geometry"] = {"type": "LineString", "coordinates": [[0.005, -1], [0.005, 1]]}
    return TrueFences([json.dumps(zone), json.dumps(gate)])


def driven(*seconds: float, places: dict[float, float] | None = None) -> TrueFacts:
    """`places`: where the vehicle is at a second, if not at the place of that second."""
    times = [round((at(second) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) for second in seconds]
    units = [(places or {}).get(second, second) for second in seconds]
    fixes = [
        TruePosition(time, round(unit * 1000), 1_000_000, 5000, None) for time, unit in zip(times, units, strict=True)
    ]
    return facts_of(*OF, fixes, fences())


def test_entering_leaving_and_passing_are_interpolated() -> None:
    facts = driven(0, 140, 400, 700, 950)
    assert facts.visits == (TrueVisit(*OF, "port", at(100), at(900)),)
    assert facts.passages == (TruePassage(*OF, "gate", at(50), "forward"),)


def test_a_side_counts_where_the_vehicle_is_10_m_from_the_border() -> None:
    # 1 unit is 11.1 m
    assert driven(0, 100.8).visits == ()
    assert driven(0, 100.8, 120).visits == (TrueVisit(*OF, "port", at(100), None),)
    assert driven(101, 110, 120, 240, places={110: 99.2, 120: 130}).visits == ()


def test_of_a_visit_with_an_end_that_nobody_saw_the_time_of_its_events_is_known() -> None:
    begun_inside = driven(300, 500, 700, 950)
    assert begun_inside.visits == (TrueVisit(*OF, "port", at(300), at(900), is_entered=False),)
    # enters at 100, dwells at 400, is silent from 600 to 2000, and enters again at 2010
    silent = driven(0, 140, 400, 600, 2000, 2020, places={2000: 90, 2020: 110})
    assert silent.visits == (
        TrueVisit(*OF, "port", at(100), at(2010), known_until=at(400)),
        TrueVisit(*OF, "port", at(2010), None),
    )
