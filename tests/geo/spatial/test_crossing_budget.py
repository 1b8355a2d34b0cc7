"""A ring that crosses itself everywhere is refused before anything is made of it; what is long is used."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import shapely
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shapely import Polygon
from shapely.affinity import translate

from geo.spatial import FenceError, FenceReport, fences_from_geojson
from geo.spatial import rings as module
from geo.spatial.rings import refuse_too_many_crossings, world_polygon
from tests.examples import examples
from tests.geo.spatial.exact_fuzz import world


def read(*rings: np.ndarray, kind: str = "Polygon") -> FenceReport:
    closed = [np.vstack([ring, ring[:1]]).round(7).tolist() for ring in rings]
    coordinates = closed if kind == "Polygon" else [[ring] for ring in closed]
    whole = {
        "type": "Feature",
        "properties": {"id": "f"},
        "geometry": {"type": kind, "coordinates": coordinates},
    }
    return fences_from_geojson(json.dumps(whole))


def anywhere(count: int, seed: int = 1) -> np.ndarray:
    return np.array([10.0, 50.0]) + np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2))


def circle(count: int, noise: float = 0.0) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    ring = np.column_stack([10.0 + np.cos(angle), 50.0 + np.sin(angle)])
    return ring + noise * np.random.default_rng(2).normal(size=ring.shape)


@pytest.mark.parametrize("count", [200, 1600, 100_000])
def test_a_ring_of_corners_anywhere_is_refused_with_what_it_would_take(count: int) -> None:
    report = read(anywhere(count))
    assert len(report.refused) == 1
    assert "cross" in report.refused[0] or "side by side" in report.refused[0]


def test_a_ring_that_crosses_itself_here_and_there_is_repaired() -> None:
    assert len(read(anywhere(50)).repaired) == 1
    # as many crossings as it has edges, and more
    report = read(circle(5_000, noise=0.001))
    assert (len(report.fences), len(report.repaired)) == (1, 1)


def test_holes_and_parts_that_cross_each_other_everywhere_are_refused() -> None:
    comb = np.array([(10 + at / 100, 50 + (at % 2)) for at in range(300)] + [(13.0, 49.0), (10.0, 49.0)])
    other = np.column_stack([comb[:, 1] - 40.0, comb[:, 0] + 40.0])
    east = np.array([168.5, 0.0])
    for report in (
        read(comb, other),
        read(comb, other, kind="MultiPolygon"),
        read(comb + east, other + east),
    ):
        assert ("cross" in report.refused[0], report.fences) == (True, ())


def test_parts_with_a_long_common_border_are_one() -> None:
    border = np.column_stack([np.full(3_000, 10.0), np.linspace(50, 51, 3_000)])
    border[1:-1:2, 0] += 0.001
    west, east = np.vstack([border, [[9, 51], [9, 50]]]), np.vstack([border[::-1], [[11, 50], [11, 51]]])
    report = read(west, east, kind="MultiPolygon")
    assert [len(shapely.get_parts(fence.shape)) for fence in report.fences] == [1]


def test_edges_that_lie_side_by_side_in_millions_of_pairs_are_refused() -> None:
    at = np.arange(8_000)
    along, across = at / 4_000, np.where(at % 2 == 0, 10.0, 0.1)
    slanted = np.vstack([[[0, 0]], np.column_stack([along + across, across - along]), [[2, -2]]])
    assert "side by side" in read(slanted).refused[0]
    upright = np.vstack([[[0, 0]], np.column_stack([along, across]), [[2, 0]]])
    assert read(upright).refused == ()


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=4, max_size=30), st.integers(0, 60))
def test_the_pairs_that_are_counted_are_those_that_cross(corners: list[tuple[int, int]], most: int) -> None:
    ring = np.array([*corners, corners[0]], dtype=float)
    edges = list(pairwise(ring))
    # a line of no length would meet nothing
    lines = [shapely.LineString(edge) if (edge[0] != edge[1]).any() else shapely.Point(edge[0]) for edge in edges]
    crossing = sum(
        lines[one].intersects(lines[other])
        and not {tuple(end) for end in edges[one]} & {tuple(end) for end in edges[other]}
        for one in range(len(edges))
        for other in range(one)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_CROSSINGS", most - len(edges))
        refused = False
        try:
            refuse_too_many_crossings([Polygon(ring)], overlay=True)
        except FenceError:
            refused = True
    assert refused == (crossing > most)


GRID = st.integers(-6, 6)
ring_of = st.lists(st.tuples(GRID, GRID), min_size=3, max_size=6)


def test_a_hole_outside_of_its_fence_takes_nothing_away_and_adds_nothing() -> None:
    square = np.array([(10.0, 50.0), (11.0, 50.0), (11.0, 51.0), (10.0, 51.0)])
    for apart in ([5.0, 0.0], [1.0, 0.0], [0.5, 0.0]):
        (fence,) = read(square, square[::-1] + apart).fences
        assert fence.shape.area == pytest.approx(min(apart[0], 1.0))


@example([[[(0, 0), (0, 1), (1, 0)]], [[(0, 0), (0, -1), (1, 1)], [(0, 0), (1, 0), (0, 1), (0, -1), (1, 1)]]], 170)
@given(
    st.lists(st.lists(ring_of, min_size=1, max_size=3), min_size=1, max_size=3), st.sampled_from([170, 176, 180, -180])
)
def test_a_fence_over_the_antimeridian_is_the_same_as_anywhere(
    polygons: list[list[list[tuple[int, int]]]], by: int
) -> None:
    """Holes, repairs and parts that lie over each other, too: with the cut they may meet in the world only."""

    def made(east: int) -> shapely.Geometry | None:
        try:
            return world_polygon([[_moved(ring, east) for ring in rings] for rings in polygons])[0]
        except FenceError:
            return None

    here, there = made(0), made(by)
    parts = [] if there is None else shapely.get_parts(there).tolist()
    # back where it came from, from both sides of the cut
    back = [translate(part, _back(part, by)) for part in parts]
    whole = Polygon() if here is None else here
    assert all(shape.is_valid for shape in (whole, *parts))
    # by rounding a sliver of no width may be left, or be none
    assert sum(part.area for part in back) == pytest.approx(whole.area, abs=1e-9)
    assert shapely.union_all(back).symmetric_difference(whole).area == pytest.approx(0.0, abs=1e-9)


def _back(part: shapely.Geometry, east: int) -> float:
    turned = part.centroid.x * east < 0
    return float(360.0 * np.sign(east) * turned - east)


def _moved(ring: list[tuple[int, int]], east: int) -> np.ndarray:
    moved = np.array([(x + east, y) for x, y in (*ring, ring[0])], dtype=float)
    return np.column_stack([np.mod(moved[:, 0] + 180.0, 360.0) - 180.0, moved[:, 1]])


def test_a_polygon_of_which_nothing_is_left_takes_no_other_with_it() -> None:
    square = [(10, 50), (11, 50), (11, 51), (10, 51)]
    around = [(9, 49), (12, 49), (12, 52), (9, 52)]
    rings = [[np.array(ring, dtype=float) for ring in polygon] for polygon in ([square], [square, around])]
    shape, notes = world_polygon(rings)
    assert shape.area == pytest.approx(1.0)
    assert "a polygon was left out: its holes leave nothing of it" in notes
    with pytest.raises(FenceError, match="its holes leave nothing of it"):
        world_polygon(rings[1:])


def test_a_polygon_that_geos_fails_on_by_rounding_is_refused_with_what_it_says_wherever_it_is_made() -> None:
    """The world of a seed of the fuzz: valid rings, of which one cannot be taken from the other."""
    ring = [
        *[(127.99510000000001, 30.9995), (127.99470000000001, 31.0002), (127.9957923190368, 31.0004)],
        *[(127.9954, 30.9998), (127.995, 30.999859882983856), (127.99506900466332, 31.0005), (127.9954, 30.9994)],
        *[(127.9945, 30.9997), (127.99473630418201, 30.9996), (127.99510000000001, 30.9995)],
    ]
    hole = [
        *[(127.99508650852547, 30.99973065886559), (127.99495317519214, 30.999963992198925)],
        *[(127.99531728153774, 31.00003065886559), (127.99518650852548, 30.99983065886559)],
        *[(127.99505317519214, 30.999850619860208), (127.99507617674658, 31.000063992198925)],
        *[(127.99518650852548, 30.999697325532257), (127.99488650852547, 30.999797325532256)],
        *[(127.99496527658614, 30.999763992198925), (127.99508650852547, 30.99973065886559)],
    ]
    with pytest.raises(FenceError, match="its shape cannot be computed with: TopologyException"):
        world_polygon([[np.array(ring), np.array(hole)]])
    whole = {
        "type": "Feature",
        "properties": {"id": "f"},
        "geometry": {"type": "Polygon", "coordinates": [ring, hole]},
    }
    assert "its shape cannot be computed with" in fences_from_geojson(json.dumps(whole)).refused[0]
    assert world(61000532).shapes
