"""Smoothed ways: the mean place over so much of a way as its noise asks for, and less where it bends."""

from __future__ import annotations

from typing import Final

import numpy as np

from geo.spatial.ragged import Floats, Ints, Points

SMOOTH_MS: Final = 30_000
"""How far a mean reaches on each side; the noise is looked at over ten times that, and one gap."""
_MOST_BEND: Final = 9.0  # of noise, of a second difference that may come of it
_ROUGH_FIXES, _ROUGH_MS = 15, 300_000
_LENGTH: Final = 7.0  # of noise, that a smoothed way is to advance on each side
_HALVES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NARROWINGS: Final = 2
_BEND: Final = 8.0
_PARTS: Final = 64  # of a fix, in which half widths are counted
MOST_STEP: Final = 2.0 * _LENGTH
"""Steps that are so many times as long as the noise stay as they are."""


def sums_of(values: Ints) -> Ints:
    """Cumulative sums with a nought before them. They may wrap: differences below 2^63 are right all the same."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


class Smoothing:
    """Means over fixes of unbroken tracks, one after the other, on one `clock` that jumps at each break (ms).

    `first`: the first fix of the track of each. `scale`: metres of a unit, east (of each fix) and north. `reported`:
    the places that show how noisy they are; `sigma`: how noisy they may be at most; `metres`: of the steps.
    """

    def __init__(
        self,
        clock: Ints,
        first: Ints,
        scale: tuple[Floats, float],
        reported: tuple[Ints, Ints],
        *,
        metres: Floats,
        sigma: Floats,
    ) -> None:
        self._count, self._clock, self._first, self._metres, self._sigma = len(clock), clock, first, metres, sigma
        self._east, self._north = scale
        self._x, self._y = reported
        self._opposing_before = self._opposing()

    def means(self, places: tuple[Ints, Ints], standing: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The fixes that are smoothed, none of them `standing`: which ones, the sums of places around them (x, y), and
        the weight of these."""
        self._x, self._y = places
        self._sum_x, self._sum_y = sums_of(self._x), sums_of(self._y)
        moving, half = self._half_widths(standing)
        return moving, *self._box(moving, half)

    def _box(self, some: Ints, half: Ints) -> tuple[Ints, Ints, Ints]:
        """The sums of places over so many parts of a fix on each side, and their weight."""
        whole, part = half // _PARTS, half % _PARTS
        low, high = some - whole, some + whole
        # where the outermost have no part, they need not be there
        left, right = np.maximum(low - 1, 0), np.minimum(high + 1, self._count - 1)
        x, y = (
            _PARTS * (sums[high + 1] - sums[low]) + part * (values[left] + values[right])
            for sums, values in ((self._sum_x, self._x), (self._sum_y, self._y))
        )
        return x, y, _PARTS * (2 * whole + 1) + 2 * part

    def _offset(self, some: Ints, half: Ints) -> Points:
        """Metres from each fix to the mean around it, east and north."""
        x, y, weight = self._box(some, half)
        east = (x - weight * self._x[some]) / weight * self._east[some]
        return east, (y - weight * self._y[some]) / weight * self._north

    def _narrowed(self, some: Ints, half: Ints, wanted: Floats, rough: Floats) -> Ints:
        """Half widths, halved where the way bends within them: where the place is moved sideways more than by noise."""
        asked = np.arange(len(some))
        for _ in range(_NARROWINGS):
            asked = asked[half[asked] >= _PARTS]
            here, wide = some[asked], half[asked]
            narrow = wide // 2
            ahead_east, ahead_north = self._ahead(here, np.maximum(wide // _PARTS, 1))
            (east, north), (other_east, other_north) = self._offset(here, wide), self._offset(here, narrow)
            sideways = (east - other_east) * ahead_north - (north - other_north) * ahead_east
            noise = 1.0 / (2.0 * narrow / _PARTS + 1.0) - 1.0 / (2.0 * wide / _PARTS + 1.0)
            length = ahead_east * ahead_east + ahead_north * ahead_north
            bends = sideways * sideways > _BEND * rough[asked] ** 2 * noise * length
            # where it hardly moves, a narrow window has more noise and no less of a bend
            bends &= self._advance(here, np.maximum(narrow // _PARTS, 1)) >= wanted[asked] / 3.0
            wanted[asked] /= 2.0
            asked = asked[bends]
            half[asked] = narrow[bends]
            if not len(asked):
                break
        return half

    def _ahead(self, some: Ints, many: Ints) -> Points:
        """Metres from the mean of some fixes up to each to the mean of as many from it on."""
        found = []
        for sums, scale in ((self._sum_x, self._east[some]), (self._sum_y, self._north)):
            ahead, behind = sums[some + many + 1] - sums[some], sums[some + 1] - sums[some - many]
            found.append((ahead - behind) / (many + 1) * scale)
        return found[0], found[1]

    def _half_widths(self, standing: Ints) -> tuple[Ints, Ints]:
        """The moving fixes that are smoothed, and over how many parts of a fix on each side."""
        place, metres = np.arange(self._count), self._metres
        # a window ends at the track's ends
        last = np.minimum.accumulate(np.where(np.append(self._first[1:] == place[1:], True), place, self._count)[::-1])
        room = np.minimum(place - self._first, last[::-1] - place)
        room[standing] = 0
        step = np.zeros(self._count)
        step[:-1] = (metres[:-1] + metres[1:]) / 2.0
        some = np.flatnonzero((room > 0) & (step < MOST_STEP * self._sigma))
        rough = self._roughness(some)
        wanted = _LENGTH * np.minimum(self._sigma[some], 4.0 * rough) - step[some] / 2.0
        positive = wanted > 0.0
        some, wanted, rough = some[positive], wanted[positive], rough[positive]
        room = np.minimum(room[some], self._within(some, SMOOTH_MS))
        half = np.zeros(len(some), dtype=np.int64)
        asked, before, reached = np.arange(len(some)), np.zeros(len(some), dtype=np.int64), np.zeros(len(some))
        for width in _HALVES:
            here = some[asked]
            many = np.minimum(width, room[asked])
            advance = self._advance(here, many)
            enough = advance >= wanted[asked]
            share = (wanted[asked] - reached) / np.where(enough, advance - reached, 1.0)
            between = before * _PARTS + np.floor(share * ((many - before) * _PARTS)).astype(np.int64)
            half[asked] = np.where(enough, between, many * _PARTS)
            go_on = ~enough & (many == width)
            asked, before, reached = asked[go_on], many[go_on], advance[go_on]
            if not len(asked):
                break
        half = self._narrowed(some, half, wanted, rough)
        return some[half > 0], half[half > 0]

    def _within(self, some: Ints, reach_ms: int) -> Ints:
        """How many fixes lie within a time on each side of each."""
        clock = self._clock[some]
        before = some - np.searchsorted(self._clock, clock - reach_ms)
        after = np.searchsorted(self._clock, clock + reach_ms, side="right") - 1 - some
        return np.asarray(np.minimum(before, after), dtype=np.int64)

    def _roughness(self, some: Ints) -> Floats:
        """The noise in each direction, by how second differences next to each other oppose: those of a bend do not."""
        sums, pairs = self._opposing_before
        low, high = np.maximum(some - _ROUGH_FIXES, 0), np.minimum(some + _ROUGH_FIXES, self._count - 1)
        wide = (self._clock[some] - self._clock[low] > _ROUGH_MS) | (self._clock[high] - self._clock[some] > _ROUGH_MS)
        rows = np.flatnonzero(wide)
        clock = self._clock[some[rows]]
        low[rows] = np.maximum(low[rows], np.searchsorted(self._clock, clock - _ROUGH_MS))
        high[rows] = np.minimum(high[rows], np.searchsorted(self._clock, clock + _ROUGH_MS, side="right") - 1)
        many = np.maximum(pairs[high] - pairs[low], 1)
        return np.asarray(np.sqrt(np.maximum(-(sums[high] - sums[low]) / (8e4 * many), 0.0)))

    def _opposing(self) -> tuple[Ints, Ints]:
        """Sums of the products of neighbouring second differences (1e-4 m²), and how many there are, before each fix.

        A fix is held against where it would be, at its time, on the line between its neighbours.
        """
        step = np.diff(self._clock).astype(np.float64)
        inner = self._first[2:] <= np.arange(self._count - 2)
        share = 2.0 / (step[:-1] + step[1:])
        bend = []
        for values in (self._x, self._y):
            change = np.diff(values).astype(np.float64)
            bend.append((change[1:] * step[:-1] - change[:-1] * step[1:]) * share)
        east, north = bend[0] * self._east[1:-1], bend[1] * self._north
        noisy = inner & (east * east + north * north <= (_MOST_BEND * self._sigma[1:-1]) ** 2)
        both = noisy[1:] & noisy[:-1]
        product = np.where(both, east[1:] * east[:-1] + north[1:] * north[:-1], 0.0)
        # the pair of the fixes 1 and 2 is the first: it counts from fix 1 on
        opposing, pairs = np.zeros(self._count, dtype=np.int64), np.zeros(self._count, dtype=np.int64)
        np.cumsum(np.rint(1e4 * product).astype(np.int64), out=opposing[2:-1])
        np.cumsum(both, out=pairs[2:-1])
        opposing[-1:], pairs[-1:] = opposing[-2:-1], pairs[-2:-1]
        return opposing, pairs

    def _advance(self, some: Ints, many: Ints) -> Floats:
        """How far the mean of some fixes from each on is from the mean of as many up to it; half of the way on one
        side, if that is more: there and back is an advance, too."""
        low, high = some - many, some + many
        metres = []
        for sums, values, scale in (
            (self._sum_x, self._x, self._east[some]),
            (self._sum_y, self._y, self._north),
        ):
            own = values[some]
            ahead, behind = sums[high + 1] - sums[some], sums[some + 1] - sums[low]
            metres.append(
                [
                    (ahead - behind) / (many + 1) * scale,
                    (values[high] - own) * (scale / 2.0),
                    (own - values[low]) * (scale / 2.0),
                ]
            )
        squares = [east * east + north * north for east, north in zip(*metres, strict=True)]
        return np.asarray(np.sqrt(np.maximum(squares[0], np.maximum(squares[1], squares[2]))))
