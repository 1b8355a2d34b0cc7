"""Decisions that rounding must not make: worlds of whole numbers, and each case that once went wrong."""

import time

import numpy as np
import pytest
from shapely import MultiPolygon, Polygon, box

from geo.spatial import Fence, FenceSet, use_by_fence
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots
from geo.spatial.rings import world_polygon
from tests.examples import examples
from tests.geo.spatial import timed_fuzz
from tests.geo.spatial.exact_fuzz import run
from tests.geo.spatial.seeded import compared_for_long
from tests.geo.spatial.worlds import every_fix, line


def entries(shape: Polygon | MultiPolygon, track: list[tuple[float, float]]) -> tuple[int, float]:
    use = use_by_fence(every_fix(line(track)), FenceSet([Fence("a", shape)]))
    return int(use.entries.sum()), float(use.metres.sum())


def test_the_engine_finds_what_whole_numbers_find() -> None:
    counts, last = run(seed=1_000_000, pairs=examples(44_000))
    print(f"seeds 1000000 to {last}: {counts.summary()}")  # noqa: T201  # what was tried is part of the result
    assert counts.faults == []
    assert counts.crossings > examples(1_000)
    assert counts.switches <= 2
    assert counts.fine < counts.pairs // 20


def test_versions_windows_and_dates_are_what_whole_numbers_say() -> None:
    counts, last = timed_fuzz.run(seed=2_000_000, pairs=examples(6_000))
    print(f"seeds 2000000 to {last}: {counts.summary()}")  # noqa: T201
    assert counts.faults == []
    assert counts.entries > examples(1_000)
    assert counts.switches > examples(100)
    assert counts.halves > examples(50)
    assert counts.gates > examples(1_000)
    assert counts.fine < counts.pairs // 5


@pytest.mark.parametrize("seed", [5_000_054, 5_000_560, 5_001_189, 20_004_344, 64000366])
def test_worlds_that_once_differed_do_not(seed: int) -> None:
    assert run(seed, pairs=1)[0].faults == []


def test_a_border_so_near_a_fix_that_time_cannot_distinguish_them_is_before_the_switch_at_the_fix() -> None:
    assert timed_fuzz.run(30_000_076, pairs=1)[0].faults == []


@pytest.mark.nightly
def test_the_engine_finds_what_whole_numbers_find_in_millions_of_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    counts = compared_for_long(run, 3_000_000, 3600, capsys)
    assert counts.pairs > 50_000
    assert counts.switches <= 2 + counts.pairs // 20_000


@pytest.mark.nightly
def test_versions_windows_and_dates_are_what_whole_numbers_say_in_a_million_pairs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compared_for_long(timed_fuzz.run, 1_000_000, 1800, capsys).pairs > 50_000


@pytest.mark.parametrize("follows", [False, True])
def test_a_border_close_to_the_antimeridian_keeps_its_bits(*, follows: bool) -> None:
    fence = box(-179.0, -17.0, -178.4339611, -16.0)
    track = [(179.9, -16.5), (-179.5, -16.5), (-178.9, -16.5)]
    reached = [(-178.0, -16.5), (-178.4339611, -16.5), *([(-178.0, -16.5)] if follows else [])]
    assert entries(fence, track)[0] == 1
    assert entries(fence, reached)[0] == 1
    across = [(179.8, -16.5), (-178.4339611, -16.5), *([(-178.3, -16.5)] if follows else [])]
    assert entries(box(-178.4339611, -17.0, -178.0, -16.0), across)[0] == 1


@pytest.mark.parametrize("shift", [0, 50, 300])
def test_a_band_around_a_pole_is_without_what_its_hole_holds(shift: int) -> None:
    def ring(lat: float, start: float) -> np.ndarray:
        lon = (start + np.arange(0, 361, 30) + 180.0) % 360.0 - 180.0
        return np.column_stack([lon, np.full(len(lon), lat)])

    for sign in (1, -1):
        shape = world_polygon([[ring(sign * 60.0, 7.0), ring(sign * 80.0, 7.0 + shift)]])
        assert shape.is_valid
        assert shape.area == pytest.approx(360 * 20)
        assert entries(shape, [(0, sign * 50.0), (0, sign * 55.0)]) == (0, 0.0)
        assert entries(shape, [(179.9, sign * 55.0), (179.9, sign * 65.0), (-179.9, sign * 65.0)])[0] == 1
        assert entries(shape, [(7.0, sign * 70.0), (6.0, sign * 70.0), (8.0, sign * 70.0)])[0] == 0
        assert entries(shape, [(7.0, sign * 85.0), (6.0, sign * 88.0)]) == (0, 0.0)


def test_thousands_of_fixes_on_the_corners_of_a_fence_of_a_million_are_looked_up_at_once() -> None:
    turn = np.arange(1_000_000) * 2 * np.pi / 1_000_000
    radius = 0.2 + 0.05 * np.sin(5 * turn)
    ring = np.round(np.column_stack([10 + radius * np.cos(turn), 50 + radius * np.sin(turn)]), 7)
    ring = ring[np.append(True, (ring[1:] != ring[:-1]).any(axis=1))]
    index = GridIndex.of([Polygon(ring)])
    corners = ring[:: len(ring) // 2000]
    begin = time.process_time()
    point, _ = index.locate(Spots(*np.ascontiguousarray(corners.T)))
    assert time.process_time() - begin < 2.0
    assert len(np.unique(point)) == len(corners)
