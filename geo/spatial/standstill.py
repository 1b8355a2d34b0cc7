"""Where a vehicle truly was: one place while it stands, a smoothed way while it drives slowly.

A receiver's places have noise: a parked vehicle seems to move, and a slow one to zigzag. Places are cleaned from their
neighbourhood, in time and in the noise that the accuracy states. Every value is a function of the fixes within
`CLEANING_REACH_MS` and some gaps around it, decided with integers: sums over a window are differences of cumulative
int64 sums, exact wherever the arrays begin. So any cut and any order of the fixes give the same bytes.

`docs/standstill.md` has the rules, `docs/decisions/0037` the reasons.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from geo.spatial.fixes import CLEANING_REACH_MS, Fixes
from geo.spatial.ragged import Bools, Floats, Ints, Points

# Smoothed ways: a moving average over a length that depends on the noise, less in bends.

SMOOTH_MS: Final = 30_000
"""How far a mean reaches on each side. The noise is estimated over ten times that, and one gap."""
_MOST_BEND: Final = 9.0  # times the noise: the largest second difference that noise explains
_ROUGH_FIXES, _ROUGH_MS = 15, 300_000
_LENGTH: Final = 7.0  # times the noise: the advance of a smoothed way on each side
_HALVES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NARROWINGS: Final = 2
_BEND: Final = 8.0
_PARTS: Final = 64  # of a fix: the unit of half widths
MOST_STEP: Final = 2.0 * _LENGTH
"""Steps longer than this many times the noise stay unchanged."""


def sums_of(values: Ints) -> Ints:
    """Cumulative sums with a leading 0. They may wrap: differences below 2^63 are right all the same."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


class Smoothing:
    """Means over fixes of unbroken tracks, laid end to end on one `clock` that jumps at each break (ms).

    `first`: the first fix of each fix's track. `scale`: metres of a unit, east (of each fix) and north. `reported`: the
    places that show how noisy they are; `sigma`: their greatest noise; `metres`: lengths of the steps.
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
        """The smoothed fixes, none of them `standing`: which ones, the sums of places around them (x, y), and their
        weight.
        """
        self._x, self._y = places
        self._sum_x, self._sum_y = sums_of(self._x), sums_of(self._y)
        moving, half = self._half_widths(standing)
        return moving, *self._box(moving, half)

    def _box(self, some: Ints, half: Ints) -> tuple[Ints, Ints, Ints]:
        """The sums of places over this many parts of a fix on each side, and their weight."""
        whole, part = half // _PARTS, half % _PARTS
        low, high = some - whole, some + whole
        # without a part of the outermost fixes, they need not exist
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
        """Half widths, halved where the way bends within them: where the place moves sideways by more than the
        noise.
        """
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
            # where the vehicle hardly moves, a narrow window has more noise and as much bend
            bends &= self._advance(here, np.maximum(narrow // _PARTS, 1)) >= wanted[asked] / 3.0
            wanted[asked] /= 2.0
            asked = asked[bends]
            half[asked] = narrow[bends]
            if not len(asked):
                break
        return half

    def _ahead(self, some: Ints, many: Ints) -> Points:
        """Metres from the mean of some fixes up to each one to the mean of as many from it on."""
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
        """The noise in each direction, from opposing neighbouring second differences: those of a bend do not oppose."""
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
        """Sums of the products of neighbouring second differences (1e-4 m²), and their number, before each fix.

        A fix is compared with the place, at its time, on the line between its neighbours.
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
        """Distance between the mean of `many` fixes up to each one and the mean of as many from it on.

        Or half of the way on one side, if that is more: there and back is an advance too.
        """
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


PLACE_MS: Final = 105_000
"""A standing fix gets the mean of its neighbours this far on each side, or of its whole stand if that is short."""
CREEP_MS: Final = 240_000
MAX_WINDOW_MS: Final = 240_000
assert SMOOTH_MS + 2 * PLACE_MS + CREEP_MS + MAX_WINDOW_MS <= CLEANING_REACH_MS

