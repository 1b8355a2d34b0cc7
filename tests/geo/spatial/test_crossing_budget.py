"""A ring that crosses itself everywhere is refused before anything is made of it; what is long is used."""

from __future__ import annotations

import json

import numpy as np
import pytest

from geo.spatial import FenceError, FenceReport, fences_from_geojson
from geo.spatial.rings import world_polygon
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
    assert "too often to be repaired" in report.refused[0]


def test_a_ring_that_crosses_itself_here_and_there_is_repaired() -> None:
    assert len(read(anywhere(50)).repaired) == 1
    # as many crossings as it has edges, and more
    report = read(circle(1_900, noise=0.001))
    assert (len(report.fences), len(report.repaired)) == (1, 1)


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
