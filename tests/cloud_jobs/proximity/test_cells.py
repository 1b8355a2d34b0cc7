"""The cells of a piece: two that meet share one, and no place on earth makes a piece reach more than its way does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.proximity import slices
from cloud_jobs.proximity.config import ProximitySettings
from cloud_jobs.proximity.meeting import FIXES, pieces_of
from cloud_jobs.proximity.slices import SLICE_MS, cells, length_m
from geo.spatial import TrackSettings
from geo.spatial.clip import Segments
from geo.spatial.nearby import earth_centred

START_MS = 20_000 * 86_400_000


def segments(*ways: tuple[float, float, float, float]) -> Segments:
    px, py, qx, qy = np.array(ways, dtype=np.float64).T
    return Segments(px, py, qx, qy, np.zeros(len(px)), np.full(len(px), 1000.0))


def cells_of(pieces: Segments, distance_m: float, cell_m: float) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(pieces))]
    for piece, cell in cells(pieces, distance_m, cell_m):
        for one, number in zip(piece.tolist(), cell.tolist(), strict=True):
            found[one].append(number)
    return found


@pytest.mark.parametrize(
    ("lat", "east"), [(89.9999, 170.0), (90.0, 179.0), (89.99, 150.0), (89.9999, 20.0), (-89.9999, 170.0)]
)
def test_two_fixes_of_one_device_beside_a_pole_are_a_piece_of_a_few_cells(lat: float, east: float) -> None:
    rows = [
        {"device": "a", "t_ms": START_MS + seq * 60_000, "epoch": 1, "seq": seq, "latitude": lat, "longitude": lon}
        for seq, lon in enumerate((0.0, east))
    ]
    table = pa.Table.from_pylist([row | {"accuracy_m": 5.0} for row in rows], schema=FIXES)
    near = np.arange(START_MS // SLICE_MS - 1, START_MS // SLICE_MS + 2)
    found = list(pieces_of(table, near, TrackSettings(), apart_m=50.0, cell_m=5000.0))
    assert 1 <= sum(batch.num_rows for batch in found) <= 8


lats = st.one_of(
    st.floats(-90, 90),
    st.sampled_from([90.0, -90.0, 89.9999, -89.99, 89.9]),
    st.floats(89.9, 90.0),
    st.floats(-0.1, 0.1),
)
lons = st.one_of(st.floats(-180, 179.999), st.sampled_from([0.0, -180.0, 179.9999]))
turned = st.one_of(st.floats(-180, 180), st.floats(-0.01, 0.01), st.sampled_from([0.0, 180.0, -180.0, 179.9999]))


polar = st.floats(89.98, 90.0)
around = st.tuples(lons, polar, st.floats(-180, 180), polar)  # as far as they are long they bend
ways = st.one_of(around, st.tuples(lons, lats, turned, lats)).map(
    lambda way: segments((way[0], way[1], way[0] + way[2], way[3]))
)


@given(ways, st.sampled_from([1.0, 50.0, 1_000.0]), st.sampled_from([1.0, 1.5, 100.0]))
def test_no_piece_reaches_more_cells_than_its_steps_have(way: Segments, distance_m: float, larger: float) -> None:
    cell_m = max(larger * distance_m, 100.0)
    steps = max(1, int(np.ceil(length_m(way)[0] / cell_m)))
    if steps <= 2_000:  # the longest has 200,000 of 100 m
        (found,) = cells_of(way, distance_m, cell_m)
        assert 1 <= len(found) == len(set(found)) <= 5**3 * steps


beside = st.tuples(st.floats(0, 1), st.floats(0, 2 * np.pi), st.floats(0, 0.999))


@given(ways, beside, st.sampled_from([50.0, 900.0]), st.sampled_from([1.0, 2.0, 20.0]))
def test_two_that_come_within_the_distance_share_a_cell(
    way: Segments, place: tuple[float, float, float], distance_m: float, larger: float
) -> None:
    cell_m = larger * distance_m
    part, towards, near = place
    x, y = way.at(np.zeros(1, dtype=np.int64), np.array([part]))
    # another that stands beside the way, about as far from that place as the distance, or nearer
    v = y + near * distance_m * np.cos(towards) / 111_700.0
    u = x + near * distance_m * np.sin(towards) / (111_700.0 * np.maximum(np.cos(np.radians(v)), 1e-9))
    u = (u + 180.0) % 360.0 - 180.0
    if length_m(way)[0] > 2_000 * cell_m or abs(v[0]) > 90.0:
        return
    if np.linalg.norm(earth_centred(x, y) - earth_centred(u, v)) <= distance_m:
        stands = segments((u[0], v[0], u[0], v[0]))
        both = map(np.concatenate, zip(columns(way), columns(stands), strict=True))
        one, other = cells_of(Segments(*both), distance_m, cell_m)
        assert set(one) & set(other)


def test_a_way_round_a_pole_shares_a_cell_with_what_stands_where_it_bends_to() -> None:
    # an arc of a kilometre, 1,010 m from the pole: its middle is 118 m from its chord, in the next cell
    both = segments((-28.0, 90 - 0.009043, 28.0, 90 - 0.009043), (0.0, 90 - 0.009401, 0.0, 90 - 0.009401))
    arc, stands = cells_of(both, 50.0, 1_000.0)
    assert set(arc) & set(stands)


def columns(pieces: Segments) -> list[np.ndarray]:
    return [pieces.px, pieces.py, pieces.qx, pieces.qy, pieces.start_ms, pieces.end_ms]


def test_pieces_are_taken_in_blocks_and_each_is_whole_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = segments(*((lon, 0.0, lon + 1.0, 0.5) for lon in range(20)), (0.0, 89.99, 179.0, 89.99))
    whole = cells_of(pieces, 50.0, 5_000.0)
    monkeypatch.setattr(slices, "_STEPS_AT_ONCE", 40)
    taken = [set(piece.tolist()) for piece, _ in cells(pieces, 50.0, 5_000.0)]
    assert len(taken) > 10
    assert sum(map(len, taken)) == len(set().union(*taken)) == len(pieces)
    assert cells_of(pieces, 50.0, 5_000.0) == whole


def test_cells_smaller_than_the_distance_are_refused() -> None:
    with pytest.raises(ValidationError, match="cell_m"):
        ProximitySettings(distance_m=5_000.0, cell_m=200.0)