_UNIT: Final = 10**7  # places are whole numbers of 1e-7 degrees
_TURN: Final = 360 * _UNIT
_METRES_A_UNIT: Final = 6_371_008.8 * np.pi / 180.0 / _UNIT
_BREAK_MS: Final = 3_600_000  # longer than any window
_COARSE: Final = 3  # bits dropped before squaring: sums of squares at 100 Hz stay below 2^63
_MOST_IN_WINDOW: Final = 1 << 15
_POLAR_DEG: Final = 89.5  # beyond, degrees of longitude are too short for whole numbers of them
_LEAST_SIGMA_M, _MOST_SIGMA_M = 1.5, 50.0
_NOT_SAID_MOVING: Final = 0.8  # of the accuracy that is assumed
_SLOW_MPS: Final = 0.8
_FEW: Final = 3
_REST_MPS, _SPEED_MS, _TRUST_MS = 0.6, 3_000, 60_000
_LEAST_SIDE_MS: Final = 60_000
_PARKED_SIGMA_M, _PARKED_MS, _PARKED_FEW, _PARKED_CREEP_M = 10.0, 150_000, 6, 60.0


class CleanPlaces(NamedTuple):
    """Places of the kept fixes. `moved`: they differ from the reported ones; the others keep every bit. `still`: the
    segment that ends at the fix is standing.
    """

    lat: Floats
    lon: Floats
    moved: Bools
    still: Bools


def clean_places(fixes: Fixes, row: Ints, linked: Bools, metres: Floats, accuracy_not_said_m: float) -> CleanPlaces:
    """Places of fixes (`row`, in the order of device and time), linked by segments of the given lengths."""
    lat, lon = fixes.lat[row], fixes.lon[row]
    moved, still = np.zeros(len(row), dtype=np.bool_), np.zeros(len(row), dtype=np.bool_)
    accuracy = stated_accuracy(fixes, row)
    said = ~np.isnan(accuracy)
    sigma = np.clip(np.where(said, accuracy, accuracy_not_said_m) / 2.0, _LEAST_SIGMA_M, _MOST_SIGMA_M)
    slow = linked & (metres * metres <= MOST_STEP**2 * _of_ends(sigma * sigma))
    if fixes.speed_mps is not None:
        quiet = _says_rest(fixes.speed_mps[row])
        slow[1:] |= linked[1:] & quiet[1:] & quiet[:-1] & (metres[1:] <= MOST_STEP * _PARKED_SIGMA_M)
    slow[1:] &= (np.abs(lat[1:]) <= _POLAR_DEG) & (np.abs(lat[:-1]) <= _POLAR_DEG)
    at = _tracks_with(slow, linked)
    if len(at):
        smooth = np.where(said, sigma, sigma * _NOT_SAID_MOVING)
        speed = None if fixes.speed_mps is None else fixes.speed_mps[row[at]]
        track = _Track(
            fixes.t_ms[row[at]],
            lat[at],
            lon[at],
            linked[at],
            metres=metres[at],
            sigma=sigma[at],
            smooth=smooth[at],
            speed=speed,
            slow=slow[at],
        )
        some, x, y = track.cleaned()
        lat[at[some]], lon[at[some]] = y, x
        moved[at[some]], still[at] = True, track.still
    return CleanPlaces(lat, lon, moved, still)


def stated_accuracy(fixes: Fixes, row: Ints) -> Floats:
    """The stated accuracy of fixes, NaN where there is none."""
    return np.full(len(row), np.nan) if fixes.accuracy_m is None else fixes.accuracy_m[row]


def uncertain_m(fixes: Fixes, row: Ints, accuracy_not_said_m: float) -> Floats:
    """How far off places may be, by their accuracy; at least 20 m for a vehicle that reports to be at rest."""
    stated = stated_accuracy(fixes, row)
    accuracy = np.where(np.isnan(stated), accuracy_not_said_m, stated)
    if fixes.speed_mps is None:
        return accuracy
    return np.where(_says_rest(fixes.speed_mps[row]), np.maximum(accuracy, 2.0 * _PARKED_SIGMA_M), accuracy)


def _says_rest(speed_mps: Floats) -> Bools:
    """Where a speed near 0 is reported. NaN and negative speeds report none."""
    return np.asarray((speed_mps >= 0.0) & (speed_mps < 2.0 * _REST_MPS))


