"""The lattice against Shapely's predicates: the same pairs, for any fences and any points."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import Polygon

from geo.spatial import cells
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots
from geo.spatial.ragged import joined_pairs
from tests.geo.spatial.worlds import places, shapes

Pairs = set[tuple[int, int]]


def by_shapely(polygons: list[Polygon], x: np.ndarray, y: np.ndarray) -> Pairs:
    point, fence = shapely.STRtree(polygons).query(shapely.points(x, y), predicate="intersects")
    return set(zip(point.tolist(), fence.tolist(), strict=True))


def by_lattice(polygons: list[Polygon], x: np.ndarray, y: np.ndarray) -> Pairs:
    point, fence = GridIndex.of(polygons).locate(Spots(x, y))
    assert len(point) == len(set(zip(point.tolist(), fence.tolist(), strict=True))), "a pair came twice"
    return set(zip(point.tolist(), fence.tolist(), strict=True))


@given(st.lists(shapes, min_size=1, max_size=8), st.lists(places, min_size=1, max_size=40), st.booleans())
def test_a_point_is_in_the_fences_that_shapely_says(
    polygons: list[Polygon], points: list[tuple[float, float]], deep: bool
) -> None:
    corners = shapely.get_coordinates(polygons)
    x, y = np.vstack([points, corners, (corners[1:] + corners[:-1]) / 2]).T
    with pytest.MonkeyPatch.context() as patch:
        if deep:  # few cells and few edges in each: many levels
            patch.setattr(cells, "MIN_CELLS", 4)
            patch.setattr(cells, "CELLS_PER_FENCE", 1)
            patch.setattr(cells, "EDGES_PER_CELL", 2)
        assert by_lattice(polygons, x, y) == by_shapely(polygons, x, y)


@given(
    st.lists(shapes, min_size=1, max_size=8),
    st.lists(st.tuples(places, places), min_size=1, max_size=20),
    st.booleans(),
)
def test_every_edge_that_a_segment_meets_is_found(
    polygons: list[Polygon], pairs: list[tuple[tuple[float, float], tuple[float, float]]], deep: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if deep:
            patch.setattr(cells, "MIN_CELLS", 4)
            patch.setattr(cells, "CELLS_PER_FENCE", 1)
            patch.setattr(cells, "EDGES_PER_CELL", 2)
        index = GridIndex.of(polygons)
    (px, py), (qx, qy) = (np.array([pair[end] for pair in pairs]).T for end in (0, 1))
    found = set(zip(*(part.tolist() for part in joined_pairs(index.edges_near(px, py, qx, qy))), strict=True))
    outlines, edges = index.outlines, index.outlines.edges()
    lines = shapely.linestrings(
        np.stack([np.column_stack(outlines.at(edges)), np.column_stack(outlines.at(edges + 1))], axis=1)
    )
    for segment, (p, q) in enumerate(pairs):
        meets = edges[shapely.intersects(lines, shapely.LineString([p, q]))]
        assert {(segment, edge) for edge in meets.tolist()} <= found


def test_no_fences_hold_nothing() -> None:
    assert by_lattice([], np.array([0.0, 1.0]), np.array([0.0, 1.0])) == set()
