"""Visits: from entering a fence to leaving it, with hysteresis, so that jitter at a border makes no visit.

Metering counts every metre exactly (`Pieces`); visits are reported to people. A device is on the other side of a border
only once that is sure: it stays there `min_stay_s` and is, at one place, at least `buffer_m` (or the accuracy that the
fix reported, if that is worse) from the border. The time of an entry or exit is the exact crossing that began it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from geo.spatial.clip import segments_of
from geo.spatial.depth import anywhere_away, border_distance_m
from geo.spatial.fence_set import FenceSet
from geo.spatial.geodesic import wrap_lon
from geo.spatial.measure import FenceRuns, runs_by_fence
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct_pairs, expand, lexical, run_starts, stacked
from geo.spatial.tracks import Tracks
from waybill.settings import Settings

# Visits of fences, merged over time.

MAX_ROWS_HELD: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """Stretches inside `fence` (a name), sorted by group, fence and time; stretches that follow each other in one group
    are one row.

    `group`: an unbroken track, or a device. `segment`: where a stretch begins. `entry`: it begins with a crossing;
    `leaves`: it ends with one. `speed`: the highest on it, m/s.
    """

    group: Ints
    fence: Ints
    segment: Ints
    start_ms: Floats
    end_ms: Floats
    entry: Bools
    leaves: Bools
    speed: Floats

    def __len__(self) -> int:
        return len(self.group)


def joined_stays(parts: Iterable[Stays]) -> Stays:
    """All stretches of some parts, joined. Those of a segment and fence must come in order of time.

    Holds about `MAX_ROWS_HELD` rows more than the result has.
    """
    whole, waiting, held = _none(), list[Stays](), 0
    for part in parts:
        waiting.append(_joined([part]))
        held += len(waiting[-1])
        # Join only when the waiting rows outnumber the result, which would be sorted again for every part.
        if held > max(MAX_ROWS_HELD, len(whole)):
            whole, waiting, held = _joined([whole, *waiting]), [], 0
    return waiting[0] if len(waiting) == 1 and not len(whole) else _joined([whole, *waiting])


def _none() -> Stays:
    whole, real, flag = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.bool_)
    return Stays(whole, whole, whole, real, real, flag, flag, real)


def _joined(parts: list[Stays]) -> Stays:
    group, fence, segment, start, end, entry, leaves, speed = stacked(parts)
    if not len(group):
        return _none()
    order = lexical(group, fence, segment)
    group, fence, segment, speed = (part[order] for part in (group, fence, segment, speed))
    start, end, entry, leaves = start[order], end[order], entry[order], leaves[order]
    opens = run_starts(group, fence)
    opens[1:] |= (start[1:] != end[:-1]) | leaves[:-1] | entry[1:]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(opens)) - 1
    most = np.maximum.reduceat(speed, first)
    return Stays(group[first], fence[first], segment[first], start[first], end[last], entry[first], leaves[last], most)


_TIMES_AT_ONCE: Final = 1 << 20
_BESIDE_MS: Final = 1e-3  # the rounding of a computed switch time


MAX_STAY_S: Final = 43_200
"""The fixes of half a day around a day decide its events."""


class VisitSettings(Settings):
    """When a change of sides counts."""

    buffer_m: Annotated[float, Field(ge=0)] = 0.0
    min_stay_s: Annotated[float, Field(ge=0, le=MAX_STAY_S)] = 0.0
    use_accuracy: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """One row per visit, sorted by device, fence and time; `fence` indexes the set's `names`.

    `entered`: it began with a crossing; else the track began (or continued after a break) inside, or the fence came
    into force. `left`: it ended with a crossing; else the track ended or broke, or the fence went out of force.
    """

    device: Ints
    fence: Ints
    start_ms: Floats
    end_ms: Floats
    entered: Bools
    left: Bools

    def __len__(self) -> int:
        return len(self.device)


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

    def rows(self, keep: Bools) -> Sides:
        return Sides(*(getattr(self, name)[keep] for name in self.__slots__))


class Course:
    """The segments of tracks, and which of them follow each other without a break."""

    def __init__(self, tracks: Tracks) -> None:
        ends = tracks.segments()
        self.tracks, self.ends, self.segments = tracks, ends, segments_of(tracks)
        opens = np.ones(len(ends), dtype=np.bool_) if self.segments.follows is None else ~self.segments.follows
        self.of_segment: Ints = np.cumsum(opens) - 1
        self.first: Ints = np.append(np.flatnonzero(opens), len(ends))

    def device(self, track: Ints) -> Ints:
        """The devices of unbroken tracks."""
        return self.tracks.fixes.device[self.tracks.row[self.ends[self.first[track]]]]

    def start_ms(self, track: Ints) -> Floats:
        return self.segments.start_ms[self.first[track]]

    def end_ms(self, track: Ints) -> Floats:
        return self.segments.end_ms[self.first[track + 1] - 1]


def find_visits(tracks: Tracks, fences: FenceSet, settings: VisitSettings | None = None) -> Visits:
    course = Course(tracks)
    if not len(course.ends) or not fences.names:
        return _visits(course, Sides(*(np.zeros(0, dtype=kind) for kind in (int, int, int, bool, float, float, bool))))
    sides = sides_of(course, fences)
    sure = _sure(course, sides, fences, settings or VisitSettings())
    # the first side is where the track began
    return _visits(course, sides.rows(sure | run_starts(sides.course)))


def sides_of(course: Course, fences: FenceSet) -> Sides:
    """Stretches inside each fence, and the stretches outside between them."""
    stays = joined_stays(_stays(course, runs) for runs in runs_by_fence(course.segments, fences))
    track, fence, start, end = stays.group, stays.fence, stays.start_ms, stays.end_ms
    entry, leaves = stays.entry, stays.leaves
    first = run_starts(track, fence)
    final = np.append(first[1:], True)[: len(first)]
    number = np.cumsum(first) - 1
    # a crossing proves another side, even where its time equals that of a fix
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


def _sure(course: Course, sides: Sides, fences: FenceSet, settings: VisitSettings) -> Bools:
    """Which stretches are long and deep enough to count."""
    # The cheap test first: only stays that last long enough are measured against the border.
    sure = sides.end_ms - sides.start_ms >= settings.min_stay_s * 1000.0
    accuracy = course.tracks.fixes.accuracy_m if settings.use_accuracy else None
    if settings.buffer_m == 0.0 and (accuracy is None or np.isnan(accuracy).all()):
        return sure
    ask = np.flatnonzero(sure)
    sure[ask] = deep_stays(sides, ask, Samples(course, fences, settings.buffer_m, accuracy))
    return sure


def deep_stays(sides: Sides, ask: Ints, samples: Samples) -> Bools:
    """Whether some place of each of these stretches is farther from the border than its uncertainty."""
    deep = samples.deep(sides.track[ask], sides.fence[ask], sides.start_ms[ask], sides.end_ms[ask])
    rest = np.flatnonzero(~deep)
    ask = ask[rest]
    for parts in samples.parts(sides.track[ask], sides.fence[ask], sides.start_ms[ask], sides.end_ms[ask]):
        deep[rest[parts.row[samples.anywhere_deep(parts)]]] = True
    return deep


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of stretches (`row`), each on one segment and within the time of one version, or of none (-1)."""

    row: Ints
    segment: Ints
    fence: Ints
    start_ms: Floats
    end_ms: Floats


