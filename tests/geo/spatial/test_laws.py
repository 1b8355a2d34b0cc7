"""Laws of splitting tracks over zones, whatever the fences and the tracks."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import box

from geo.spatial import OUTSIDE, Fence, FenceSet, Fixes, Pieces, Tracks, ZoneSet, use_by_fence
from tests.geo.spatial.worlds import every_fix, fence_lists, stars, taken, walks

# A long segment is no geodesic: its pieces may be longer than the whole, by L^2 tan^2(lat) / (24 R^2) of it
LONG = 3e-6


def sums(tracks: Tracks, pieces: Pieces, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    zone = np.where(pieces.zone == OUTSIDE, count, pieces.zone)
    return (
        np.bincount(zone, pieces.metres, count + 1),
        np.bincount(zone, pieces.ms, count + 1),
        np.bincount(zone, pieces.entry, count + 1),
    )


@given(walks(), fence_lists())
def test_the_zones_and_the_outside_make_up_the_track(fixes: Fixes, fences: list[Fence]) -> None:
    tracks, zones = every_fix(fixes), ZoneSet(fences)
    pieces = zones.split(tracks)
    end = tracks.segments()
    for row in end:
        mine = pieces.end_fix == tracks.row[row]
        whole_ms = fixes.t_ms[tracks.row[row]] - fixes.t_ms[tracks.row[row - 1]]
        assert pieces.ms[mine].sum() == pytest.approx(whole_ms, abs=1e-6)
        assert pieces.metres[mine].sum() == pytest.approx(tracks.metres[row], rel=LONG, abs=1e-6)
        assert pieces.start[mine][0] == 0.0
        assert pieces.end[mine][-1] == 1.0
        assert (pieces.start[mine][1:] == pieces.end[mine][:-1]).all()
        assert (pieces.zone[mine][1:] != pieces.zone[mine][:-1]).all()


@given(walks(), fence_lists(), st.data())
def test_it_does_not_matter_how_the_fixes_were_cut_into_batches(
    fixes: Fixes, fences: list[Fence], data: st.DataObject
) -> None:
    zones = ZoneSet(fences)
    whole = zones.split(every_fix(fixes))
    at = data.draw(st.integers(1, len(fixes) - 1))
    one = zones.split(every_fix(taken(fixes, np.arange(at))))
    # the fix before the cut comes along: it is the start of the first segment, and of equal times the first kept
    margin = int(np.searchsorted(fixes.t_ms[:at][fixes.device[:at] == fixes.device[at - 1]], fixes.t_ms[at - 1]))
    first = int(np.flatnonzero(fixes.device == fixes.device[at - 1])[0]) + margin
    other = zones.split(every_fix(taken(fixes, np.arange(first, len(fixes)))))
    again = np.flatnonzero(other.end_fix + first >= at)
    for name in ("zone", "metres", "ms", "entry", "start", "end"):
        both = np.concatenate([getattr(one, name), getattr(other, name)[again]])
        np.testing.assert_array_equal(both, getattr(whole, name))


@given(walks(), fence_lists(), st.randoms(use_true_random=False))
def test_the_order_in_which_fixes_arrive_does_not_matter(fixes: Fixes, fences: list[Fence], random: object) -> None:
    _, keep = np.unique(np.stack([fixes.device, fixes.t_ms]), axis=1, return_index=True)
    fixes = taken(fixes, np.sort(keep))
    shuffled = np.arange(len(fixes))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    zones = ZoneSet(fences)
    straight, late = zones.split(every_fix(fixes)), zones.split(every_fix(taken(fixes, shuffled)))
    np.testing.assert_array_equal(straight.end_fix, shuffled[late.end_fix])
    np.testing.assert_array_equal(straight.metres, late.metres)
    np.testing.assert_array_equal(straight.entry, late.entry)


@given(walks(devices=1), fence_lists())
def test_a_track_driven_backwards_has_the_same_lengths_and_exits_for_entries(fixes: Fixes, fences: list[Fence]) -> None:
    _, keep = np.unique(fixes.t_ms, return_index=True)
    fixes = taken(fixes, keep)
    back = Fixes(
        device=fixes.device,
        t_ms=fixes.t_ms[-1] + fixes.t_ms[0] - fixes.t_ms[::-1],
        lat=fixes.lat[::-1],
        lon=fixes.lon[::-1],
    )
    tracks, reverse, every = every_fix(fixes), every_fix(back), FenceSet(fences)
    there, again = use_by_fence(tracks, every), use_by_fence(reverse, every)
    count = len(every.names)
    for name in ("metres", "ms"):
        one = np.bincount(there.fence, getattr(there, name), count)
        other = np.bincount(again.fence, getattr(again, name), count)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=2e-6)
    # what goes in comes out, but for where tracks begin and end
    entries = np.bincount(there.fence, there.entries, count)
    exits = np.bincount(again.fence, again.entries, count)
    broken = 1 + tracks.gap_breaks
    assert (np.abs(entries - exits) <= broken).all()


@given(walks(), fence_lists(), st.sampled_from([0.5, 8.0, 64.0, -128.0]))
def test_moving_the_world_along_a_parallel_changes_nothing(fixes: Fixes, fences: list[Fence], east: float) -> None:
    moved = Fixes(device=fixes.device, t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon + east)
    shifted = [Fence(one.id, shapely.affinity.translate(one.shape, xoff=east), one.priority) for one in fences]
    here, there = FenceSet(fences), FenceSet(shifted)
    one, other = use_by_fence(every_fix(fixes), here), use_by_fence(every_fix(moved), there)
    count = len(here.names)
    # rounding may decide what touches a border, never by more than a micrometre or so
    lengths = [np.bincount(use.fence, use.metres, count) for use in (one, other)]
    if not touches_a_border(fixes, fences):
        np.testing.assert_allclose(lengths[0], lengths[1], atol=1e-4, rtol=1e-9)


def touches_a_border(fixes: Fixes, fences: list[Fence]) -> bool:
    """Does any segment run along a border, to within rounding?"""
    borders = shapely.union_all([one.shape.boundary for one in fences])
    path = shapely.linestrings(np.column_stack([fixes.lon, fixes.lat]))
    near = shapely.intersection(path, borders.buffer(1e-9))
    return bool(shapely.length(near) > 1e-7)


@given(walks(), stars())
def test_a_fence_and_its_complement_share_the_track(fixes: Fixes, shape: shapely.Polygon) -> None:
    tracks = every_fix(fixes)
    world = box(-4, 53, -2, 54)
    rest = shapely.difference(world, shape)
    pieces = ZoneSet([Fence("in", shape, 1), Fence("rest", rest)]).split(tracks)
    # the border belongs to the fence, which wins: nothing is left outside, nothing is counted twice
    assert not (pieces.zone == OUTSIDE).any()
    alone = use_by_fence(tracks, FenceSet([Fence("in", shape)]))
    np.testing.assert_allclose(pieces.metres[pieces.zone == 0].sum(), alone.metres.sum(), rtol=LONG, atol=1e-4)


@given(walks(), fence_lists())
def test_every_fence_on_its_own_is_a_zone_set_of_one(fixes: Fixes, fences: list[Fence]) -> None:
    tracks, every = every_fix(fixes), FenceSet(fences)
    use = use_by_fence(tracks, every)
    for number, name in enumerate(every.names):
        alone = ZoneSet([one for one in fences if one.id == name])
        metres, ms, entries = sums(tracks, alone.split(tracks), 1)
        mine = use.fence == number
        assert use.metres[mine].sum() == pytest.approx(metres[0], rel=LONG, abs=1e-6)
        assert use.ms[mine].sum() == pytest.approx(ms[0], abs=1e-3)
        assert use.entries[mine].sum() == entries[0]
