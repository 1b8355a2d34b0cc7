"""A ring that crosses itself everywhere is refused before anything is made of it; what is long is used."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import Polygon

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
