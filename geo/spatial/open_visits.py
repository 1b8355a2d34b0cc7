"""Visits of tracks that go on: what is open at a fix, so that those before it need not be held.

`continue_visits` over a track in parts, each beginning with the fix at which the one before it ended, finds the visits
that `find_visits` finds in the whole; and what it finds, no later fix of the track takes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.fence_set import FenceSet
from geo.spatial.ragged import Bools, Floats, Ints, run_starts
from geo.spatial.sides import Course, Sides, VisitSettings, far_away, find_sides, joined_sides, lasting
from geo.spatial.stays import Stays
from geo.spatial.tracks import Tracks

_NONE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class OpenVisits:
    """What is open at a fix of devices: one row a device and fence (a name), sorted by both.

    `start_ms`: when the visit began, NaN if none is open. `entered`: with a crossing. `known`: it did begin then; else
    it was only seen then. `dwelt`: it is a dwell already. `doubt_ms`: since when the device is on the other side, but
    not for sure; NaN if it is not. `crossed`: that began with a crossing. `away`: somewhere since then it was far
    enough from the border.
    """

    device: Ints
    fence: Ints
    start_ms: Floats
    entered: Bools
    known: Bools
    dwelt: Bools
    doubt_ms: Floats
    crossed: Bools
    away: Bools

    def __len__(self) -> int:
        return len(self.device)

    def rows(self, some: Ints | Bools) -> OpenVisits:
        """Some of them."""
        return OpenVisits(*(getattr(self, name)[some] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """Of each device, numbered from 0, what its first fix continues: when the track began (at that fix, if not before),
    and whether it is known what is open there.
    """

    begun_ms: Floats
    known: Bools


@dataclass(frozen=True, slots=True, eq=False)
class VisitsSoFar:
    """One row a visit that was open before or began since, in no particular order.

    `end_ms`: when it ended, or until when it surely goes on. `entered`, `left`: it began, ended, with a crossing.
    `before`: the row of the open visits that it goes on, -1 if it is on none; `was_open`: that was a visit.
    """

    device: Ints
    fence: Ints
    start_ms: Floats
    end_ms: Floats
    entered: Bools
    known: Bools
    left: Bools
    before: Ints
    was_open: Bools

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class Continued:
    """What came of tracks: visits, and what is open at their last fixes.

    `open_before`: of each row of `open` the one that was there before, -1 if none was. `begun_ms`: of each device when
    the track began that it is on at last.
    """

    visits: VisitsSoFar
    open: OpenVisits
    open_before: Ints
    begun_ms: Floats


def continue_visits(
    tracks: Tracks,
    fences: FenceSet,
    settings: VisitSettings,
    *,
    begins: Beginnings,
    before: OpenVisits,
    dwell_s: float | None = None,
) -> Continued:
    """The visits of tracks of which each device's first fix is where `before` is open. Devices are numbered from 0, and
    each has a fix.
    """
    ways = _Ways(tracks, begins)
    going = ways.going[before.device]
    moved = going != _NONE
    earlier = _Earlier(ways, going[moved], before.rows(moved), np.flatnonzero(moved))
    sides = find_sides(ways.course, fences, [earlier.stays()] if len(earlier.track) else [])
    matched = earlier.matched(sides)
    away = matched.away | matched.was_open
    long, last = lasting(sides, settings), ~sides.followed()
    # nothing of what ended before the first segment is here
    here = (sides.end_ms > ways.course.first_ms(sides.track)) | (matched.before == _NONE)
    ask = np.flatnonzero((long | last) & ~away & here)
    away[ask] = far_away(ways.course, sides, ask, fences, settings)
    # what begins with the last fix is judged by the way after it
    fresh = last & ways.stands[sides.track] & (sides.end_ms == sides.start_ms)
    counts = matched.was_open | (long & away & ~fresh)
    seen = _Seen(ways, sides, matched, counts | run_starts(sides.course), away)
    return seen.continued(before, going, dwell_s)


class _Ways:
    """How the tracks of devices hang together: `going[d]` is the track that device d's first fix is on, `standing[d]`
    the one that its last fix is on; -1 where that fix is alone.
    """

    def __init__(self, tracks: Tracks, begins: Beginnings) -> None:
        self.course, self.begins = Course(tracks), begins
        device = tracks.fixes.device[tracks.row]
        first = run_starts(device)
        last = np.append(first[1:], True)
        count = len(begins.begun_ms)
        assert int(first.sum()) == count, "each device has a fix"
        self.first_ms: Floats = tracks.fixes.t_ms[tracks.row[first]].astype(np.float64)
        self.last_ms: Floats = tracks.fixes.t_ms[tracks.row[last]].astype(np.float64)
        self.alone: Bools = (first & last)[first]
        ends, limits = self.course.ends, self.course.first
        starts_first, ends_last = first[ends[limits[:-1]] - 1], last[ends[limits[1:] - 1]]
        self.of_track = self.course.device(np.arange(self.course.track_count))
        self.going, self.standing = (np.full(count, _NONE, dtype=np.int64) for _ in range(2))
        for track_of, some in ((self.going, starts_first), (self.standing, ends_last)):
            track_of[self.of_track[some]] = np.flatnonzero(some)
        self.continues: Bools = starts_first
        self.course.begin_earlier(np.flatnonzero(starts_first), begins.begun_ms[self.of_track[starts_first]])
        self.stands: Bools = ends_last

    def begun_ms(self) -> Floats:
        """When the track began that each device is on at last."""
        stands = self.standing != _NONE
        begun = np.where(self.alone, self.begins.begun_ms, self.last_ms)
        begun[stands] = self.course.start_ms(self.standing[stands])
        return begun


@dataclass(frozen=True, slots=True, eq=False)
class _Matched:
    """Of each stretch the row of the open visits at its course (-1: none), and whether it is that visit, or was doubted
    and is known to be away.
    """

    before: Ints
    was_open: Bools
    away: Bools


@dataclass(frozen=True, slots=True, eq=False)
class _Earlier:
    """What was open at the first fixes of tracks, `row` of all that was."""

    ways: _Ways
    track: Ints
    open: OpenVisits
    row: Ints

    def stays(self) -> Stays:
        """As stays that end where the tracks are taken up."""
        course, rows = self.ways.course, self.open
        visit, doubt = ~np.isnan(rows.start_ms), ~np.isnan(rows.doubt_ms)
        until = course.first_ms(self.track)
        start = np.where(visit, rows.start_ms, rows.doubt_ms)
        end = np.where(visit & doubt, rows.doubt_ms, until)
        entry = np.where(visit, rows.entered, rows.crossed)
        leaves = visit & doubt & rows.crossed
        nothing = np.zeros(len(start))
        return Stays(self.track, rows.fence, course.first[self.track], start, end, entry, leaves, nothing)

    def matched(self, sides: Sides) -> _Matched:
        names = max(int(sides.fence.max(initial=0)), int(self.open.fence.max(initial=0))) + 1
        keys = self.track * names + self.open.fence
        order = np.argsort(keys)
        asked = sides.track * names + sides.fence
        at = np.searchsorted(keys[order], asked)
        known = at < len(keys)
        known[known] = keys[order][at[known]] == asked[known]
        row = order[at[known]]
        before, was_open, away = np.full(len(sides), _NONE, dtype=np.int64), known.copy(), known.copy()
        before[known] = self.row[row]
        start, doubt = self.open.start_ms[row], self.open.doubt_ms[row]
        inside, begin = sides.inside[known], sides.start_ms[known]
        was_open[known] = inside & (begin == start)
        # of what began with the first fix, it counts only if it ends there, too
        passed = (doubt < self.ways.course.first_ms(sides.track[known])) | (sides.end_ms[known] == begin)
        away[known] = (inside == np.isnan(start)) & (begin == doubt) & self.open.away[row] & passed
        return _Matched(before, was_open, away)


class _Seen:
    """Stretches of which it is known which count."""

    def __init__(self, ways: _Ways, sides: Sides, matched: _Matched, counts: Bools, away: Bools) -> None:
        self._ways, self._sides, self._matched = ways, sides, matched
        kept = np.flatnonzero(counts)
        self._joined = joined_sides(ways.course, sides.rows(kept))
        # of those that were joined, the first stands for all
        opens = run_starts(sides.course[kept], sides.inside[kept]) if len(kept) else counts[:0]
        self._row: Ints = kept[opens]
        # the last stretch of a course, where it is on another side than what counts
        self._last: Ints = np.flatnonzero(~sides.followed())
        self._final: Ints = np.flatnonzero(~self._joined.followed())
        self._doubts: Bools = ways.stands[sides.track[self._last]] & (
            sides.inside[self._last] != self._joined.inside[self._final]
        )
        self._away = away

    def continued(self, before: OpenVisits, going: Ints, dwell_s: float | None) -> Continued:
        ways, joined, matched = self._ways, self._joined, self._matched
        end = joined.end_ms.copy()
        end[self._final[self._doubts]] = self._sides.start_ms[self._last[self._doubts]]
        left = joined.followed() & np.append(joined.crossed[1:], False)[: len(joined)]
        was_open = matched.was_open[self._row]
        known = self._known(before)
        visits = VisitsSoFar(
            ways.of_track[joined.track],
            joined.fence,
            joined.start_ms,
            end,
            joined.crossed,
            known,
            left,
            matched.before[self._row],
            was_open,
        )
        now, now_before = self._open(visits, before, dwell_s)
        broken = np.flatnonzero((going == _NONE) & ~ways.alone[before.device] & ~np.isnan(before.start_ms))
        still = np.flatnonzero(ways.alone[before.device])
        inside = _rows(visits, np.flatnonzero(joined.inside))
        found = _joined(inside, _ended(ways, before, broken))
        everything = _joined(now, before.rows(still))
        order = np.lexsort((everything.fence, everything.device))
        rows_before = np.concatenate([now_before, still])[order]
        return Continued(found, everything.rows(order), rows_before, ways.begun_ms())

    def _known(self, before: OpenVisits) -> Bools:
        """Whether visits are known to have begun when they did."""
        ways, joined, at = self._ways, self._joined, self._matched.before[self._row]
        device, first_ms = ways.of_track[joined.track], ways.course.first_ms(joined.track)
        seen_only = ways.continues[joined.track] & ~joined.crossed & (joined.start_ms <= first_ms)
        known = ~(seen_only & ~ways.begins.known[device])
        was_open = self._matched.was_open[self._row]
        known[was_open] = before.known[at[was_open]]
        return known

    def _open(self, visits: VisitsSoFar, before: OpenVisits, dwell_s: float | None) -> tuple[OpenVisits, Ints]:
        """What is open at the end of the tracks that go on, and the row of each before."""
        final, last, sides, joined = self._final, self._last, self._sides, self._joined
        goes_on = self._ways.stands[joined.track[final]] & (joined.inside[final] | self._doubts)
        final, last, doubts = final[goes_on], last[goes_on], self._doubts[goes_on]
        inside = joined.inside[final]
        at = np.where(visits.was_open[final], visits.before[final], _NONE)
        dwelt = np.zeros(len(final), dtype=np.bool_)
        dwelt[at != _NONE] = before.dwelt[at[at != _NONE]]
        if dwell_s is not None:
            dwelt |= visits.end_ms[final] - visits.start_ms[final] >= dwell_s * 1000.0
        now = OpenVisits(
            device=visits.device[final],
            fence=visits.fence[final],
            start_ms=np.where(inside, visits.start_ms[final], np.nan),
            entered=inside & visits.entered[final],
            known=visits.known[final],
            dwelt=inside & dwelt,
            doubt_ms=np.where(doubts, sides.start_ms[last], np.nan),
            crossed=doubts & sides.crossed[last],
            away=doubts & self._away[last],
        )
        return now, self._matched.before[last]


def _ended(ways: _Ways, before: OpenVisits, rows: Ints) -> VisitsSoFar:
    """Visits that a break of the track ended at its first fix."""
    device, none = before.device[rows], np.zeros(len(rows), dtype=np.bool_)
    until = ways.first_ms[device]
    columns = (before.fence[rows], before.start_ms[rows], until, before.entered[rows], before.known[rows])
    return VisitsSoFar(device, *columns, none, rows, ~none)


def _rows(visits: VisitsSoFar, some: Ints) -> VisitsSoFar:
    return VisitsSoFar(*(getattr(visits, name)[some] for name in visits.__slots__))


def _joined(one: VisitsSoFar | OpenVisits, other: VisitsSoFar | OpenVisits):  # type: ignore[no-untyped-def]
    return type(one)(*(np.concatenate([getattr(part, name) for part in (one, other)]) for name in one.__slots__))
