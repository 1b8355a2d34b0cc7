"""On which side of a border a track is, stretch by stretch, and which stretches are no jitter.

What a stretch is taken for depends on how long it lasts and on how far from the border it gets: see `visits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from geo.spatial.clip import segments_of
from geo.spatial.depth import anywhere_away, border_distance_m
from geo.spatial.fence_set import FenceSet
from geo.spatial.geodesic import wrap_lon
from geo.spatial.measure import FenceRuns, runs_by_fence
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct_pairs, expand, run_starts
from geo.spatial.stays import Stays, joined_stays
from geo.spatial.tracks import Tracks
from settings import Settings

_TIMES_AT_ONCE: Final = 1 << 20
_BESIDE_MS: Final = 1e-3  # what a time of a switch that was computed may be off


class VisitSettings(Settings):
    """When a change of sides counts."""

    buffer_m: Annotated[float, Field(ge=0)] = 0.0
    min_stay_s: Annotated[float, Field(ge=0)] = 0.0
    use_accuracy: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Stretches of time on one side of one fence, sorted by `course`, then time; sides alternate.

    `course` numbers (unbroken track, fence). `crossed`: the stretch began with a crossing.
    """

    course: Ints
    track: Ints
    fence: Ints
    inside: Bools
    start_ms: Floats
    end_ms: Floats
    crossed: Bools

    def __len__(self) -> int:
        return len(self.course)

    def followed(self) -> Bools:
        """Which are not the last of their course."""
        return np.append(self.course[1:] == self.course[:-1], False)[: len(self)]

    def rows(self, keep: Bools | Ints) -> Sides:
        """Some of them."""
        return Sides(*(getattr(self, name)[keep] for name in self.__slots__))


class Course:
    """The segments of tracks, and which of them follow on each other without a break."""

    def __init__(self, tracks: Tracks) -> None:
        ends = tracks.segments()
        self.tracks, self.ends, self.segments = tracks, ends, segments_of(tracks)
        opens = np.ones(len(ends), dtype=np.bool_) if self.segments.follows is None else ~self.segments.follows
        self.of_segment: Ints = np.cumsum(opens) - 1
        self.first: Ints = np.append(np.flatnonzero(opens), len(ends))
        self._begun_ms = self.segments.start_ms[self.first[:-1]]

    @property
    def track_count(self) -> int:
        """Of how many unbroken tracks there are segments."""
        return len(self.first) - 1

    def begin_earlier(self, track: Ints, begun_ms: Floats) -> None:
        """Some tracks really began before their first segment."""
        self._begun_ms[track] = begun_ms

    def device(self, track: Ints) -> Ints:
        """Whose tracks they are."""
        return self.tracks.fixes.device[self.tracks.row[self.ends[self.first[track]]]]

    def start_ms(self, track: Ints) -> Floats:
        """When tracks began."""
        return self._begun_ms[track]

    def first_ms(self, track: Ints) -> Floats:
        """When the first segments of tracks start."""
        return self.segments.start_ms[self.first[track]]

    def end_ms(self, track: Ints) -> Floats:
        """When the last segments of tracks end."""
        return self.segments.end_ms[self.first[track + 1] - 1]


def find_sides(course: Course, fences: FenceSet, earlier: Iterable[Stays] = ()) -> Sides:
    """Stretches inside each fence, and the stretches outside between them.

    `earlier`: stays of before the first segments of tracks, by `Course` track.
    """
    if not course.track_count or not fences.names:
        return Sides(*(np.zeros(0, dtype=kind) for kind in (int, int, int, bool, float, float, bool)))
    here = (_stays(course, runs) for runs in runs_by_fence(course.segments, fences))
    stays = joined_stays(chain(earlier, here))
    track, fence, start, end = stays.group, stays.fence, stays.start_ms, stays.end_ms
    entry, leaves = stays.entry, stays.leaves
    first = run_starts(track, fence)
    final = np.append(first[1:], True)[: len(first)]
    number = np.cumsum(first) - 1
    # a crossing says that there was another side, also where its time is that of a fix to the last bit
    before = np.flatnonzero(first & ((start > course.start_ms(track)) | entry))
    after = np.flatnonzero(~final | (end < course.end_ms(track)) | leaves)
    until = np.where(final, course.end_ms(track), np.append(start[1:], 0.0)[: len(start)])
    rows = np.concatenate([np.arange(len(track)), before, after])
    inside = np.zeros(len(rows), dtype=np.bool_)
    inside[: len(track)] = True
    starts = np.concatenate([start, course.start_ms(track[before]), end[after]])
    ends = np.concatenate([end, start[before], until[after]])
    crossed = np.concatenate([entry, np.zeros(len(before), dtype=np.bool_), leaves[after]])
    place = 3 * rows + np.repeat([1, 0, 2], [len(track), len(before), len(after)])
    order = np.argsort(place)
    rows = rows[order]
    return Sides(number[rows], track[rows], fence[rows], inside[order], starts[order], ends[order], crossed[order])


