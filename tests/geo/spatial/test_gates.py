"""Gates count what looking at each segment counts; a line that is no gate is refused."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import (
    FenceError,
    Fixes,
    GateSet,
    TrackSettings,
    build_tracks,
    fences_from_geojson,
)
from geo.spatial.gates import Gate
from tests.examples import examples

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
