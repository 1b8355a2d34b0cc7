"""What only touches a border: the engine and the simulator's exact truth, which share no code, count the same."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import (
    OUTSIDE,
    EventSettings,
    FenceError,
    FenceSet,
    Fixes,
    GateSet,
    TrackSettings,
    ZoneSet,
    build_tracks,
    fences_from_geojson,
    find_events,
)
from geo.spatial.gates import Gate
from simulator.truth.journal import TruePosition
from simulator.truth.metering import usage_of
from simulator.truth.shapes import Zones, read_zones
from tests.examples import examples
from tests.geo.spatial.worlds import START_MS, every_fix

Steps = list[tuple[int, int]]
STEP_MS = 100_000
# in thousandths of a degree: a square with a hole, one over it, two that share a border and a corner with it
RINGS = {
    "square": (10, [[(0, 0), (10, 0), (10, 10), (0, 10)], [(3, 3), (6, 3), (6, 6), (3, 6)]]),
    "over": (20, [[(8, 8), (14, 8), (14, 12), (8, 12)]]),
    "beside": (5, [[(-4, 0), (0, 0), (0, 4), (-4, 4)]]),
    "corner": (5, [[(10, 0), (10, -4), (14, -4), (14, 0)]]),
}


def geojson() -> str:
    def closed(ring: list[tuple[int, int]]) -> list[list[float]]:
        return [[(10_000 + x) / 1000, (50_000 + y) / 1000] for x, y in [*ring, ring[0]]]

    features = [
        {
            "type": "Feature",
            "properties": {"id": name, "priority": priority},
            "geometry": {"type": "Polygon", "coordinates": [closed(ring) for ring in rings]},
        }
        for name, (priority, rings) in RINGS.items()
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


@pytest.fixture(scope="module")
def exactly(tmp_path_factory: pytest.TempPathFactory) -> Zones:
    path = tmp_path_factory.mktemp("town") / "fences.geojson"
    path.write_text(geojson())
    return read_zones(path)


FENCES = fences_from_geojson(geojson()).fences
ZONES = ZoneSet(FENCES)


def by_truth(steps: Steps, zones: Zones) -> dict[str, tuple[int, int]]:
    fixes = [
        TruePosition((START_MS + at * STEP_MS) * 1000, (10_000 + x) * 10_000, (50_000 + y) * 10_000, None)
        for at, (x, y) in enumerate(steps)
    ]
    ms, entries = Counter[str](), Counter[str]()
    for row in usage_of("d", fixes, zones):
        ms[row.zone] += row.duration_ms
        entries[row.zone] += row.entries
    return {zone: (ms[zone], entries[zone]) for zone in ms if ms[zone] or entries[zone]}


def fixes_of(steps: Steps) -> Fixes:
    return Fixes(
        device=[0] * len(steps),
        t_ms=[START_MS + at * STEP_MS for at in range(len(steps))],
        lat=[(50_000 + y) / 1000 for _, y in steps],
        lon=[(10_000 + x) / 1000 for x, _ in steps],
    )


def by_engine(steps: Steps) -> dict[str, tuple[int, int]]:
    pieces = ZONES.split(every_fix(fixes_of(steps)))
    ms, entries = Counter[str](), Counter[str]()
    for zone, part_ms, entry in zip(pieces.zone.tolist(), pieces.ms.tolist(), pieces.entry.tolist(), strict=True):
        name = "" if zone == OUTSIDE else ZONES.names[zone]
        ms[name] += part_ms
        entries[name] += entry
    return {name: (round(ms[name]), entries[name]) for name in ms if round(ms[name]) or entries[name]}


def events(steps: Steps) -> list[tuple[str, str]]:
    found = find_events(every_fix(fixes_of(steps)), FenceSet(FENCES), settings=EventSettings())
    return [(event.kind, event.place) for event in found]


def test_a_way_out_of_a_zone_that_touches_a_corner_of_its_hole_stays_in_it(exactly: Zones) -> None:
    steps = [(2, 4), (4, 2)]  # touches the hole's corner at (3, 3)
    assert by_truth(steps, exactly) == by_engine(steps) == {"square": (STEP_MS, 0)}
    assert events(steps) == []


grid = st.integers(-5, 15)


@given(st.lists(st.tuples(grid, grid), min_size=2, max_size=12))
def test_on_a_grid_where_ways_touch_corners_all_the_time_both_count_the_same(exactly: Zones, steps: Steps) -> None:
    truth, engine = by_truth(steps, exactly), by_engine(steps)
    assert {zone: entries for zone, (_, entries) in truth.items()} == {
        zone: entries for zone, (_, entries) in engine.items()
    }
    assert all(abs(truth[zone][0] - engine[zone][0]) <= 1 for zone in truth)


Line = list[tuple[float, float]]
PLACES = st.tuples(st.integers(-180, 180), st.integers(-80, 80))
LINES = st.lists(PLACES, min_size=2, max_size=2, unique_by=(lambda place: (place[0] % 360, place[1])))


def crossed(gates: list[Line], way: Line) -> list[tuple[int, bool]]:
    lon, lat = np.array(way, dtype=float).T
    fixes = Fixes(device=np.zeros(len(way), dtype=np.int64), t_ms=np.arange(len(way)) * 1000, lat=lat, lon=lon)
    found = GateSet([Gate(str(at), np.array(line, dtype=float)) for at, line in enumerate(gates)]).crossings(
        build_tracks(fixes, TrackSettings.every_fix())
    )
    return sorted(zip(found.gate.tolist(), found.forward.tolist(), strict=True))


def short_way(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    step = end[0] - start[0]
    return end[0] - 360 * (step > 180) + 360 * (step < -180), end[1]


def looked_at_one_by_one(gates: list[Line], way: Line) -> list[tuple[int, bool]]:
    """The same without an index: each segment against each gate, in whole degrees, by each name of its longitudes."""

    def cross(a: tuple[float, float], b: tuple[float, float], place: tuple[float, float]) -> float:
        return (b[0] - a[0]) * (place[1] - a[1]) - (b[1] - a[1]) * (place[0] - a[0])

    found = []
    places = [(x - 360 * (x == 180), y) for x, y in way]
    for p, end in pairwise(places):
        q = short_way(p, end)
        for number, gate in enumerate(gates):
            (ax, ay), (bx, by) = gate[0], short_way(gate[0], gate[1])
            for turn in (-720, -360, 0, 360, 720):
                a, b = (ax + turn, ay), (bx + turn, by)
                from_left, to_left = cross(a, b, p) >= 0, cross(a, b, q) >= 0
                if from_left != to_left and cross(p, q, a) * cross(p, q, b) <= 0:
                    found.append((number, from_left))
    return sorted(found)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(LINES, min_size=1, max_size=3), st.lists(PLACES, min_size=2, max_size=6))
def test_a_gate_counts_what_looking_at_each_segment_counts(gates: list[Line], way: Line) -> None:
    assert crossed(gates, way) == looked_at_one_by_one(gates, way)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ([[13, 52], [13, 52]], "are the same"),
        ([[180, 52], [-180, 52]], "are the same"),
        ([[13, 52]], "exactly two positions"),
        ([], "exactly two positions"),
        ([[13, 52], [13, 53], [14, 53]], "exactly two positions"),
        ([[13, 52], [181, 52]], "position is not valid"),
    ],
)
def test_a_line_that_is_no_gate_is_refused_by_name(line: list[list[float]], reason: str) -> None:
    feature = {"type": "Feature", "properties": {"id": "g", "gate": True}}
    text = json.dumps(feature | {"geometry": {"type": "LineString", "coordinates": line}})
    assert [reason in said and "g" in said for said in fences_from_geojson(text).refused] == [True]
    with pytest.raises(FenceError, match=reason):
        Gate("g", np.array(line, dtype=float).reshape(-1, 2))
