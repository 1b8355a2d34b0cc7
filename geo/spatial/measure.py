"""Every fence on its own: how far, how long and how often each device was inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from geo.spatial.clip import Segments, segments_of
from geo.spatial.fence_set import FenceSet, SegmentFences
from geo.spatial.pieces import Pieces, ZoneRuns, joined_runs, measured
from geo.spatial.ragged import Bools, Floats, Ints, expand, lexical, run_starts
from geo.spatial.tracks import Tracks

EntryRule: TypeAlias = Callable[[Pieces], Bools]


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
    return measured(tracks, segments, joined_runs(map(_lasting, runs_by_fence(segments, fences))))


def _lasting(runs: FenceRuns) -> ZoneRuns:
    """Runs that have a length or an entry, by segment, sorted by segment, fence, time."""
    runs = runs.by_segment()
    keep = np.flatnonzero((runs.end > runs.start) | runs.entry)
    return runs.rows(keep[lexical(runs.segment[keep], runs.zone[keep])])


@dataclass(frozen=True, slots=True, eq=False)
class FenceRuns(ZoneRuns):
    """Runs inside fences. `leaves`: the run ends with an outward crossing. A run of no length is a touch at a fix.

    `last`: the segment on which it ends; all of those from `segment` to it, if it is another one.
    """

    leaves: Bools
    last: Ints

    def by_segment(self) -> FenceRuns:
        """The same, each on one segment."""
        row, segment = expand(self.segment, self.last - self.segment + 1)
        start, end = self.start[row], self.end[row]
        return FenceRuns(segment, self.zone[row], start, end, self.entry[row], self.leaves[row], segment)


def runs_by_fence(segments: Segments, fences: FenceSet) -> Iterator[FenceRuns]:
    """The parts of segments inside each fence (`zone`: its name), whichever of its versions are in force.

    Some segments after the other, see `FenceSet.place`; those of a segment and fence are in order of time.
    """
    for parts in fences.place(segments):
        yield _runs(parts, fences.name_of_fence)


def runs_by_version(segments: Segments, fences: FenceSet) -> Iterator[FenceRuns]:
    """The same, each version of a fence on its own (`zone`: its place in `FenceSet.fences`)."""
    for parts in fences.place(segments):
        yield _runs(parts, np.arange(len(fences.fences)))


def use_by_fence(tracks: Tracks, fences: FenceSet, counts: EntryRule | None = None) -> FenceUse:
    """Sums of `pieces_by_fence` for each device and fence; the pieces themselves are not held.

    `counts`: which pieces have an entry that counts, see `geo.spatial.charges` (None: each entry does).
    """
    segments, names = segments_of(tracks), max(len(fences.names), 1)
    devices, number = np.unique(tracks.fixes.device, return_inverse=True)
    pair, metres, ms, entries = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)
    for runs in runs_by_fence(segments, fences):
        pieces = measured(tracks, segments, _lasting(runs))
        entry = pieces.entry if counts is None else counts(pieces)
        # what was summed before comes first: the order of the sum is that of the pieces, however they are cut
        both = np.concatenate([pair, number[pieces.end_fix] * names + pieces.zone])
        pair, group = np.unique(both, return_inverse=True)
        metres, ms, entries = (
            np.bincount(group, weights=np.concatenate([before, now]), minlength=len(pair)).astype(np.float64)
            for before, now in ((metres, pieces.metres), (ms, pieces.ms), (entries, entry))
        )
    return FenceUse(devices[pair // names], pair % names, metres, ms, entries.astype(np.int64))


def _runs(parts: SegmentFences, name_of_fence: Ints) -> FenceRuns:
    """Join neighbouring stretches in fences of one name.

    A segment's first fix, its stretches and its second fix are numbered through as steps; what is one step apart
    follows on. The fixes are stretches of no length, so that an entry depends on its own segment alone.
    """
    stretches, count = parts.stretches, len(parts.segments)
    first = 2 * np.arange(count) + stretches.first[:-1]
    last = 2 * np.arange(count) + stretches.first[1:] + 1
    inner = stretches.segment[parts.stretch]
    segment = np.concatenate([parts.start, inner, parts.end])
    name = name_of_fence[np.concatenate([parts.start_fence, parts.stretch_fence, parts.end_fence])]
    step = np.concatenate([first[parts.start], parts.stretch + 2 * inner + 1, last[parts.end]])
    neither = np.zeros(len(parts.start), dtype=np.bool_), np.zeros(len(parts.end), dtype=np.bool_)
    comes, goes = (np.concatenate([neither[0], change, neither[1]]) for change in (parts.comes, parts.goes))
    order = lexical(segment, name, step)
    order = order[run_starts(segment[order], name[order], step[order])]
    segment, name, step, comes, goes = segment[order], name[order], step[order], comes[order], goes[order]
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
    leaves = (to_step != last[owner]) & ~goes[closes]
    whole = ZoneRuns.whole(parts.first[parts.held], name_of_fence[parts.held_fence])
    return FenceRuns(
        segment=np.concatenate([whole.segment, parts.rest[owner]]),
        zone=np.concatenate([whole.zone, name[opens]]),
        start=np.concatenate([whole.start, start]),
        end=np.concatenate([whole.end, end]),
        entry=np.concatenate([whole.entry, ~is_first & ~comes[opens]]),
        leaves=np.concatenate([whole.entry, leaves]),
        last=np.concatenate([parts.last[parts.held], parts.rest[owner]]),
    )
