"""Fences that lie over each other cost where they lie, and nobody elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from shapely import box

from geo.spatial import Fence, FenceSet, Fixes, Tracks, use_by_fence
from geo.spatial import fence_set as bounded
from geo.spatial.clip import segments_of
from tests.geo.spatial.worlds import START_MS, every_fix


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


def test_at_least_as_many_are_expected_at_a_place_as_lie_over_it() -> None:
    random = np.random.default_rng(3)
    lon, lat = 13 + 0.2 * random.random(2_000), 52 + 0.1 * random.random(2_000)
    low = 0.1 * random.random((900, 2))
    made = [Fence(f"f{at}", box(13 + x, 52 + y / 2, 13.1 + x, 52.05 + y / 2)) for at, (x, y) in enumerate(low.tolist())]
    fences = FenceSet([*made, *city(10)])
    point, _ = fences.holding(lon, lat, np.full(2_000, START_MS))
    held = np.bincount(point, minlength=2_000)
    assert held.max() > 200
    assert (fences.index.overlap_bound(fences.shared.counts).at(lon, lat) >= held).all()
