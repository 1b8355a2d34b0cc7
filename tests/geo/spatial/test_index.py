"""The lattice against Shapely's predicates: the same pairs, for any fences and any points."""

import time
import tracemalloc

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import Polygon, box
from shapely.affinity import scale, translate

from geo.spatial import Fence, FenceSet, Fixes, Tracks, cells, use_by_fence
from geo.spatial import fence_set as bounded
from geo.spatial.clip import segments_of
from geo.spatial.fences import Outlines
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots
from geo.spatial.ragged import joined_pairs, lexical
from tests.geo.spatial.worlds import START_MS, every_fix, places, shapes

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


def disc(corners: int, radius: float, x: float = 10.0, y: float = 50.0) -> Polygon:
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return Polygon(np.column_stack([x + radius * np.cos(angle), y + radius * np.sin(angle)]))


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


@pytest.mark.nightly
def test_a_fence_of_a_million_corners_and_ten_thousand_that_hardly_differ() -> None:
    index = GridIndex(Outlines.of([disc(1_000_000, 1.0)]))
    within_rows(index, [disc(1_000_000, 1.0)], around=1.2)
    shapes = moved(10_000, 1e-5, corners=100)
    index = GridIndex(Outlines.of(shapes))
    assert index.nbytes() < 400e6
    within_rows(index, shapes[:], around=0.012)


def city(count: int) -> list[Fence]:
    return [
        Fence(
            f"c{at}", box(13 + at % 20 * 0.01, 52 + at // 20 * 0.01, 13.008 + at % 20 * 0.01, 52.008 + at // 20 * 0.01)
        )
        for at in range(count)
    ]


def stack(count: int) -> list[Fence]:
    here = box(100.0, 10.0, 100.01, 10.01)
    return [Fence(f"s{at}", here) for at in range(count)]


def drives(fixes: int, ends: tuple[float, float] | None = None) -> Tracks:
    random = np.random.default_rng(1)
    lon, lat = 13.1 + np.cumsum(random.normal(0, 0.0005, fixes)), 52.05 + np.cumsum(random.normal(0, 0.0005, fixes))
    if ends is not None:
        lon[-1], lat[-1] = ends
    return every_fix(Fixes(device=np.zeros(fixes), t_ms=START_MS + 10_000 * np.arange(fixes), lat=lat, lon=lon))


def parts(tracks: Tracks, fences: list[Fence]) -> int:
    return len(list(FenceSet(fences).place(segments_of(tracks))))


def test_a_stack_of_fences_elsewhere_divides_no_track() -> None:
    tracks, fences = drives(50_000), city(400)
    few = parts(tracks, [*fences, *stack(1)])
    assert parts(tracks, [*fences, *stack(20_000)]) <= 2 * few + 1


@pytest.mark.parametrize("most", [100, 5_000])
def test_a_way_into_a_stack_is_divided_there_and_counts_the_same(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    tracks, fences = drives(3_000, ends=(100.005, 10.005)), FenceSet([*city(20), *stack(300)])
    whole = use_by_fence(tracks, fences)
    assert (whole.entries == 1).sum() >= 300
    monkeypatch.setattr(bounded, "PAIRS_AT_ONCE", most)
    some = use_by_fence(tracks, fences)
    assert some.fence.tolist() == whole.fence.tolist()
    assert some.entries.tolist() == whole.entries.tolist()
    assert some.metres.tolist() == whole.metres.tolist()


small, any_whole = st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(small | any_whole, small, small | any_whole)), st.integers(1, 3))
def test_rows_are_ordered_by_their_keys_and_rows_alike_keep_their_order(
    rows: list[tuple[int, int, int]], keys: int
) -> None:
    columns = [np.array([row[at] for row in rows], dtype=np.int64) for at in range(keys)]
    assert lexical(*columns).tolist() == sorted(range(len(rows)), key=lambda row: rows[row][:keys])
