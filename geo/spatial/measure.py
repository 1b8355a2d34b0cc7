"""Every fence on its own: how far, how long and how often each device was inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geo.spatial.clip import Segments, segments_of
from geo.spatial.fence_set import FenceSet, Placed
from geo.spatial.pieces import Pieces, Runs, measured
from geo.spatial.ragged import Bools, Floats, Ints, run_starts
from geo.spatial.tracks import Tracks


@dataclass(frozen=True, slots=True, eq=False)
class FenceUse:
    """One row for each (device, fence) with anything in it, sorted; `fence` indexes the set's `names`."""

    device: Ints
    fence: Ints
    metres: Floats
    ms: Floats
    entries: Ints


def pieces_by_fence(tracks: Tracks, fences: FenceSet) -> Pieces:
    """The parts of segments inside each fence, every fence on its own; `zone` of a piece is its fence's name.

    Parts outside are left out. Sorted by segment, then fence, then time.
    """
    segments = segments_of(tracks)
    runs = runs_by_fence(segments, fences)
    keep = (runs.end > runs.start) | runs.entry
    kept = Runs(*(getattr(runs, name)[keep] for name in ("segment", "zone", "start", "end", "entry")))
    return measured(tracks, segments, kept)


@dataclass(frozen=True, slots=True, eq=False)
class FenceRuns(Runs):
    """Runs inside fences; `leaves`: the run ends with an outward crossing. A run of no length is a touch at a fix."""

    leaves: Bools


def runs_by_fence(segments: Segments, fences: FenceSet) -> FenceRuns:
    """The parts of segments inside each fence (`zone`: its name), sorted by segment, fence, time."""
    return _runs(fences.place(segments), fences.name_of_fence)


def use_by_fence(tracks: Tracks, fences: FenceSet) -> FenceUse:
    """Sums of `pieces_by_fence` for each device and fence."""
    pieces = pieces_by_fence(tracks, fences)
    names = max(len(fences.names), 1)
    devices, number = np.unique(tracks.fixes.device, return_inverse=True)
    pair, group = np.unique(number[pieces.end_fix] * names + pieces.zone, return_inverse=True)
    return FenceUse(
        device=devices[pair // names],
        fence=pair % names,
        metres=_sums(group, pieces.metres, len(pair)),
        ms=_sums(group, pieces.ms, len(pair)),
        entries=np.bincount(group[pieces.entry], minlength=len(pair)),
    )


def _sums(group: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(group, weights=values, minlength=count).astype(np.float64)


def _runs(placed: Placed, name_of_fence: Ints) -> FenceRuns:
    """Join neighbouring stretches in one fence.

    A segment's first fix, its stretches and its second fix are numbered through as steps; what is one step apart
    follows on. The fixes are stretches of no length, so that an entry depends on its own segment alone.
    """
    stretches, count = placed.stretches, len(placed.segments)
    first = 2 * np.arange(count) + stretches.first[:-1]
    last = 2 * np.arange(count) + stretches.first[1:] + 1
    inner = stretches.segment[placed.stretch]
    segment = np.concatenate([placed.start, inner, placed.end])
    name = name_of_fence[np.concatenate([placed.start_fence, placed.stretch_fence, placed.end_fence])]
    step = np.concatenate([first[placed.start], placed.stretch + 2 * inner + 1, last[placed.end]])
    order = np.lexsort((step, name, segment))
    segment, name, step = segment[order], name[order], step[order]
    fresh = run_starts(segment, name, step)
    segment, name, step = segment[fresh], name[fresh], step[fresh]
    follows = ~run_starts(segment, name)
    follows[1:] &= np.diff(step) == 1
    opens = np.flatnonzero(~follows)
    closes = np.append(opens[1:], len(step))[: len(opens)] - 1
    owner, from_step, to_step = segment[opens], step[opens], step[closes]
    is_first, is_last = from_step == first[owner], from_step == last[owner]
    # of each row of steps the stretch it stands for; a fix stands for the stretch beside it
    begin = np.clip(from_step - 2 * owner - 1, stretches.first[owner], stretches.first[owner + 1] - 1)
    finish = np.clip(to_step - 2 * owner - 1, stretches.first[owner], stretches.first[owner + 1] - 1)
    start = np.where(is_last, 1.0, stretches.start[begin])
    end = np.where(to_step == first[owner], 0.0, np.where(to_step == last[owner], 1.0, stretches.end[finish]))
    entry = ~is_first & (is_last | ~stretches.by_time[begin])
    following = np.minimum(finish + 1, stretches.first[owner + 1] - 1)
    switched = (following > finish) & stretches.by_time[following] & (to_step != first[owner])
    return FenceRuns(owner, name[opens], start, end, entry, (to_step != last[owner]) & ~switched)
