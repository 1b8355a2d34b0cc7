"""Zone sets: fences of one price map, of which at most one counts at any place and time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from geo.spatial.clip import Stretches, segments_of
from geo.spatial.fence_set import FenceSet, SegmentFences
from geo.spatial.pieces import OUTSIDE, Pieces, ZoneRuns, joined_runs, measured
from geo.spatial.ragged import Bools, Floats, Ints, expand, run_starts
from geo.spatial.tracks import Tracks


class ZoneSet(FenceSet):
    """Fences as zones: a place belongs to the one with the highest priority that holds it, then the smallest id."""

    def zone_at(self, lon: Floats, lat: Floats, t_ms: Ints | Floats) -> Ints:
        """The zone of each place and time, as an index into `names`; `OUTSIDE` where there is none."""
        return self._names(self._winner(*self.holding(lon, lat, t_ms), len(lon)))

    def split(self, tracks: Tracks) -> Pieces:
        """Split every segment over the zones: see `Pieces`."""
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
        """The names of fences, and of none."""
        # "None" is the number after the last fence, and finds the value that was put there.
        return np.append(self.name_of_fence, OUTSIDE)[fence]


def _switched(parts: SegmentFences, winner: Ints) -> Bools:
    """Which stretches have another winner than the one before because of a switch alone: no border is crossed.

    The winner came into force, or the one before it went, and it was there all along. Where it was not, its border is
    met at the very moment of the other's switch.
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

    The end points take part as stretches of no length, so that an entry depends on its own segment alone.
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
