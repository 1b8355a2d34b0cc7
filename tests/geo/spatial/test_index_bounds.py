"""What an index costs stays in proportion to its fences, however they lie; and what it finds stays right."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import shapely
from shapely import Polygon
from shapely.affinity import scale, translate

from geo.spatial import Fence, FenceSet, cells, grid
from geo.spatial.fences import Outlines
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots


def disc(corners: int, radius: float, x: float = 10.0, y: float = 50.0) -> Polygon:
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return Polygon(np.column_stack([x + radius * np.cos(angle), y + radius * np.sin(angle)]))


def comb(teeth: int) -> Polygon:
    x = 10 + np.arange(2 * teeth) / teeth
    top = np.where(np.arange(2 * teeth) % 2 == 0, 51.0, 50.1)
    return Polygon([(10.0, 50.0), *zip(x.tolist(), top.tolist(), strict=True), (12.0, 50.0)])


def moved(count: int, by: float, corners: int = 40) -> list[Polygon]:
    rng = np.random.default_rng(3)
    return [translate(disc(corners, 0.01), *(by * rng.normal(0, 1, 2))) for _ in range(count)]


def within_rows(index: GridIndex, shapes: list[Polygon], around: float = 0.012) -> None:
    rng = np.random.default_rng(4)
    x, y = 10 + rng.uniform(-around, around, 200), 50 + rng.uniform(-around, around, 200)
    point, shape = index.locate(Spots(x, y))
    pairs = np.argwhere([shapely.intersects_xy(one, x, y) for one in shapes])
    assert sorted(zip(shape.tolist(), point.tolist(), strict=True)) == [tuple(pair) for pair in pairs.tolist()]


def test_ten_thousand_identical_fences_are_indexed_once() -> None:
    shape = disc(100, 0.01)
    fences = [Fence(f"tenant-{at}", Polygon(shape.exterior)) for at in range(10_000)]
    tracemalloc.start()
    begin = time.process_time()
    made = FenceSet(fences)
    taken, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 5
    assert peak < 200e6
    point, fence = made.holding(np.array([10.0, 11.0]), np.array([50.0, 50.0]), np.zeros(2, dtype=np.int64))
    assert (set(point.tolist()), sorted(fence.tolist())) == ({0}, list(range(10_000)))


@pytest.mark.parametrize("world", ["millimetres", "metres", "concentric", "depot and country", "corners of one place"])
def test_fences_that_hardly_differ_cost_in_proportion_to_their_edges(world: str) -> None:
    shapes = {
        "millimetres": lambda: moved(300, 1e-8),
        "metres": lambda: moved(300, 1e-5),
        "concentric": lambda: [scale(disc(40, 0.01), 1 - at / 400, 1 - at / 400) for at in range(300)],
        "depot and country": lambda: [*moved(300, 1e-5), disc(40, 4.0)],
        "corners of one place": lambda: [Polygon([(10, 50), (10 + np.cos(a), 50 + np.sin(a)), (11.5, 50 + a)])
                                         for a in np.linspace(0.1, 1, 300)],
    }[world]()  # fmt: skip
    index = GridIndex(Outlines.of(shapes))
    entries = len(index._cells.run_edge) + len(index._cells.inner_fence)
    edges = sum(len(shape.exterior.coords) for shape in shapes)
    # whole cells of the lattice: 12 million and 52 for each fence at most
    assert entries < 12_000_000 + 52 * len(shapes) + 16 * edges
    within_rows(index, shapes)


def test_divisions_make_no_more_than_their_share_of_entries_for_each_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred fences in one cell of a country: the cell is divided as long as 16 entries for each edge last."""
    shapes = [*moved(300, 1e-5), disc(40, 4.0)]
    edges = sum(len(shape.exterior.coords) - 1 for shape in shapes)

    def entries() -> int:
        index = GridIndex(Outlines.of(shapes))
        return len(index._cells.run_edge) + len(index._cells.inner_fence)

    divided = entries()
    monkeypatch.setattr(cells, "MAX_LEVELS", 1)
    assert edges < divided - entries() <= cells.ENTRIES_PER_EDGE * edges


def test_long_edges_far_away_leave_a_city_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fence with long teeth makes the cells of all coarser; what its edges cost, they take from their own share."""
    rng = np.random.default_rng(7)
    city = [disc(100, 0.008, *at) for at in rng.uniform((13.2, 52.4), (13.7, 52.7), (1000, 2))]
    rows = -60 + np.arange(10_000) / 5_000
    teeth = [(x, y + by) for y in rows.tolist() for x, by in ((170, 0), (170, 4e-5), (-165, 6e-5), (-165, 9e-5))]
    far = Polygon([(-170, -60), *teeth, (170, -57.9), (-170, -57.9)])
    looked_at: list[int] = []
    turns = grid._turns

    def counted(*at: Any) -> Any:
        looked_at.append(len(at[3]))
        return turns(*at)

    monkeypatch.setattr(grid, "_turns", counted)
    places = Spots(*rng.uniform((13.2, 52.4), (13.7, 52.7), (1000, 2)).T)
    found = [GridIndex.of(shapes).locate(places) for shapes in (city, [*city, far])]
    assert all((one == other).all() for one, other in zip(*map(sort_pairs, found), strict=True))
    assert sum(looked_at) < 1000 * 10 * cells.EDGES_PER_CELL


def sort_pairs(pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.column_stack(pairs)[np.lexsort(pairs)]


@pytest.mark.nightly
def test_a_fence_of_a_million_corners_and_ten_thousand_that_hardly_differ() -> None:
    index = GridIndex(Outlines.of([disc(1_000_000, 1.0)]))
    within_rows(index, [disc(1_000_000, 1.0)], around=1.2)
    shapes = moved(10_000, 1e-5, corners=100)
    index = GridIndex(Outlines.of(shapes))
    assert index.nbytes() < 400e6
    within_rows(index, shapes[:], around=0.012)
