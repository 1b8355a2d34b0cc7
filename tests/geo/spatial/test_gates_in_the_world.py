"""A gate counts the ways that cross it and no others, wherever in the world it lies and however far it reaches."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geo.spatial import FenceError, Fixes, GateSet, TrackSettings, build_tracks, fences_from_geojson
from geo.spatial.clip import segments_of
from geo.spatial.gates import Gate, _unwrapped, crossings_of
from tests.examples import examples

Line = list[tuple[float, float]]
PLACES = st.tuples(st.integers(-180, 180), st.integers(-80, 80))
LINES = st.lists(PLACES, min_size=2, max_size=5, unique=True)


def crossed(gates: list[Line], way: Line) -> list[tuple[int, bool]]:
    """(gate, forward) of every crossing."""
    lon, lat = np.array(way, dtype=float).T
    fixes = Fixes(device=np.zeros(len(way), dtype=np.int64), t_ms=np.arange(len(way)) * 1000, lat=lat, lon=lon)
    found = GateSet([Gate(str(at), np.array(line, dtype=float)) for at, line in enumerate(gates)]).crossings(
        build_tracks(fixes, TrackSettings.every_fix())
    )
    return sorted(zip(found.gate.tolist(), found.forward.tolist(), strict=True))


def looked_at_one_by_one(gates: list[Line], way: Line) -> list[tuple[int, bool]]:
    """The same without an index: each segment against each gate, in whole numbers."""
    lon, lat = np.array(way, dtype=float).T
    fixes = Fixes(device=np.zeros(len(way), dtype=np.int64), t_ms=np.arange(len(way)) * 1000, lat=lat, lon=lon)
    parts = segments_of(build_tracks(fixes, TrackSettings.every_fix()))
    ends = zip(parts.px.tolist(), parts.py.tolist(), parts.qx.tolist(), parts.qy.tolist(), strict=True)
    lines = [_unwrapped(np.array(line, dtype=float)) for line in gates]
    return sorted(
        (at, forward)
        for end in ends
        for at, line in enumerate(lines)
        for forward, _ in crossings_of(end, line, range(len(line) - 1))
    )


def is_refused(line: Line) -> bool:
    """Does it go more than once round the world, or run back on itself? Of whole degrees all is exact."""
    corners = _unwrapped(np.array(line, dtype=float))
    step = np.diff(corners, axis=0)
    on, after = step[:-1], step[1:]
    straight = on[:, 0] * after[:, 1] == on[:, 1] * after[:, 0]
    refused = bool(np.ptp(corners[:, 0]) > 360.0 or (straight & ((on * after).sum(axis=1) < 0)).any())
    if refused:
        with pytest.raises(FenceError, match=r"round the world|runs back"):
            Gate("refused", np.array(line, dtype=float))
    return refused


@settings(max_examples=examples(60), deadline=None)
@example([[(0, 10), (20, 10), (10, 10)], [(30, 0), (30, 20)]], [(15, 5), (15, 15)])
@given(st.lists(LINES, min_size=1, max_size=3), st.lists(PLACES, min_size=2, max_size=6))
def test_a_gate_counts_what_looking_at_each_segment_counts(gates: list[Line], way: Line) -> None:
    usable = [gate for gate in gates if not is_refused(gate)]
    assert crossed(usable, way) == looked_at_one_by_one(usable, way)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ([[13, 52], [13, 52]], "two positions"),
        ([[13, 52]], "two positions"),
        ([], "two positions"),
        ([[13, 52], [181, 52]], "position is not valid"),
        ([[lon, 0] for lon in (0, 120, -120, 0, 120)], "more than once round the world"),
        ([[13, 52], [13, 53]] * 50, "runs back on itself"),
        ([[13, 52], [13, 53], [13, 52.5]], "runs back on itself"),
        ([[13, 52], [13, 53], [14, 52]] * 50, "twice along an edge"),
    ],
)
def test_a_line_that_is_no_gate_is_refused_by_name(line: list[list[float]], reason: str) -> None:
    feature = {"type": "Feature", "properties": {"id": "g", "gate": True}}
    text = json.dumps(feature | {"geometry": {"type": "LineString", "coordinates": line}})
    assert [reason in said and "g" in said for said in fences_from_geojson(text).refused] == [True]
    with pytest.raises(FenceError, match=reason):
        Gate("g", np.array(line, dtype=float).reshape(-1, 2))
