"""How far, how long and how often each device was inside: per fence, or per zone by priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from geo.spatial.clip import Segments, Stretches, segments_of
from geo.spatial.fence_set import FenceSet, SegmentFences
from geo.spatial.geodesic import distance_m
from geo.spatial.ragged import Bools, Floats, Ints, expand, lexical, run_starts, stacked
from geo.spatial.tracks import Tracks

# The version of the engine, stored with its results.

ENGINE_VERSION: Final = 2
"""Increased by each change after which the same fixes and fences give other numbers. All stored usage is then computed
again."""


# Pieces of a track, each in one zone.

OUTSIDE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Stretches of segments, each as long as it stays in one zone; sorted by track, then by time.

    `end_fix[i]`: the row (in the `Fixes` given to `build_tracks`) of the fix that ends the segment of piece i; it gives
    the device and hour. `zone[i]`: index into the zone names, `OUTSIDE` (-1) for outside. `metres[i]`: WGS84 geodesic
    between the piece's ends; `ms[i]`: its share of the segment's time. `entry[i]`: the piece begins with an inward
    crossing of its zone's border. `start`, `end`: fractions of the segment.

    A piece of no length stands for a fix on the border of a zone that the segment reaches only with that fix. It has
    metres 0 and ms 0 and carries the entry. Every segment's pieces cover it exactly once.
    """

    end_fix: Ints
    zone: Ints
    metres: Floats
    ms: Floats
    entry: Bools
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.zone)


@dataclass(frozen=True, slots=True, eq=False)
class ZoneRuns:
    """Parts of segments in one zone (or fence): `start .. end`, fractions of `segment`; `entry` as in `Pieces`."""

    segment: Ints
    zone: Ints
    start: Floats
    end: Floats
    entry: Bools

    @classmethod
    def whole(cls, segment: Ints, zone: Ints) -> ZoneRuns:
        count = len(segment)
        return cls(segment, zone, np.zeros(count), np.ones(count), np.zeros(count, dtype=np.bool_))

    def rows(self, some: Ints) -> ZoneRuns:
        return ZoneRuns(*(getattr(self, name)[some] for name in ZoneRuns.__slots__))


def joined_runs(parts: Iterable[ZoneRuns]) -> ZoneRuns:
    return ZoneRuns(*stacked(list(parts)))


def measured(tracks: Tracks, segments: Segments, runs: ZoneRuns) -> Pieces:
    """Pieces from runs over `segments` (those of `tracks`), with their metres and milliseconds.

    Pieces of a segment on which the vehicle stands have no metres and no entry: its places differ by noise alone.
    """
    ends = tracks.segments()[runs.segment]
    metres = tracks.metres[ends]
    # Geodesics are iterative; whole segments already have their length from the track.
    part = np.flatnonzero((runs.start > 0.0) | (runs.end < 1.0))
    from_x, from_y = segments.at(runs.segment[part], runs.start[part])
    to_x, to_y = segments.at(runs.segment[part], runs.end[part])
    metres[part] = distance_m(from_x, from_y, to_x, to_y)
    still = tracks.still[ends]
    metres[still] = 0.0
    ms = (segments.end_ms - segments.start_ms)[runs.segment] * (runs.end - runs.start)
    return Pieces(tracks.row[ends], runs.zone, metres, ms, runs.entry & ~still, runs.start, runs.end)


# Zone sets: fences of one price map, at most one in force at a place and time.


class ZoneSet(FenceSet):
    """Fences as zones: a place belongs to the fence with the highest priority that holds it, then the smallest id."""

    def zone_at(self, lon: Floats, lat: Floats, t_ms: Ints | Floats) -> Ints:
        """The zone of each place and time, as an index into `names`; `OUTSIDE` where there is none."""
        return self._names(self._winner(*self.holding(lon, lat, t_ms), len(lon)))

    def split(self, tracks: Tracks) -> Pieces:
        """Split every segment over the zones."""
        segments = segments_of(tracks)
        return measured(tracks, segments, joined_runs(map(self._runs, self.place(segments))))

    def _runs(self, parts: SegmentFences) -> ZoneRuns:
        count = len(parts.segments)
        winner = self._winner(parts.stretch, parts.stretch_fence, len(parts.stretches.segment))
        before = self._names(self._winner(parts.start, parts.start_fence, count))
        after = self._names(self._winner(parts.end, parts.end_fence, count))
        cut = _runs(parts.stretches, self._names(winner), (before, after), _switched(parts, winner))
        cut = replace(cut, segment=parts.rest[cut.segment])
        held = self._names(self._winner(parts.held, parts.held_fence, len(parts.first)))
        row, segment = expand(parts.first, parts.last - parts.first + 1)
        runs = joined_runs([ZoneRuns.whole(segment, held[row]), cut])
        return runs.rows(np.argsort(runs.segment, kind="stable"))

    def _winner(self, row: Ints, fence: Ints, count: int) -> Ints:
        # Fences are numbered in the order in which they win: the smallest number is the winner.
        best = np.full(count, len(self.fences), dtype=np.int64)
        np.minimum.at(best, row, fence)
        return best

    def _names(self, fence: Ints) -> Ints:
        # no fence is numbered after the last one, and finds the value appended here
        return np.append(self.name_of_fence, OUTSIDE)[fence]