def _of_ends(values: Floats) -> Floats:
    """The mean of both ends of each segment."""
    both = values.copy()
    both[1:] = (values[1:] + values[:-1]) / 2.0
    return both


def _tracks_with(some: Bools, linked: Bools) -> Ints:
    """The places of all fixes of the unbroken tracks that contain one of these segments."""
    number = np.cumsum(~linked) - 1
    wanted = np.zeros(int(number[-1]) + 1 if len(number) else 0, dtype=np.bool_)
    wanted[number[some]] = True
    return np.flatnonzero(wanted[number])


class _Track:
    """Fixes of unbroken tracks, laid end to end. `still`: which of the `slow` segments are standing."""

    def __init__(
        self,
        t_ms: Ints,
        lat: Floats,
        lon: Floats,
        linked: Bools,
        *,
        metres: Floats,
        sigma: Floats,
        smooth: Floats,
        speed: Floats | None,
        slow: Bools,
    ) -> None:
        self._count, self._metres, self._sigma, self._smooth = len(t_ms), metres, sigma, smooth
        step = np.append(0, np.diff(t_ms))
        # one clock for all: no window reaches over a break
        self._clock = np.cumsum(np.where(linked, step, _BREAK_MS))
        self._y = np.rint(lat * _UNIT).astype(np.int64)
        self._x = _unwrapped(np.rint(lon * _UNIT).astype(np.int64), linked)
        self._north: Final = _METRES_A_UNIT
        self._east = _METRES_A_UNIT * np.cos(np.radians(lat))
        self._sum_x, self._sum_y = sums_of(self._x), sums_of(self._y)
        self._sum_square = sums_of(np.rint(sigma * sigma * 1e4).astype(np.int64))
        self._first = np.maximum.accumulate(np.where(linked, 0, np.arange(self._count)))
        self.still = slow & self._covered()
        quiet = np.zeros(self._count, dtype=np.bool_)
        if speed is not None:
            quiet, rests = self._at_rest(speed)
            self.still |= slow & rests
        self.still &= ~self._creeping(sums_of(quiet.astype(np.int64)))

    def _at_rest(self, speed: Floats) -> tuple[Bools, Bools]:
        """The fixes that report to be at rest, and the segments between two of them that the places do not contradict.

        They contradict where the mean place of a minute before is farther from that of the minute after than the noise
        and the reported speeds explain. So a constant 0, or the wheels' speed on a ferry, is no standing. The accuracy
        says how much noise there is; where rest is reported for minutes, an accuracy that is too good is not believed.
        """
        says = np.where(speed >= 0.0, np.minimum(speed, 1e3), 0.0)  # NaN means not reported
        whole = np.rint(says * 1_000.0).astype(np.int64)
        step = np.diff(self._clock)
        step[self._first[1:] == np.arange(1, self._count)] = 0
        driven = sums_of((whole[1:] + whole[:-1]) * step // 2_000)
        some = np.flatnonzero(_says_rest(speed))
        low, high = self._around(some, self._first[some], np.full(len(some), self._count), _TRUST_MS)
        east, north = self._change(some, low, high)
        square, noise = east * east + north * north, np.sqrt(self._variance(low, high))
        driven_m = (driven[high] - driven[low]) / 1_000.0
        believed = square <= (6.0 * noise + driven_m) ** 2
        lenient = square <= (6.0 * np.maximum(noise, _PARKED_SIGMA_M) + driven_m) ** 2
        variance, rests = self._sigma * self._sigma, self._between(some[believed & self._is_slow(some, whole)])
        rests[1:] &= self._metres[1:] ** 2 <= 36.0 * (variance[1:] + variance[:-1])
        quiet = np.zeros(self._count, dtype=np.bool_)
        quiet[some] = True
        return quiet, rests | (self._between(some[lenient]) & self._parked(quiet))

    def _between(self, some: Ints) -> Bools:
        """The segments between two of some fixes."""
        both = np.zeros(self._count, dtype=np.bool_)
        both[some] = True
        both[1:] &= both[:-1].copy()
        return both

    def _is_slow(self, some: Ints, mm_s: Ints) -> Bools:
        """Whether the mean speed of some seconds before, or after, is near 0. One speed may be off."""
        sums = sums_of(mm_s)
        low, high = self._around(some, self._first[some], np.full(len(some), self._count), _SPEED_MS)
        before = (sums[some + 1] - sums[low]) / (some - low + 1)
        after = (sums[high + 1] - sums[some]) / (high - some + 1)
        return np.asarray(np.minimum(before, after) < 1_000.0 * _REST_MPS)

    def _variance(self, low: Ints, high: Ints) -> Floats:
        return np.asarray((self._sum_square[high + 1] - self._sum_square[low]) / (1e4 * (high - low + 1)))

    def _change(self, some: Ints, low: Ints, high: Ints) -> Points:
        """Metres from the mean place of `low .. some` to that of `some .. high`."""
        found = []
        for sums, values, scale in ((self._sum_x, self._x, self._east[some]), (self._sum_y, self._y, self._north)):
            after, before = (self._mean(sums, values, some, *ends) for ends in ((some, high), (low, some)))
            found.append((after - before) * scale)
        return found[0], found[1]

    def _covered(self) -> Bools:
        """The segments in some window over which the places scatter no more than their noise."""
        lasts = np.rint(np.clip(12_000.0 / _SLOW_MPS * self._sigma, 20_000.0, MAX_WINDOW_MS)).astype(np.int64)
        begin, end = self._windows(np.arange(self._count), lasts)
        return self._within(begin, end, self._scatters(begin, end, self._variance(begin, end), _FEW))

    def _parked(self, quiet: Bools) -> Bools:
        """The same with an accuracy of at least 20 m, for windows in which nearly all fixes report to be at rest."""
        some = np.flatnonzero(quiet)
        begin, end = self._windows(some, np.full(len(some), _PARKED_MS))
        mostly = self._mostly(sums_of(quiet.astype(np.int64)), begin, end)
        begin, end = begin[mostly], end[mostly]
        noise = np.maximum(self._variance(begin, end), _PARKED_SIGMA_M**2)
        return self._within(begin, end, self._scatters(begin, end, noise, _PARKED_FEW))

    @staticmethod
    def _mostly(sums: Ints, low: Ints, high: Ints) -> Bools:
        """Whether nine of ten of `low .. high` are counted in `sums`."""
        return np.asarray(10 * (sums[high + 1] - sums[low]) >= 9 * (high - low + 1))

    def _windows(self, begin: Ints, lasts_ms: Ints) -> tuple[Ints, Ints]:
        """The windows of this length from some fixes on: their first and their last fixes."""
        end = np.minimum(np.searchsorted(self._clock, self._clock[begin] + lasts_ms), self._count - 1)
        there = (self._first[end] <= begin) & (self._clock[end] - self._clock[begin] >= lasts_ms) & (end > begin)
        there &= end - begin < _MOST_IN_WINDOW
        return begin[there], end[there]

    def _scatters(self, begin: Ints, end: Ints, noise: Floats, few: int) -> Bools:
        """Whether the places of windows scatter no more than this noise. A window of `few` fixes may scatter more."""
        many = end - begin + 1
        east, north = self._variances(begin, end + 1, many)
        east *= self._east[begin] ** 2
        north *= self._north**2
        return np.asarray(east + north <= np.where(many <= few, 4.2**2, 3.0**2) * noise)

    def _within(self, begin: Ints, end: Ints, some: Bools) -> Bools:
        """The segments that lie in some of the windows."""
        reach = np.full(self._count, -1)
        reach[begin[some]] = end[some]
        covered = np.zeros(self._count, dtype=np.bool_)
        covered[1:] = np.maximum.accumulate(reach)[:-1] >= np.arange(1, self._count)
        return covered

    def _variances(self, low: Ints, high: Ints, many: Ints) -> tuple[Floats, Floats]:
        """Variances of longitudes and latitudes of windows, in units²."""
        found = []
        for values in (self._x >> _COARSE, self._y >> _COARSE):
            sums, squares = sums_of(values), sums_of(values * values)
            total = sums[high] - sums[low]
            spread = many * (squares[high] - squares[low]) - total * total
            found.append(spread.astype(np.float64) * float(1 << 2 * _COARSE) / (many.astype(np.float64) ** 2))
        return found[0], found[1]

    def _stands(self) -> tuple[Ints, Ints, Ints]:
        """The standing fixes, and the first and the last fix of the stand of each."""
        place = np.arange(self._count)
        goes_on = np.append(self.still[1:], False)
        first = np.maximum.accumulate(np.where(self.still, 0, place))
        last = np.minimum.accumulate(np.where(goes_on, self._count, place)[::-1])[::-1]
        some = np.flatnonzero(self.still | goes_on)
        return some, first[some], last[some]

    def _around(self, some: Ints, first: Ints, last: Ints, reach_ms: int) -> tuple[Ints, Ints]:
        """The first and last fix of the stand within this reach on each side."""
        low = np.maximum(first, np.searchsorted(self._clock, self._clock[some] - reach_ms))
        high = np.minimum(last, np.searchsorted(self._clock, self._clock[some] + reach_ms, side="right") - 1)
        return low, high

    def _creeping(self, quiet: Ints) -> Bools:
        """The segments at whose ends the mean place of some time before differs from that of the time after.

        `quiet`: sums of the fixes that report to be at rest.
        """
        some, first, last = self._stands()
        low, high = self._around(some, first, last, CREEP_MS)
        clock = self._clock
        long = (clock[high] - clock[some] >= _LEAST_SIDE_MS) & (clock[some] - clock[low] >= _LEAST_SIDE_MS)
        some, low, high = some[long], low[long], high[long]
        east, north = self._change(some, low, high)
        few = np.minimum(some - low, high - some) < _FEW
        limit = np.where(few, 8.5**2, 5.0**2) * self._variance(low, high)
        parked = self._mostly(quiet, low, high)
        limit[parked] = np.maximum(limit[parked], _PARKED_CREEP_M**2)
        creeps = np.zeros(self._count, dtype=np.bool_)
        creeps[some] = east * east + north * north > limit
        creeps[1:] |= creeps[:-1].copy()
        return creeps

    @staticmethod
    def _mean(sums: Ints, values: Ints, own: Ints, low: Ints, high: Ints) -> Floats:
        """The mean of `low .. high`, relative to the own value: in units, small numbers."""
        many = high - low + 1
        return np.asarray((sums[high + 1] - sums[low] - many * values[own]) / many)

    def cleaned(self) -> tuple[Ints, Floats, Floats]:
        """The fixes that are moved, and their longitudes and latitudes."""
        scale = self._east, self._north
        smoothing = Smoothing(
            self._clock, self._first, scale, (self._x, self._y), metres=self._metres, sigma=self._smooth
        )
        some, first, last = self._stands()
        low, high = self._around(some, first, last, PLACE_MS)
        short = self._clock[last] - self._clock[first] <= 2 * PLACE_MS
        low, high = np.where(short, first, low), np.where(short, last, high)
        twice = 2 * (high - low + 1)
        x, y = ((2 * (sums[high + 1] - sums[low]) + twice // 2) // twice for sums in (self._sum_x, self._sum_y))
        # standing fixes have no noise, for their neighbours too
        self._x[some], self._y[some] = x, y
        moving, total_x, total_y, weight = smoothing.means((self._x, self._y), some)
        longitude = np.append(_longitude(x, np.ones_like(x)), _longitude(total_x, weight))
        return np.append(some, moving), longitude, np.append(_degrees(y, np.ones_like(y)), _degrees(total_y, weight))


def _unwrapped(x: Ints, linked: Bools) -> Ints:
    """Longitudes that continue beyond 180° within a track."""
    step = np.append(0, np.diff(x))
    turn = np.where(linked & (np.abs(step) > _TURN // 2), -np.sign(step), 0)
    return x + _TURN * np.cumsum(turn) if turn.any() else x


def _degrees(total: Ints, weight: Ints) -> Floats:
    """The mean of whole places, in degrees: equal places give equal bytes."""
    whole, rest = np.divmod(total, weight)
    return np.asarray((whole + rest / weight) / _UNIT)


def _longitude(total: Ints, weight: Ints) -> Floats:
    whole, rest = np.divmod(total, weight)
    whole = (whole + _TURN // 2) % _TURN - _TURN // 2
    return np.asarray((whole + rest / weight) / _UNIT)