class Samples:
    """Places on a track, compared with their distance from a fence's border.

    The border is that of the version in force; where none is, there is no border near. `most_m`: for each shape, the
    largest distance that is asked for (None: the uncertainty of the place).
    """

    def __init__(
        self, course: Course, fences: FenceSet, buffer_m: float, accuracy_m: Floats | None, most_m: Floats | None = None
    ) -> None:
        self._course, self._fences, self._buffer_m, self._accuracy_m = course, fences, buffer_m, accuracy_m
        self._most_m = most_m

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

    def _uncertainty_m(self, segment: Ints, fence: Ints) -> Floats:
        uncertainty_m = np.full(len(segment), self._buffer_m)
        if self._accuracy_m is not None:
            accuracy_m = self._accuracy_m[self._course.tracks.row[self._course.ends[segment]]]
            uncertainty_m = np.asarray(np.fmax(uncertainty_m, accuracy_m))
        if self._most_m is None:
            return uncertainty_m
        # without a fence (-1) there is no border; the value is not used
        return np.asarray(np.minimum(uncertainty_m, self._most_m[self._fences.shared.of_fence[fence]]))

    def deep(self, track: Ints, name: Ints, start_ms: Floats, end_ms: Floats) -> Bools:
        """Whether the place in the middle of each stretch is that far away, which decides most stretches."""
        t_ms = (start_ms + end_ms) / 2
        segment = self._segment(track, t_ms)
        fence = self._fences.version_at(name, _version_ms(start_ms, t_ms))
        deep: Bools = fence < 0
        near = np.flatnonzero(~deep)
        (x, y), uncertainty_m = self._places(segment[near], t_ms[near]), self._uncertainty_m(segment[near], fence[near])
        shape = self._fences.shared.of_fence[fence[near]]
        deep[near] = (
            border_distance_m(self._fences.index.outlines, shape, wrap_lon(x), y, uncertainty_m) >= uncertainty_m
        )
        return deep

    def anywhere_deep(self, parts: _Parts) -> Bools:
        """Whether any place of each part is that far away."""
        uncertainty_m = self._uncertainty_m(parts.segment, parts.fence)
        deep: Bools = (parts.fence < 0) | (uncertainty_m == 0.0)
        near = np.flatnonzero(~deep)
        segment, shape = parts.segment[near], self._fences.shared.of_fence[parts.fence[near]]
        start, end = self._places(segment, parts.start_ms[near]), self._places(segment, parts.end_ms[near])
        deep[near] = anywhere_away(self._fences.index.outlines, shape, start, end, uncertainty_m[near])
        return deep

    def parts(self, track: Ints, name: Ints, start_ms: Floats, end_ms: Floats) -> Iterator[_Parts]:
        """The parts of each stretch, cut at fixes and where its version changes; in blocks."""
        course = self._course
        low, high = self._segment(track, start_ms), self._segment(track, end_ms)
        for block in blocks(high - low + 1, _TIMES_AT_ONCE):
            row, segment = expand(low[block], (high - low + 1)[block])
            row += block.start
            start = np.maximum(course.segments.start_ms[segment], start_ms[row])
            end = np.minimum(course.segments.end_ms[segment], end_ms[row])
            # a stretch that begins at a fix has no part of the segment that ends there
            some = np.flatnonzero((end > start) | (start_ms[row] == end_ms[row]))
            row, segment, start, end = row[some], segment[some], start[some], end[some]
            item, start, end = _cut(*self._fences.switches_of(name[row], start, end), start, end)
            row, segment = row[item], segment[item]
            fence = self._fences.version_at(name[row], _version_ms(start, (start + end) / 2))
            yield _Parts(row, segment, fence, start, end)


def _version_ms(start_ms: Floats, t_ms: Floats) -> Floats:
    """The time at which to ask for the version in force: at a switch, just before it.

    Switches are at whole milliseconds; computed times may be beside them.
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


def _visits(course: Course, sides: Sides) -> Visits:
    """Visits from the stretches that count: neighbours on the same side are one."""
    opens = run_starts(sides.course, sides.inside) if len(sides.course) else np.zeros(0, dtype=np.bool_)
    first = np.flatnonzero(opens)
    number, inside = sides.course[first], sides.inside[first]
    begins = run_starts(number) if len(first) else opens
    follows = np.append(~begins[1:], False)[: len(first)]
    start = np.where(begins, course.start_ms(sides.track[first]), sides.start_ms[first])
    end = np.where(follows, np.append(start[1:], 0.0)[: len(first)], course.end_ms(sides.track[first]))
    crossed = sides.crossed[first] & ~begins
    left = follows & np.append(crossed[1:], False)[: len(first)]
    track = sides.track[first]
    device = course.device(track)
    order = np.flatnonzero(inside)
    order = order[np.lexsort((start[order], sides.fence[first][order], device[order]))]
    return Visits(device[order], sides.fence[first][order], start[order], end[order], crossed[order], left[order])
