"""Fences that come into force and go out of it while no border is near: what counts is the time alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shapely import box

from geo.spatial import OUTSIDE, Activity, Fence, FenceSet, ZoneSet, find_visits, pieces_by_fence
from tests.geo.spatial.worlds import START_MS, every_fix, joined, line

AROUND = box(9.0, 49.0, 11.0, 51.0)
# half a gap between fixes, so that switches are at fixes, between them and before all
instants = st.lists(st.integers(-3, 30), min_size=1, max_size=8, unique=True).map(sorted)
STEP_MS, FIXES = 2_000, 8


def activity(halves: list[int]) -> Activity:
    limits = [START_MS + STEP_MS // 2 * half for half in halves]
    return Activity([*zip(limits[0::2], limits[1::2], strict=False)])


def shared_ms(active: Activity, start: int, end: int) -> int:
    return sum(max(min(end, until) - max(start, since), 0) for since, until in active.stretches())


@given(st.lists(instants, min_size=1, max_size=4), st.integers(0, FIXES - 1))
def test_a_fence_around_everything_holds_a_track_while_it_is_in_force(several: list[list[int]], gap: int) -> None:
    places = [(10.0 + 0.01 * at, 50.0) for at in range(FIXES)]
    fixes = line(places, STEP_MS)
    # a second device, so that tracks follow on each other
    tracks = every_fix(joined([fixes, line(places[gap:], STEP_MS, device=1)]))
    fences = [Fence(f"f{at}", AROUND, at, activity(halves)) for at, halves in enumerate(several)]
    ends = tracks.row[tracks.segments()]
    t_ms, started = tracks.fixes.t_ms, tracks.fixes.t_ms[ends - 1]
    pieces, zoned = pieces_by_fence(tracks, FenceSet(fences)), ZoneSet(fences).split(tracks)
    assert not pieces.entry.any()
    assert not zoned.entry.any()
    for end, since in zip(ends.tolist(), started.tolist(), strict=True):
        until, outside = int(t_ms[end]), (zoned.end_fix == end) & (zoned.zone == OUTSIDE)
        for number, fence in enumerate(fences):
            here = (pieces.end_fix == end) & (pieces.zone == number)
            assert round(pieces.ms[here].sum(), 6) == shared_ms(fence.active, since, until)
        every = Activity([stretch for fence in fences for stretch in fence.active.stretches()])
        assert round(zoned.ms[outside].sum(), 6) == until - since - shared_ms(every, since, until)
    assert np.all(np.diff(pieces.end_fix) >= 0)
    assert np.all(np.diff(zoned.end_fix) >= 0)


@given(st.lists(instants, min_size=1, max_size=4))
def test_a_visit_lasts_as_long_as_the_fence_is_in_force(several: list[list[int]]) -> None:
    tracks = every_fix(line([(10.0 + 0.01 * at, 50.0) for at in range(FIXES)], STEP_MS))
    fences = [Fence(f"f{at}", AROUND, active=activity(halves)) for at, halves in enumerate(several)]
    visits = find_visits(tracks, FenceSet(fences))
    last = START_MS + STEP_MS * (FIXES - 1)
    for number, fence in enumerate(fences):
        here = visits.fence == number
        visited = list(zip(visits.start_ms[here].tolist(), visits.end_ms[here].tolist(), strict=True))
        limited = ((max(since, START_MS), min(until, last)) for since, until in fence.active.stretches())
        assert visited == [(since, until) for since, until in limited if since < until]
        assert all(one[1] < two[0] for one, two in pairwise(visited))
    assert not (visits.entered | visits.left).any()
