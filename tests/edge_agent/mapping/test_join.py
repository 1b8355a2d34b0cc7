"""Positions whose halves come in several messages."""

import json

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.intake.messages import MessageParser
from edge_agent.mapping.compiler import PositionHalf
from edge_agent.mapping.join import MAX_KEYS, JoinedPosition, PositionJoin
from tests.edge_agent.mapping.parsers import gives, parser_of

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


def test_a_half_is_stored_at_once_and_the_second_one_completes_the_position() -> None:
    parser = parser_of(CAR)
    (half,) = gives(parser, "cars/1/latitude", "53.5", 0)
    assert half == {"kind": "signal", "path": "Vehicle.CurrentLocation.Latitude", "value": 53.5, "time": None}
    assert parser.due_in(0) == 0.5
    signal, position = gives(parser, "cars/1/longitude", "9.9", 100 * MS)
    assert signal["path"] == "Vehicle.CurrentLocation.Longitude"
    assert (position["latitude"], position["longitude"]) == (53.5, 9.9)
    assert (parser.due_in(0), [*parser.expire(SECOND)]) == (None, [])


def test_a_half_that_has_not_changed_is_used_when_the_window_ends_and_is_marked() -> None:
    parser = parser_of(CAR)
    gives(parser, "cars/1/latitude", "53.5", 0)
    gives(parser, "cars/1/longitude", "9.9", 0)
    assert kinds(parser, "cars/1/longitude", "9.8", 20 * SECOND) == ["signal"]
    assert [*parser.expire(20 * SECOND + 499 * MS)] == []
    (late,) = parser.expire(20 * SECOND + 500 * MS)
    assert (late.topic, late.arrival_us) == ("cars/1/longitude", 20 * SECOND)
    assert late.parsed.mapping.endswith("+held")
    assert late.parsed.body.model_dump(exclude_none=True) == {"latitude": 53.5, "longitude": 9.8}
    assert kinds(parser, "cars/1/longitude", "9.7", 60 * SECOND) == ["signal"]
    assert [*parser.expire(70 * SECOND)] == [], "the other half is older than hold_s"
    assert parser.rows()[0]["records"] == 6


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


def test_after_a_crash_the_next_half_waits_for_its_own_other_half() -> None:
    before, after = parser_of(CAR), parser_of(CAR)
    assert kinds(before, "cars/1/latitude", "53.5", 0) == ["signal"], "stored before the crash"
    assert kinds(after, "cars/1/longitude", "9.9", 100 * MS) == ["signal"]
    assert [*after.expire(SECOND)] == [], "half a position is none"


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
    (late,) = parser.expire(6 * SECOND)
    assert late.parsed.device_time_us == (t + 5) * SECOND
    assert late.parsed.body.model_dump(exclude_none=True) == {"latitude": 53.5, "longitude": 9.8, "speed_mps": 3.0}
    assert kinds(parser, "t", json.dumps({"t": t + 9, "lat": 53.6}), 9 * SECOND) == ["signal"]
    assert kinds(parser, "t", json.dumps({"t": t + 20, "lon": 9.7}), 9 * SECOND) == ["signal"], "not measured together"


HALVES = st.lists(
    st.tuples(st.sampled_from(["latitude", "longitude"]), st.integers(0, 2), st.integers(0, 900)), max_size=40
)


@given(HALVES)
def test_every_position_is_of_halves_of_its_vehicle_that_came_within_the_allowed_times(
    halves: list[tuple[str, int, int]],
) -> None:
    settle, hold = 500 * MS, 2 * SECOND
    join = PositionJoin(settle_us=settle, hold_us=hold)
    at_us = 0
    arrived: dict[tuple[str, float], tuple[int, int]] = {}
    positions: list[JoinedPosition] = []
    for number, (name, vehicle, wait_ms) in enumerate(halves):
        at_us += wait_ms * MS
        degrees = number / 1000
        arrived[name, degrees] = (vehicle, at_us)
        positions += join.expire(at_us)
        half = PositionHalf(degrees, None, {}) if name == "latitude" else PositionHalf(None, degrees, {})
        positions += join.add_half((str(vehicle),), half, None, at_us)
    positions += join.expire(at_us + settle)
    assert join.due_us() is None
    for position in positions:
        its, other = (arrived["latitude", position.body.latitude], arrived["longitude", position.body.longitude])
        assert its[0] == other[0]
        assert abs(its[1] - other[1]) <= (hold if position.is_held else settle)
        assert position.arrival_us == max(its[1], other[1])
    used = [(one.body.latitude, one.body.longitude) for one in positions]
    assert len(set(used)) == len(used), "no pair becomes two positions"


def test_the_number_of_torn_positions_is_bounded() -> None:
    join = PositionJoin(settle_us=SECOND, hold_us=SECOND)
    for number in range(3 * MAX_KEYS):
        join.add_half((str(number),), PositionHalf(1.0, None, {}), None, number)
    assert len([*join.expire(10 * SECOND)]) == 0
    assert join.add_half(("0",), PositionHalf(None, 1.0, {}), None, 10) == [], "the oldest ones are forgotten"
