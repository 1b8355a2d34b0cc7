"""What splitting a track gives: columns of pieces, each in one zone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.clip import Segments
from geo.spatial.geodesic import distance_m
from geo.spatial.ragged import Bools, Floats, Ints, stacked
from geo.spatial.tracks import Tracks

OUTSIDE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Stretches of segments, each as long as it stays in one zone; sorted by track, then by time.

    `end_fix[i]`: the row (in the `Fixes` given to `build_tracks`) of the fix that ends the segment of piece i; take
    its device and hour from there. `zone[i]`: index into the zone names, `OUTSIDE` (-1) for outside. `metres[i]`:
    WGS84 geodesic between the piece's ends; `ms[i]`: its share of the segment's time. `entry[i]`: the piece begins
    with an inward crossing of its zone's border. `start`, `end`: fractions of the segment.

    A piece of no length stands for a fix that lies on the border of a zone which the segment only reaches with it;
    it has metres 0 and ms 0 and carries the entry. Every segment's pieces cover it exactly once.
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
    """Parts of segments that lie in one zone (or fence): `start .. end`, fractions of `segment`; `entry` as above."""

    segment: Ints
    zone: Ints
    start: Floats
    end: Floats
    entry: Bools

    @classmethod
    def whole(cls, segment: Ints, zone: Ints) -> ZoneRuns:
        """Whole segments."""
        count = len(segment)
        return cls(segment, zone, np.zeros(count), np.ones(count), np.zeros(count, dtype=np.bool_))

    def rows(self, some: Ints) -> ZoneRuns:
        """Some of them, in this order."""
        return ZoneRuns(*(getattr(self, name)[some] for name in ZoneRuns.__slots__))


def joined_runs(parts: Iterable[ZoneRuns]) -> ZoneRuns:
    """Runs of neighbouring segments, one part after the other."""
    return ZoneRuns(*stacked(list(parts)))


def measured(tracks: Tracks, segments: Segments, runs: ZoneRuns) -> Pieces:
    """Pieces from runs over `segments` (those of `tracks`), with their metres and milliseconds.

    Of a segment on which the vehicle stands they have no metres and no entry: its places differ by noise alone.
    """
    ends = tracks.segments()[runs.segment]
    metres = tracks.metres[ends]
    # Whole segments have their length from the track already, and a geodesic is found by iteration.
    part = np.flatnonzero((runs.start > 0.0) | (runs.end < 1.0))
    from_x, from_y = segments.at(runs.segment[part], runs.start[part])
    to_x, to_y = segments.at(runs.segment[part], runs.end[part])
    metres[part] = distance_m(from_x, from_y, to_x, to_y)
    still = tracks.still[ends]
    metres[still] = 0.0
    ms = (segments.end_ms - segments.start_ms)[runs.segment] * (runs.end - runs.start)
    return Pieces(tracks.row[ends], runs.zone, metres, ms, runs.entry & ~still, runs.start, runs.end)
