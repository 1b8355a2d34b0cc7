"""Encounters: when two devices are within a distance of each other, with the closest approach between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.clip import Segments, segments_of
from geo.spatial.errors import TooManyEncounters
from geo.spatial.geodesic import WGS84, distance_m, offset_m
from geo.spatial.nearby import Candidates, candidates, flattest, turns
from geo.spatial.ragged import Bools, Floats, Ints, Points, expand, run_starts, stacked
from geo.spatial.tracks import Tracks

MAX_PARTS_HELD: Final = 4_000_000
MAX_ENCOUNTERS: Final = 4_000_000
"""The most encounters of `find_encounters`: every pair of some 2,800 devices on one spot."""
_REFINEMENTS = 2
# Parts of one encounter meet up to rounding; fixes are whole milliseconds apart.
_JOINED_MS = 1e-3
_EXACT_M = 1e-7
_EXACT_MS = 1e-4
_STRAIGHT_M: Final = 2.0  # how far a way may bulge out of a line that is straight in metres


@dataclass(frozen=True, slots=True, eq=False)
class Encounters:
    """One row per encounter: the longest stretch of time in which two devices that met do not part.

    `device_a < device_b` (numbers of `Fixes.device`), times in Unix ms, interpolated; `min_m` is the WGS84 distance at
    `t_min_ms`. Sorted by pair, then start. A break of either track ends an encounter.

    `start_ms .. end_ms`: from when they were first within the distance to when they last were. `from_ms .. to_ms`: how
    long around it they were not apart. In a part of an encounter in which they are never within the distance `start_ms`
    is infinite and `end_ms` minus infinite.
    """

    device_a: Ints
    device_b: Ints
    start_ms: Floats
    end_ms: Floats
    min_m: Floats
    t_min_ms: Floats
    from_ms: Floats
    to_ms: Floats

    def __len__(self) -> int:
        return len(self.device_a)


def find_encounters(tracks: Tracks, within_m: float, apart_m: float | None = None) -> Encounters:
    """Every encounter of every pair of devices, each once. Raises `TooManyEncounters`.

    `apart_m`: two that met are together until they are this far apart (None: until they are beyond the distance).
    """
    segments = segments_of(tracks)
    device = tracks.fixes.device[tracks.row[tracks.segments()]]
    apart_m = within_m if apart_m is None else max(within_m, apart_m)
    pairs = candidates(segments, device, apart_m)
    whole = join_encounters(meetings(device, segments, found, within_m, apart_m) for found in pairs)
    met = np.flatnonzero(whole.min_m <= within_m)
    return Encounters(*(column[met] for column in stacked([whole])))


def join_encounters(parts: Iterable[Encounters]) -> Encounters:
    """Encounters from consecutive parts: of slices of time, or of batches. Raises `TooManyEncounters`.

    Holds about `MAX_PARTS_HELD` rows more than there are encounters.
    """
    whole, waiting, held = _empty(), list[Encounters](), 0
    for part in parts:
        waiting.append(part)
        held += len(part)
        if held > MAX_PARTS_HELD:
            whole, waiting, held = _bounded(_concatenated([whole, *waiting])), [], 0
    return _bounded(_concatenated([whole, *waiting]))


def _bounded(encounters: Encounters) -> Encounters:
    if len(encounters) > MAX_ENCOUNTERS:
        raise TooManyEncounters(MAX_ENCOUNTERS)
    return encounters


def _empty() -> Encounters:
    whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Encounters(whole, whole, *[real] * 6)


def _concatenated(parts: list[Encounters]) -> Encounters:
    columns = stacked(parts)
    if not len(columns[0]):
        return _empty()
    order = np.lexsort((columns[-2], columns[1], columns[0]))
    a, b, start, end, least, when, begin, finish = (column[order] for column in columns)
    opens = run_starts(a, b)
    opens[1:] |= begin[1:] - finish[:-1] > _JOINED_MS
    first = np.flatnonzero(opens)
    group = np.cumsum(opens) - 1
    minimum = np.minimum.reduceat(least, first)
    time = np.minimum.reduceat(np.where(least == minimum[group], when, np.inf), first)
    start, end = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
    return Encounters(a[first], b[first], start, end, minimum, time, begin[first], np.maximum.reduceat(finish, first))


class _Motion:
    """Two moving devices: their distance at any time."""

    def __init__(self, segments: Segments, one: Ints, other: Ints) -> None:
        self._segments, self._one, self._other = segments, one, other

    def rows(self, rows: Ints | Bools) -> _Motion:
        return _Motion(self._segments, self._one[rows], self._other[rows])

    def _places(self, t_ms: Floats) -> tuple[Points, Points]:
        return self._at(self._one, t_ms), self._at(self._other, t_ms)

    def _at(self, segment: Ints, t_ms: Floats) -> Points:
        start, end = self._segments.start_ms[segment], self._segments.end_ms[segment]
        return self._segments.at(segment, (t_ms - start) / (end - start))

    def offset(self, t_ms: Floats) -> Points:
        """Metres from one to the other, east and north. Approximate beyond 80 degrees of latitude."""
        return offset_m(*self._places(t_ms))

    def distance(self, t_ms: Floats) -> Floats:
        (x, y), (u, v) = self._places(t_ms)
        return distance_m(x, y, u, v)

    def closest(self, start: Floats, end: Floats) -> Floats:
        """The time of the least distance in `start .. end`."""
        limits = (start, end)
        time = _nearest(limits, (self.offset(start), self.offset(end)), limits)
        for _ in range(_REFINEMENTS):
            # on a long way the offset is not quite linear in time: search again nearby
            step = (end - start) * 0.01
            look = (np.maximum(time - step, start), np.minimum(time + step, end))
            time = _nearest(look, (self.offset(look[0]), self.offset(look[1])), limits)
        return time

    def reaches(self, within_m: float, outside: Floats, inside: Floats) -> Floats:
        """The time between `outside` (farther than the limit) and `inside` (within it) at which the limit is
        reached.
        """
        far, near = outside.copy(), inside.copy()
        over, under = self.distance(far) - within_m, self.distance(near) - within_m
        guess, done = near.copy(), np.zeros(len(far), dtype=np.bool_)
        for step in range(60):
            # false position, and every third time the middle, which bounds the number of steps
            fraction = 0.5 if step % 3 == 2 else over / np.where(over > under, over - under, 1.0)
            guess = np.where(done, guess, far + (near - far) * fraction)
            value = self.distance(guess) - within_m
            # each row stops on its own: a result must not depend on its neighbours in a batch
            done |= (np.abs(value) < _EXACT_M) | (np.abs(near - far) < _EXACT_MS)
            if done.all():
                break
            out = value > 0
            far, over = np.where(out, guess, far), np.where(out, value, over)
            near, under = np.where(out, near, guess), np.where(out, under, value)
        return guess

    def stretch(self, within_m: float, limits: Points, at_limits: Points, closest: Floats) -> Points:
        """From when to when each is within the distance, which it is at the time of the least distance (`closest`)."""
        bounds = []
        for limit, at_limit in zip(limits, at_limits, strict=True):
            bound, beyond = limit.copy(), np.flatnonzero(at_limit > within_m)
            bound[beyond] = self.rows(beyond).reaches(within_m, limit[beyond], closest[beyond])
            bounds.append(bound)
        return bounds[0], bounds[1]


def _nearest(look: Points, offsets: tuple[Points, Points], limits: Points) -> Floats:
    """Where the line through the offsets at two times (`look`) passes closest to 0, within `limits`."""
    (x, y), (u, v) = offsets
    dx, dy = u - x, v - y
    square = dx * dx + dy * dy
    fraction = np.divide(-(x * dx + y * dy), square, out=np.zeros(len(dx)), where=square > 0)
    return np.clip(look[0] + fraction * (look[1] - look[0]), *limits)


def meetings(device: Ints, segments: Segments, pairs: Candidates, within_m: float, apart_m: float) -> Encounters:
    """For each pair of parts: the stretches of its time in which it is not apart; each pair by itself."""
    parts = _straight_parts(segments, pairs, within_m)
    curved = np.flatnonzero(parts > 1)
    straight = np.flatnonzero(parts == 1)
    limits_m = within_m, apart_m
    met = [_meetings(segments, _taken(pairs, straight), straight, *limits_m)]
    for block in np.array_split(curved, int(parts[curved].sum()) // MAX_PARTS_HELD + 1):
        row, part = expand(np.zeros(len(block), dtype=np.int64), parts[block])
        met.append(
            _concatenated([_meetings(segments, _parts_of(pairs, block[row], part, parts), block[row], *limits_m)])
        )
    row, _, *rest = stacked(met)
    return Encounters(device[pairs.one[row]], device[pairs.other[row]], *rest)


def _straight_parts(segments: Segments, pairs: Candidates, within_m: float) -> Ints:
    """Into how many parts of its time each pair is divided, so that both move on lines that are straight in metres
    too.
    """
    allowed = (_STRAIGHT_M + 0.002 * within_m) * 8.0 / WGS84.a
    if not len(segments):
        return np.ones(0, dtype=np.int64)
    east, north = turns(segments)
    if float(east.max() + north.max()) ** 2 * 2.0 <= allowed:
        return np.ones(len(pairs.one), dtype=np.int64)
    level, bulge = np.cos(np.radians(flattest(segments))), np.zeros(len(pairs.one))
    for segment in (pairs.one, pairs.other):
        share = (pairs.end_ms - pairs.start_ms) / (segments.end_ms[segment] - segments.start_ms[segment])
        turn, climb = east[segment] * share, north[segment] * share
        bulge += turn * (level[segment] * turn + 2.0 * climb)
    return np.maximum(np.ceil(np.sqrt(bulge / allowed)), 1).astype(np.int64)


def _taken(pairs: Candidates, row: Ints) -> Candidates:
    if len(row) == len(pairs.one):
        return pairs
    return Candidates(pairs.one[row], pairs.other[row], pairs.start_ms[row], pairs.end_ms[row])


def _parts_of(pairs: Candidates, row: Ints, part: Ints, parts: Ints) -> Candidates:
    start, length = pairs.start_ms[row], pairs.end_ms[row] - pairs.start_ms[row]
    begin, end = (start + length * (number / parts[row]) for number in (part, part + 1))
    return Candidates(pairs.one[row], pairs.other[row], begin, end)


def _meetings(segments: Segments, pairs: Candidates, row: Ints, within_m: float, apart_m: float) -> Encounters:
    """Stretches not apart, of pairs that move straight; the numbers `row` stand in place of the devices."""
    motion, start, end = _Motion(segments, pairs.one, pairs.other), pairs.start_ms, pairs.end_ms
    rough = _nearest((start, end), (motion.offset(start), motion.offset(end)), (start, end))
    east, north = motion.offset(rough)
    # The offset is rough on a long way: the extra room keeps all that may come near.
    near = np.flatnonzero(np.hypot(east, north) <= 1.01 * apart_m + 10.0)
    motion, start, end = motion.rows(near), start[near], end[near]
    time = motion.closest(start, end)
    least, at_start, at_end = motion.distance(time), motion.distance(start), motion.distance(end)
    # Among equal distances the start counts, not where the search stopped.
    time = np.where(at_start <= least, start, np.where(at_end < least, end, time))
    least = np.minimum(least, np.minimum(at_start, at_end))
    met = np.flatnonzero(least <= apart_m)
    motion, time, least = motion.rows(met), time[met], least[met]
    limits, at_limits = (start[met], end[met]), (at_start[met], at_end[met])
    start, end = begin, finish = motion.stretch(apart_m, limits, at_limits, time)
    if within_m < apart_m:
        start, end = np.full(len(met), np.inf), np.full(len(met), -np.inf)
        close = np.flatnonzero(least <= within_m)
        limits, at_limits = ((low[close], high[close]) for low, high in (limits, at_limits))
        start[close], end[close] = motion.rows(close).stretch(within_m, limits, at_limits, time[close])
    number = row[near][met]
    return Encounters(number, np.zeros_like(number), start, end, least, time, begin, finish)