def _switched(parts: SegmentFences, winner: Ints) -> Bools:
    """Stretches whose winner differs from the one before only because of a switch: no border is crossed.

    The winner came into force there, or the one before went and the winner was there all along. Otherwise the winner's
    border is met at the very moment of the other's switch.
    """
    stretch, fence, count = parts.stretch, parts.stretch_fence, len(winner)
    switched, goes = np.zeros(count, dtype=np.bool_), np.zeros(count + 1, dtype=np.bool_)
    wins = winner[stretch] == fence
    switched[stretch[wins]] = parts.comes[wins]
    goes[stretch[wins] + 1] = parts.goes[wins]
    revealed = np.flatnonzero(goes[:-1] & ~switched)
    if len(revealed):
        most = np.int64(max(winner.max(), fence.max())) + 1
        switched[revealed] = np.isin((revealed - 1) * most + winner[revealed], stretch * most + fence)
    return switched


def _runs(stretches: Stretches, zone: Ints, ends: tuple[Ints, Ints], switched: Bools) -> ZoneRuns:
    """Join neighbouring stretches of one zone.

    The end points take part as stretches of no length, so an entry depends on its own segment alone.
    """
    (before, after), count = ends, len(ends[0])
    rows = np.diff(stretches.first) + 2
    first = np.cumsum(rows) - rows
    last = first + rows - 1
    place = np.arange(len(zone)) + 2 * stretches.segment + 1
    total = len(zone) + 2 * count
    segment = np.repeat(np.arange(count), rows)
    all_zone, start, end = np.empty(total, dtype=np.int64), np.zeros(total), np.zeros(total)
    by_time, leads = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_)
    all_zone[place], start[place], end[place], by_time[place] = zone, stretches.start, stretches.end, switched
    all_zone[first], all_zone[last], leads[first] = before, after, True
    start[last] = end[last] = 1.0
    opens = np.flatnonzero(run_starts(segment, all_zone))
    closes = np.append(opens, total)[1:] - 1
    entry = (all_zone[opens] != OUTSIDE) & ~leads[opens] & ~by_time[opens]
    keep = (end[closes] > start[opens]) | entry
    opens, closes = opens[keep], closes[keep]
    return ZoneRuns(segment[opens], all_zone[opens], start[opens], end[closes], entry[keep])


EntryRule: TypeAlias = Callable[[Pieces], Bools]


@dataclass(frozen=True, slots=True, eq=False)
class FenceUse:
    """One row per (device, fence) with anything in it, sorted; `fence` indexes the set's `names`."""

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
    """The runs with a length or an entry, each on one segment, sorted by segment, fence, time."""
    runs = runs.by_segment()
    keep = np.flatnonzero((runs.end > runs.start) | runs.entry)
    return runs.rows(keep[lexical(runs.segment[keep], runs.zone[keep])])


@dataclass(frozen=True, slots=True, eq=False)
class FenceRuns(ZoneRuns):
    """Runs inside fences. `leaves`: the run ends with an outward crossing. A run of no length is a touch at a fix.

    `last`: the segment on which the run ends; it covers all segments from `segment` to it.
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

    In blocks of segments, see `FenceSet.place`; runs of one segment and fence are in order of time.
    """
    for parts in fences.place(segments):
        yield _fence_runs(parts, fences.name_of_fence)


def runs_by_version(segments: Segments, fences: FenceSet) -> Iterator[FenceRuns]:
    """The same, each version of a fence on its own (`zone`: its place in `FenceSet.fences`)."""
    for parts in fences.place(segments):
        yield _fence_runs(parts, np.arange(len(fences.fences)))


def use_by_fence(tracks: Tracks, fences: FenceSet, counts: EntryRule | None = None) -> FenceUse:
    """Sums of `pieces_by_fence` for each device and fence, without holding the pieces.

    `counts`: which pieces have an entry that counts, see `geo.spatial.charges` (None: every entry counts).
    """
    segments, names = segments_of(tracks), max(len(fences.names), 1)
    devices, number = np.unique(tracks.fixes.device, return_inverse=True)
    pair, metres, ms, entries = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)
    for runs in runs_by_fence(segments, fences):
        pieces = measured(tracks, segments, _lasting(runs))
        entry = pieces.entry if counts is None else counts(pieces)
        # earlier sums come first, so the order of the sum is that of the pieces, however they are cut
        both = np.concatenate([pair, number[pieces.end_fix] * names + pieces.zone])
        pair, group = np.unique(both, return_inverse=True)
        metres, ms, entries = (
            np.bincount(group, weights=np.concatenate([before, now]), minlength=len(pair)).astype(np.float64)
            for before, now in ((metres, pieces.metres), (ms, pieces.ms), (entries, entry))
        )
    return FenceUse(devices[pair // names], pair % names, metres, ms, entries.astype(np.int64))


def _fence_runs(parts: SegmentFences, name_of_fence: Ints) -> FenceRuns:
    """Join neighbouring stretches in fences of one name.

    A segment's first fix, its stretches and its second fix are numbered as steps; parts one step apart follow each
    other. Fixes are stretches of no length, so an entry depends on its own segment alone.
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
    # for each run of steps its stretch; a fix takes the stretch beside it
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
