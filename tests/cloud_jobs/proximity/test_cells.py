"""The cells of a piece: two that meet share one, and no place on earth makes a piece reach more than its way does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.proximity.encounters import cells, length_m
from geo.spatial.clip import Segments
from geo.spatial.nearby import earth_centred


def segments(*ways: tuple[float, float, float, float]) -> Segments:
    px, py, qx, qy = np.array(ways, dtype=np.float64).T
    return Segments(px, py, qx, qy, np.zeros(len(px)), np.full(len(px), 1000.0))


def cells_of(pieces: Segments, distance_m: float, cell_m: float) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(pieces))]
    for piece, cell in cells(pieces, distance_m, cell_m):
        for one, number in zip(piece.tolist(), cell.tolist(), strict=True):
            found[one].append(number)
    return found


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


def columns(pieces: Segments) -> list[np.ndarray]:
    return [pieces.px, pieces.py, pieces.qx, pieces.qy, pieces.start_ms, pieces.end_ms]