def _stays(course: Course, runs: FenceRuns) -> Stays:
    segment, track = runs.segment, course.of_segment[runs.segment]
    start, end = course.segments.time_at(segment, runs.start), course.segments.time_at(runs.last, runs.end)
    return Stays(track, runs.zone, segment, start, end, runs.entry, runs.leaves, np.zeros(len(segment)))


def joined_sides(course: Course, sides: Sides) -> Sides:
    """Stretches that count, neighbours on the same side made one: they cover each track without a gap."""
    if not len(sides):
        return sides
    joined = sides.rows(np.flatnonzero(run_starts(sides.course, sides.inside)))
    begins, follows = run_starts(joined.course), joined.followed()
    start = np.where(begins, course.start_ms(joined.track), joined.start_ms)
    end = np.where(follows, np.append(start[1:], 0.0), course.end_ms(joined.track))
    return replace(joined, start_ms=start, end_ms=end, crossed=joined.crossed & ~begins)


def lasting(sides: Sides, settings: VisitSettings) -> Bools:
    """Which stretches are long enough to be no jitter."""
    return np.asarray(sides.end_ms - sides.start_ms >= settings.min_stay_s * 1000.0, dtype=np.bool_)


def far_away(course: Course, sides: Sides, ask: Ints, fences: FenceSet, settings: VisitSettings) -> Bools:
    """Which of some stretches, by their rows, are somewhere so far from the border that they are no jitter.

    What was before the first segment of a track is not looked at.
    """
    accuracy = course.tracks.fixes.accuracy_m if settings.use_accuracy else None
    if not len(ask) or (settings.buffer_m == 0.0 and (accuracy is None or np.isnan(accuracy).all())):
        return np.ones(len(ask), dtype=np.bool_)
    samples = _Samples(course, fences, settings.buffer_m, accuracy)
    track, fence = sides.track[ask], sides.fence[ask]
    start, end = np.maximum(sides.start_ms[ask], course.first_ms(track)), sides.end_ms[ask]
    far = samples.deep(track, fence, start, end)
    ask = np.flatnonzero(~far)
    for parts in samples.parts(track[ask], fence[ask], start[ask], end[ask]):
        far[ask[parts.row[samples.anywhere_deep(parts)]]] = True
    return far


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of stretches (`row`), each on one segment and while one version, or none (-1), is in force."""

    row: Ints
    segment: Ints
    fence: Ints
    start_ms: Floats
    end_ms: Floats


class _Samples:
    """Places on a track: are they farther from a fence's border than their uncertainty?

    The border is that of the version in force; where none is, there is no border near.
    """

    def __init__(self, course: Course, fences: FenceSet, buffer_m: float, accuracy_m: Floats | None) -> None:
        self._course, self._fences, self._buffer_m, self._accuracy_m = course, fences, buffer_m, accuracy_m

    def _segment(self, track: Ints, t_ms: Floats) -> Ints:
        """The segment of a track at a time: segments of all tracks are in order of (track, time)."""
        course = self._course
        # one ascending key for (track, time); times in ms since the earliest, below 2^52 for any track
        origin = float(course.segments.start_ms.min())
        span = float(course.segments.end_ms.max()) - origin + 1.0
        keys = course.of_segment * span + (course.segments.end_ms - origin)
        at = np.searchsorted(keys, track * span + (t_ms - origin))
        return np.clip(at, course.first[track], course.first[track + 1] - 1)

    def _places(self, segment: Ints, t_ms: Floats) -> Points:
        segments = self._course.segments
        start, end = segments.start_ms[segment], segments.end_ms[segment]
        fraction: Floats = np.clip((t_ms - start) / (end - start), 0.0, 1.0)
        return segments.at(segment, fraction)

    def _uncertainty_m(self, segment: Ints) -> Floats:
        uncertainty_m = np.full(len(segment), self._buffer_m)
        if self._accuracy_m is None:
            return uncertainty_m
        return np.asarray(np.fmax(uncertainty_m, self._accuracy_m[self._course.tracks.row[self._course.ends[segment]]]))

    def deep(self, track: Ints, name: Ints, start_ms: Floats, end_ms: Floats) -> Bools:
        """Is the place in the middle of each stretch so far away? That says enough of most."""
        t_ms = (start_ms + end_ms) / 2
        segment = self._segment(track, t_ms)
        fence = self._fences.version_at(name, _version_ms(start_ms, t_ms))
        deep: Bools = fence < 0
        near = np.flatnonzero(~deep)
        (x, y), uncertainty_m = self._places(segment[near], t_ms[near]), self._uncertainty_m(segment[near])
        shape = self._fences.shared.of_fence[fence[near]]
        deep[near] = (
            border_distance_m(self._fences.index.outlines, shape, wrap_lon(x), y, uncertainty_m) >= uncertainty_m
        )
        return deep

    def anywhere_deep(self, parts: _Parts) -> Bools:
        """Is any place of each part so far away?"""
        uncertainty_m = self._uncertainty_m(parts.segment)
        deep: Bools = (parts.fence < 0) | (uncertainty_m == 0.0)
        near = np.flatnonzero(~deep)
        segment, shape = parts.segment[near], self._fences.shared.of_fence[parts.fence[near]]
        start, end = self._places(segment, parts.start_ms[near]), self._places(segment, parts.end_ms[near])
        deep[near] = anywhere_away(self._fences.index.outlines, shape, start, end, uncertainty_m[near])
        return deep

    def parts(self, track: Ints, name: Ints, start_ms: Floats, end_ms: Floats) -> Iterator[_Parts]:
        """All parts of each stretch, cut at fixes and where its version changes; some at once."""
        course = self._course
        low, high = self._segment(track, start_ms), self._segment(track, end_ms)
        for block in blocks(high - low + 1, _TIMES_AT_ONCE):
            row, segment = expand(low[block], (high - low + 1)[block])
            row += block.start
            start = np.maximum(course.segments.start_ms[segment], start_ms[row])
            end = np.minimum(course.segments.end_ms[segment], end_ms[row])
            # a stretch that begins at a fix has nothing of the segment that ends there
            some = np.flatnonzero((end > start) | (start_ms[row] == end_ms[row]))
            row, segment, start, end = row[some], segment[some], start[some], end[some]
            item, start, end = _cut(*self._fences.switches_of(name[row], start, end), start, end)
            row, segment = row[item], segment[item]
            fence = self._fences.version_at(name[row], _version_ms(start, (start + end) / 2))
            yield _Parts(row, segment, fence, start, end)


def _version_ms(start_ms: Floats, t_ms: Floats) -> Floats:
    """When to ask for the version in force at times of stretches that begin at some: at a switch, the one before it.

    Switches are at whole milliseconds, what is computed may be beside them.
    """
    return np.asarray(np.maximum(t_ms - 0.5, start_ms + _BESIDE_MS))


def _cut(row: Ints, t_ms: Ints, start_ms: Floats, end_ms: Floats) -> tuple[Ints, Floats, Floats]:
    """Stretches cut at some times (row, ms) within them: (row, start, end) of each part."""
    inside = (t_ms > start_ms[row] + _BESIDE_MS) & (t_ms < end_ms[row] - _BESIDE_MS)
    row, t_ms = distinct_pairs(row[inside], t_ms[inside])
    item = np.concatenate([np.arange(len(start_ms)), row])
    start = np.concatenate([start_ms, t_ms])
    order = np.lexsort((start, item))
    item, start = item[order], start[order]
    last = np.append(item[1:] != item[:-1], True)[: len(item)]
    return item, start, np.where(last, end_ms[item], np.append(start[1:], 0.0)[: len(item)])
