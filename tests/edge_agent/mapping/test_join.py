"""Positions whose halves come in several messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.intake.messages import LateRecord, MessageParser
from edge_agent.mapping.compiler import PositionHalf
from edge_agent.mapping.join import MAX_KEYS, JoinedPosition, PositionJoin
from tests.edge_agent.mapping.parsers import gives, parser_of
from waybill.record import Position

CAR = """
[[mappings]]
name = "car"
topic = "cars/{car}/{member}"
format = "text"
time = { else = "arrival" }
[mappings.position]
latitude = { path = ".", unit = "deg", when = [{ level = "member", is = "latitude" }] }
longitude = { path = ".", unit = "deg", when = [{ level = "member", is = "longitude" }] }
absent = [[0, 0]]
[mappings.join]
settle_ms = 500
hold_s = 30
"""
MS, SECOND = 1_000, 1_000_000


def kinds(parser: MessageParser, topic: str, value: str, at_us: int) -> list[str]:
    return [record["kind"] for record in gives(parser, topic, value, at_us)]


def places(parser: MessageParser, steps: str, settled_us: int = 10**12) -> list[tuple[float, float, bool]]:
    """The positions after halves such as `0.1 lon 9.9; 10 lat 53`: seconds, half, text. True: it is held."""
    late: list[LateRecord] = []
    for step in steps.split(";"):
        seconds, half, value = step.split()
        at_us = round(float(seconds) * SECOND)
        late += parser.expire(at_us)
        gives(parser, f"cars/1/{half}itude" if half == "lat" else f"cars/1/{half}gitude", value, at_us)
    late += parser.expire(settled_us)
    bodies = [(one.parsed.body, one.parsed.mapping.endswith("+held")) for one in late]
    return [(body.latitude, body.longitude, held) for body, held in bodies if isinstance(body, Position)]


def test_a_half_is_stored_at_once_and_two_of_them_become_a_position_when_no_third_one_comes() -> None:
    parser = parser_of(CAR)
    (half,) = gives(parser, "cars/1/latitude", "53.5", 0)
    assert half == {"kind": "signal", "path": "Vehicle.CurrentLocation.Latitude", "value": 53.5, "time": None}
    assert parser.due_in(0) == 0.5
    assert kinds(parser, "cars/1/longitude", "9.9", 100 * MS) == ["signal"]
    assert parser.due_in(100 * MS) == 0.5
    (late,) = parser.expire(600 * MS)
    assert (late.topic, late.arrival_us) == ("cars/1/longitude", 100 * MS)
    assert late.parsed.body == Position(latitude=53.5, longitude=9.9)
    assert not late.parsed.mapping.endswith("+held")
    assert (parser.due_in(0), [*parser.expire(SECOND)]) == (None, [])
    assert parser.rows()[0]["records"] == 3


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("0 lat 53; 0 lon 10; 20 lon 10.1; 25 lon 10.2", [(53, 10, False), (53, 10.1, True)]),
        ("0 lat 53; 0 lon 10; 20 lon 10.1; 60 lon 10.2; 70 lon 10.3", [(53, 10, False), (53, 10.1, True)]),
        ("0 lat 53; 0.1 lon 10; 10 lat 53.1; 10.7 lon 10.1; 20 lat 53.2; 20.7 lon 10.2", [(53, 10, False)]),
        ("0 lat 53; 0.001 lon 10; 0.002 lon 10.5; 0.003 lat 53.9; 0.004 lon 10.9", [(53, 10, False)]),
        ("0 lat 53; 0.7 lon 10; 0.9 lat 53.1; 1.6 lon 10.1", []),
        ("0 lat 0; 0.1 lon 0; 10 lat 53.5; 10.6 lon 10", []),
        ("0 lat 53; 0.1 lon 10; 10 lat 0; 20 lat 53.5", [(53, 10, False)]),
        ("0 lat 53; 0.1 lon 10; 10 lat 91; 10.1 lon 181; 20 lon 11; 30 lon 12", [(53, 10, False)]),
        ("0 lat 53; 0.1 lon 10; 10 lat nil; 10.1 lon 11; 20 lon 12", [(53, 10, False)]),
        ("0 lat 53; 0.1 lat 53; 0.2 lon 10; 0.3 lon 10", [(53, 10, False)]),
    ],
    ids=["held", "too-old", "slow-link", "burst", "late-halves", "no-fix", "lost-fix", "sentinels", "null", "again"],
)
def test_no_position_mixes_halves_of_two_places(steps: str, expected: list[tuple[float, float, bool]]) -> None:
    assert places(parser_of(CAR), steps) == expected


def test_no_position_is_made_of_two_vehicles_or_of_no_fix() -> None:
    parser = parser_of(CAR)
    assert kinds(parser, "cars/1/latitude", "53.5", 0) == ["signal"]
    assert kinds(parser, "cars/2/longitude", "9.9", 0) == ["signal"]
    assert kinds(parser, "cars/3/latitude", "0", 0) == ["signal"]
    assert kinds(parser, "cars/3/longitude", "0", 0) == ["signal"]
    assert [*parser.expire(SECOND)] == []
    assert [record["reason"] for record in gives(parser, "cars/1/latitude", "95", 0)] == ["mapping:position:range"]
    assert [record["reason"] for record in gives(parser, "cars/1/latitude", "-", 0)] == ["mapping:latitude:type"]
    assert [record["reason"] for record in gives(parser, "cars/1/soc", "50", 0)] == ["mapping:when:no-match"]


def test_a_message_that_is_read_but_not_stored_changes_nothing() -> None:
    parser = parser_of(CAR)
    parser.parse("cars/1/latitude", b"53.5")
    assert (parser.due_in(0), parser.rows()[0]["messages"]) == (None, 0)


def test_a_device_that_sends_what_changed_keeps_whole_positions_and_completes_the_others() -> None:
    parser = parser_of("""
