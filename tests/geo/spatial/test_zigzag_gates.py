"""Gates that a way crosses thousands of times: bounded in what is held, the same however the ways are taken."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import Fixes, GateSet, Tracks, TrackSettings, build_tracks
from geo.spatial import gates as bounded
from geo.spatial.clip import segments_of
from geo.spatial.gates import Crossings, Gate, _fault_of, _unwrapped, crossings_of

Line = list[tuple[float, float]]


def zigzag(zags: int, west: float = 10.0) -> Gate:
    x = west + np.arange(zags + 1) * (0.01 / zags)
    return Gate(
        "zigzag", np.column_stack([np.mod(x + 180.0, 360.0) - 180.0, np.where(np.arange(zags + 1) % 2, 50.001, 49.999)])
    )


def ways(count: int, west: float = 10.0, step: float = 5e-4) -> Tracks:
    """Ways from one side of the zigzag to the other and back, each of another device; some begin on a corner of it."""
    lat = 49.9997 + np.arange(count) * (step / count)
    lats = np.column_stack([np.where(np.arange(count) % 5, lat, 49.999), lat, lat[::-1]])
    lons = np.column_stack([np.full(count, west), np.full(count, west + 0.011), np.full(count, west - 0.001)])
    lons = np.mod(lons + 180.0, 360.0) - 180.0
    t_ms = np.tile([0, 60_000, 120_000], count) + 1_767_603_422_000
    return build_tracks(
        Fixes(device=np.repeat(np.arange(count), 3), t_ms=t_ms, lat=lats.ravel(), lon=lons.ravel()),
        TrackSettings.every_fix(),
    )


def same(one: Crossings, other: Crossings) -> None:
    for name in Crossings.__slots__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_gate_of_thousands_of_zags_takes_the_memory_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    gates, tracks = GateSet([zigzag(2_000)]), ways(200)
    monkeypatch.setattr(bounded, "PAIRS_AT_ONCE", 20_000)
    tracemalloc.start()
    count = sum(len(part) for part in gates.crossings_in_parts(tracks))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count > 700_000
    # of each pair that is held some hundred bytes, and what is near, some at once
    assert peak < 100e6


GRID = st.tuples(st.integers(0, 5), st.integers(0, 3))


@given(st.lists(GRID, min_size=2, max_size=14), st.lists(GRID, min_size=2, max_size=8))
def test_a_gate_that_is_touched_here_and_crossed_there_counts_what_looking_at_each_segment_counts(
    corners: Line, way: Line
) -> None:
    line = np.array(corners, dtype=float)
    if _fault_of(line) is not None:
        return
    lon, lat = np.array(way, dtype=float).T
    fixes = Fixes(device=np.zeros(len(way), dtype=np.int64), t_ms=np.arange(len(way)) * 1000, lat=lat, lon=lon)
    tracks = build_tracks(fixes, TrackSettings.every_fix())
    found = GateSet([Gate("g", line)]).crossings(tracks)
    segments, ends = segments_of(tracks), tracks.row[tracks.segments()]
    expected = []
    for row in range(len(segments)):
        px, py, qx, qy = (float(at[row]) for at in (segments.px, segments.py, segments.qx, segments.qy))
        crossed = crossings_of((px, py, qx, qy), _unwrapped(line), range(len(_unwrapped(line)) - 1))
        expected += [(int(ends[row]), forward, segments.start_ms[row] + at * 1000) for forward, at in crossed]
    rows = list(zip(found.end_fix.tolist(), found.forward.tolist(), found.t_ms.tolist(), strict=True))
    assert sorted(row[:2] for row in rows) == sorted(row[:2] for row in expected)
    assert [t_ms for *_, t_ms in rows] == pytest.approx([t_ms for *_, t_ms in expected], abs=1e-6)