[[mappings]]
name = "delta"
topic = "t"
time = { path = "t", unit = "s" }
[mappings.position]
latitude = { path = "lat", unit = "deg" }
longitude = { path = "lon", unit = "deg" }
speed = { path = "v", unit = "m/s" }
[mappings.join]
""")
    t = 1_795_359_064
    assert kinds(parser, "t", json.dumps({"t": t, "lat": 53.5, "lon": 9.9}), 0) == ["position"]
    assert kinds(parser, "t", json.dumps({"t": t + 5, "lon": 9.8, "v": 3}), 5 * SECOND) == ["signal"]
    assert [*parser.expire(6 * SECOND)] == []
    assert kinds(parser, "t", json.dumps({"t": t + 6, "lon": 9.75}), 6 * SECOND) == ["signal"]
    (late,) = parser.expire(6 * SECOND)
    assert late.parsed.device_time_us == (t + 5) * SECOND
    assert late.parsed.body.model_dump(exclude_none=True) == {"latitude": 53.5, "longitude": 9.8, "speed_mps": 3.0}
    assert kinds(parser, "t", json.dumps({"t": t + 9, "lat": 53.6}), 9 * SECOND) == ["signal"]
    assert kinds(parser, "t", json.dumps({"t": t + 20, "lon": 9.7}), 9 * SECOND) == ["signal"], "not measured together"


def timed(*halves: tuple[str, int]) -> list[JoinedPosition]:
    """The positions of halves with device times in seconds, which all come at once. Their degrees are their times."""
    join = PositionJoin(settle_us=SECOND // 2, hold_us=30 * SECOND)
    joined: list[JoinedPosition] = []
    for name, seconds in halves:
        degrees = float(seconds)
        half = PositionHalf(degrees, None, {}) if name == "lat" else PositionHalf(None, degrees, {})
        joined += join.add_half((), half, seconds * SECOND, 0)
    return [*joined, *join.expire(SECOND)]


@pytest.mark.parametrize(
    ("halves", "expected"),
    [
        ([("lat", 0), ("lon", 0), ("lat", 20), ("lon", 10), ("lon", 20)], [(0, 0)]),
        ([("lon", 20), ("lon", 5), ("lon", 10), ("lat", 21), ("lat", 30)], []),
        ([("lat", 50), ("lon", 50), ("lat", 10), ("lon", 10)], [(10, 10)]),
        ([("lat", 0), ("lon", 0), ("lat", 40), ("lat", 50)], [(0, 0)]),
        ([("lat", 0), ("lon", 0), ("lat", 20), ("lat", 21)], [(0, 0), (20, 0)]),
    ],
)
def test_device_times_say_what_belongs_together(halves: list[tuple[str, int]], expected: list[tuple[int, int]]) -> None:
    positions = timed(*halves)
    assert [(one.body.latitude, one.body.longitude) for one in positions] == expected
    assert [one.time_us for one in positions] == [max(place) * SECOND for place in expected]


SETTLE_MS = 500
FIX = st.tuples(st.sampled_from(["lat", "lon", "lat lon", "lon lat"]), st.integers(0, 3000), st.integers(0, 3000))


def drive(fixes: list[tuple[str, int, int]]) -> tuple[list[JoinedPosition], set[tuple[float, float]]]:
    """What becomes of fixes (halves that changed, lag of the second half, pause before the fix), and their places."""
    join = PositionJoin(settle_us=SETTLE_MS * MS, hold_us=3600 * SECOND)
    place = {"lat": 0.0, "lon": 0.0}
    truth: set[tuple[float, float]] = set()
    positions: list[JoinedPosition] = []
    at_us = 0
    for number, (changed, lag_ms, pause_ms) in enumerate(fixes, 1):
        place |= dict.fromkeys(changed.split(), number / 1000)
        truth.add((place["lat"], place["lon"]))
        at_us += pause_ms * MS
        for count, name in enumerate(changed.split()):
            at_us += count * lag_ms * MS
            positions += join.expire(at_us)
            half = PositionHalf(place[name], None, {}) if name == "lat" else PositionHalf(None, place[name], {})
            positions += join.add_half((), half, None, at_us)
    return [*positions, *join.expire(at_us + SECOND)], truth


@given(st.lists(FIX, max_size=30), st.sampled_from(["lags", "pauses"]))
def test_torn_drives_give_only_places_of_the_drive(fixes: list[tuple[str, int, int]], short: str) -> None:
    """Whatever the lags are if the pauses are longer than the window, and whatever the pauses if the lags are not."""
    if short == "lags":
        fixes = [(changed, lag_ms % (SETTLE_MS + 1), pause_ms) for changed, lag_ms, pause_ms in fixes]
    else:
        fixes = [(changed, lag_ms, pause_ms + SETTLE_MS + 1) for changed, lag_ms, pause_ms in fixes]
    positions, truth = drive(fixes)
    places = [(one.body.latitude, one.body.longitude) for one in positions]
    assert set(places) <= truth
    assert len(set(places)) == len(places), "no pair becomes two positions"


def test_the_number_of_torn_positions_is_bounded() -> None:
    join = PositionJoin(settle_us=SECOND, hold_us=SECOND)
    for number in range(3 * MAX_KEYS):
        join.add_half((str(number),), PositionHalf(1.0, None, {}), None, number)
    assert len([*join.expire(10 * SECOND)]) == 0
    assert join.add_half(("0",), PositionHalf(None, 1.0, {}), None, 10) == [], "the oldest ones are forgotten"
