"""Tracks from the positions of a device: which fixes are excluded, and where a track breaks.

The rules, in order: sort by device time (ties in the order of making), keep the first fix of each time, exclude fixes
at 0°/0° and those less accurate than 100 m, exclude fixes that jump away and back, and break the track at gaps and
impossible speeds.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from geographiclib.geodesic import Geodesic

from simulator.truth.journal import TruePosition

# The true track, by rule `standstill`; numbers (1) to (6) are those of `docs/standstill.md`.

NOT_SAID_M = 20.0
PARKED_SIGMA_M, PARKED_CREEP_M = 10.0, 60.0
METRES_A_UNIT = 6_371_008.8 * math.pi / 180.0 / 10**7
HALVES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class TruePlace(NamedTuple):
    """The assumed place of a fix in 1e-7 degrees. `still`: the vehicle stands on the segment that ends here.

    `metres`: the length of that segment. `moved`: the place differs from the reported one.
    """

    time_us: int
    x: Fraction | int
    y: Fraction | int
    uncertain_m: float
    still: bool
    moved: bool
    metres: float


class _Sums:
    """Prefix sums."""

    def __init__(self, values: Sequence[int]) -> None:
        self._before = [0, *accumulate(values)]

    def of(self, low: int, high: int) -> int:
        """The sum from `low` to `high`, both included."""
        return self._before[high + 1] - self._before[low]


def stated_m(fix: TruePosition) -> float | None:
    """The stated accuracy; 0 states none."""
    return fix.accuracy_mm / 1000.0 if fix.accuracy_mm is not None and fix.accuracy_mm > 0 else None


def uncertain_m(fix: TruePosition) -> float:
    stated = stated_m(fix) or NOT_SAID_M
    return max(stated, 2.0 * PARKED_SIGMA_M) if is_quiet(fix) else stated


def is_quiet(fix: TruePosition) -> bool:
    """Whether a fix reports a speed near 0."""
    return fix.speed_mm_s is not None and 0 <= fix.speed_mm_s < 1_200


def as_reported(track: list[TruePosition], metres: list[float]) -> list[TruePlace]:
    """The reported places; `metres`: of the segments that end with each fix."""
    return [
        TruePlace(
            fix.time_us, fix.longitude_e7, fix.latitude_e7, stated_m(fix) or NOT_SAID_M / 2.0, False, False, length
        )
        for fix, length in zip(track, metres, strict=True)
    ]


def cleaned(track: list[TruePosition], metres: list[float]) -> list[TruePlace]:
    places, way = as_reported(track, metres), _Way(track, metres)
    if not any(way.slow):
        return places
    still = way.standing()
    at: dict[int, tuple[Fraction, Fraction]] = {}
    for first, last in _runs(still):
        for i in range(first, last + 1):
            at[i] = way.place_of_stand(i, first, last)
    smooth = _Smoothing(way, at)
    at |= dict(smooth.smoothed())
    found: list[TruePlace] = []
    for i, place in enumerate(places):
        x, y = at.get(i, (place.x, place.y))
        length = place.metres
        if still[i]:
            length = 0.0
        elif i and (i in at or i - 1 in at):
            length = near_metres(found[-1].x, found[-1].y, x, y)
        found.append(place._replace(x=x, y=y, still=still[i], moved=i in at, metres=length))
    return found


def near_metres(x1: Fraction | int, y1: Fraction | int, x2: Fraction | int, y2: Fraction | int) -> float:
    """The length of a step, by the radii of curvature at its middle."""
    a, es = 6_378_137.0, 0.0066943799901413165
    sine = math.sin(math.radians(float(y1 + y2) / 2e7))
    flat = 1.0 - es * sine * sine
    prime = a / math.sqrt(flat)
    east = prime * math.sqrt(1.0 - sine * sine) * math.radians(float(x2 - x1) / 1e7)
    return math.hypot(east, prime * (1.0 - es) / flat * math.radians(float(y2 - y1) / 1e7))


def _runs(still: list[bool]) -> Iterator[tuple[int, int]]:
    """The first and the last fix of each stand."""
    first = None
    for i in range(1, len(still)):
        if still[i] and first is None:
            first = i - 1
        if first is not None and not still[i]:
            yield first, i - 1
            first = None
    if first is not None:
        yield first, len(still) - 1


class _Way:
    """A track in integers: milliseconds, 1e-7 degrees, 1e-4 m² of noise, millimetres a second."""

    def __init__(self, track: list[TruePosition], metres: list[float]) -> None:
        self.count, self.metres = len(track), metres
        self.t = [fix.time_us // 1000 for fix in track]
        self.x, self.y = [fix.longitude_e7 for fix in track], [fix.latitude_e7 for fix in track]
        said = [stated_m(fix) for fix in track]
        # (1)
        self.sigma = [min(max((NOT_SAID_M if one is None else one) / 2.0, 1.5), 50.0) for one in said]
        self.smooth = [sigma * (0.8 if one is None else 1.0) for sigma, one in zip(self.sigma, said, strict=True)]
        self.east = [METRES_A_UNIT * math.cos(math.radians(y / 1e7)) for y in self.y]
        self.noise = _Sums([round(sigma * sigma * 1e4) for sigma in self.sigma])
        self.sum_x, self.sum_y = _Sums(self.x), _Sums(self.y)
        self.coarse = [_Sums([value >> 3 for value in values]) for values in (self.x, self.y)]
        self.squares = [_Sums([(value >> 3) ** 2 for value in values]) for values in (self.x, self.y)]
        self.mm_s = [min(max(fix.speed_mm_s or 0, 0), 1_000_000) for fix in track]
        driven = (
            (self.mm_s[i] + self.mm_s[i + 1]) * (self.t[i + 1] - self.t[i]) // 2000 for i in range(self.count - 1)
        )
        self.driven, self.speeds = _Sums([*driven, 0]), _Sums(self.mm_s)
        self.quiet = [is_quiet(fix) for fix in track]
        self.quiets = _Sums([int(quiet) for quiet in self.quiet])
        self.slow = [False] + [self._slow(i) for i in range(1, self.count)]

    def _slow(self, i: int) -> bool:
        both = (self.sigma[i] ** 2 + self.sigma[i - 1] ** 2) / 2.0
        polar = max(abs(self.y[i]), abs(self.y[i - 1])) > 895_000_000
        parked = self.quiet[i] and self.quiet[i - 1] and self.metres[i] <= 14.0 * PARKED_SIGMA_M
        return (parked or self.metres[i] ** 2 <= 14.0**2 * both) and not polar

    def around(self, i: int, reach_ms: int, first: int = 0, last: int | None = None) -> tuple[int, int]:
        """The first and last fix within `reach_ms`."""
        low = max(first, bisect_left(self.t, self.t[i] - reach_ms))
        return low, min(self.count - 1 if last is None else last, bisect_right(self.t, self.t[i] + reach_ms) - 1)

    def variance(self, low: int, high: int) -> float:
        return self.noise.of(low, high) / (1e4 * (high - low + 1))

    def change(self, i: int, low: int, high: int) -> float:
        """The squared distance (m²) between the mean places before and after a fix."""
        return math.fsum(
            ((sums.of(i, high) / (high - i + 1) - sums.of(low, i) / (i - low + 1)) * scale) ** 2
            for sums, scale in ((self.sum_x, self.east[i]), (self.sum_y, METRES_A_UNIT))
        )

    def standing(self) -> list[bool]:
        """Whether the vehicle stands on each segment, by the fix that ends it."""
        covered, parked = self._covered(), self._parked()
        rest = [self._rests(i) for i in range(self.count)]
        perhaps = [self.quiet[i] and self._stays(i, PARKED_SIGMA_M) for i in range(self.count)]
        still = [False] * self.count
        for i in range(1, self.count):
            both = 36.0 * (self.sigma[i] ** 2 + self.sigma[i - 1] ** 2)
            by_speed = rest[i] and rest[i - 1] and self.metres[i] ** 2 <= both
            at_rest = perhaps[i] and perhaps[i - 1] and parked[i]
            still[i] = self.slow[i] and (covered[i] or by_speed or at_rest)
        for first, last in list(_runs(still)):
            creeps = [self._creeps(i, first, last) for i in range(first, last + 1)]
            for i in range(first + 1, last + 1):
                still[i] = not (creeps[i - first] or creeps[i - first - 1])
        return still

    def _covered(self) -> list[bool]:
        """(2)"""
        windows = []
        for i in range(self.count):
            end = self._window(i, round(min(max(15_000.0 * self.sigma[i], 20_000.0), 240_000.0)))
            if end and self._scatter(i, end) <= (4.2**2 if end - i < 3 else 9.0) * self.variance(i, end):
                windows.append((i, end))
        return self._in_windows(windows)

    def _parked(self) -> list[bool]:
        """The part of (3) that is in a window of parking."""
        windows = []
        for i in range(self.count):
            end = self._window(i, 150_000) if self.quiet[i] else None
            if end and self._mostly_quiet(i, end):
                noise = max(self.variance(i, end), PARKED_SIGMA_M**2)
                if self._scatter(i, end) <= (4.2**2 if end - i < 6 else 9.0) * noise:
                    windows.append((i, end))
        return self._in_windows(windows)

    def _mostly_quiet(self, low: int, high: int) -> bool:
        return 10 * self.quiets.of(low, high) >= 9 * (high - low + 1)

    def _window(self, i: int, lasts: int) -> int | None:
        """The last fix of a window."""
        end = bisect_left(self.t, self.t[i] + lasts)
        return None if end == self.count or end - i + 1 > 1 << 15 else end

    def _in_windows(self, windows: list[tuple[int, int]]) -> list[bool]:
        covered, reached = [False] * self.count, 0
        for first, last in windows:
            for j in range(max(first, reached) + 1, last + 1):
                covered[j] = True
            reached = max(reached, last)
        return covered

    def _scatter(self, i: int, end: int) -> float:
        many, scatter = end - i + 1, 0.0
        for axis, scale in ((0, self.east[i]), (1, METRES_A_UNIT)):
            spread = many * self.squares[axis].of(i, end) - self.coarse[axis].of(i, end) ** 2
            scatter += spread * 64.0 / many**2 * scale**2
        return scatter

    def _rests(self, i: int) -> bool:
        """(3)"""
        if not self.quiet[i]:
            return False
        low, high = self.around(i, 3_000)
        before, after = self.speeds.of(low, i) / (i - low + 1), self.speeds.of(i, high) / (high - i + 1)
        return min(before, after) < 600.0 and self._stays(i, 0.0)

    def _stays(self, i: int, least_m: float) -> bool:
        """Whether the places fit the speeds, with at least so much noise."""
        low, high = self.around(i, 60_000)
        driven_m = self.driven.of(low, high - 1) / 1000.0
        return self.change(i, low, high) <= (6.0 * max(math.sqrt(self.variance(low, high)), least_m) + driven_m) ** 2

    def _creeps(self, i: int, first: int, last: int) -> bool:
        """(4)"""
        low, high = self.around(i, 240_000, first, last)
        if min(self.t[high] - self.t[i], self.t[i] - self.t[low]) < 60_000:
            return False
        limit = (8.5**2 if min(i - low, high - i) < 3 else 25.0) * self.variance(low, high)
        if self._mostly_quiet(low, high):
            limit = max(limit, PARKED_CREEP_M**2)
        return self.change(i, low, high) > limit

    def place_of_stand(self, i: int, first: int, last: int) -> tuple[Fraction, Fraction]:
        """(5)"""
        low, high = (first, last) if self.t[last] - self.t[first] <= 210_000 else self.around(i, 105_000, first, last)
        many = high - low + 1
        x, y = (math.floor(Fraction(sums.of(low, high), many) + Fraction(1, 2)) for sums in (self.sum_x, self.sum_y))
        return Fraction(x), Fraction(y)


class _Smoothing:
    """(6)"""

    def __init__(self, way: _Way, stands: dict[int, tuple[Fraction, Fraction]]) -> None:
        self._way, self._stands = way, stands
        self._x, self._y = list(way.x), list(way.y)
        self._opposing, self._pairs = self._rough_sums()
        for i, (x, y) in stands.items():
            self._x[i], self._y[i] = int(x), int(y)
        self._sum_x, self._sum_y = _Sums(self._x), _Sums(self._y)

    def smoothed(self) -> Iterator[tuple[int, tuple[Fraction, Fraction]]]:
        """The moved fixes, and their places."""
        for i in range(1, self._way.count - 1):
            if i not in self._stands and (half := self._half_width(i)):
                x, y, weight = self._box(i, half)
                yield i, (Fraction(x, weight), Fraction(y, weight))

    def _half_width(self, i: int) -> int:
        """In 64ths of a fix."""
        way = self._way
        step = (way.metres[i] + way.metres[i + 1]) / 2.0
        if step >= 14.0 * way.smooth[i]:
            return 0
        rough = self._roughness(i)
        wanted = 7.0 * min(way.smooth[i], 4.0 * rough) - step / 2.0
        low, high = way.around(i, 30_000)
        room = min(i - low, high - i)
        if wanted <= 0.0 or not room:
            return 0
        return self._narrowed(i, self._wide(i, wanted, room), wanted, rough)

    def _wide(self, i: int, wanted: float, room: int) -> int:
        before, reached = 0, 0.0
        for width in HALVES:
            many = min(width, room)
            advance = self._advance(i, many)
            if advance >= wanted:
                share = (wanted - reached) / (advance - reached)
                return before * 64 + math.floor(share * ((many - before) * 64))
            if many < width:
                return many * 64
            before, reached = many, advance
        return before * 64

    def _narrowed(self, i: int, half: int, wanted: float, rough: float) -> int:
        for _ in range(2):
            if half < 64:
                break
            narrow = half // 2
            ahead = self._ahead(i, half // 64)
            wide_offset, offset = self._offset(i, half), self._offset(i, narrow)
            sideways = (wide_offset[0] - offset[0]) * ahead[1] - (wide_offset[1] - offset[1]) * ahead[0]
            noise = 1.0 / (2.0 * narrow / 64 + 1.0) - 1.0 / (2.0 * half / 64 + 1.0)
            if sideways**2 <= 8.0 * rough**2 * noise * (ahead[0] ** 2 + ahead[1] ** 2):
                break
            if self._advance(i, max(narrow // 64, 1)) < wanted / 3.0:
                break
            half, wanted = narrow, wanted / 2.0
        return half

    def _box(self, i: int, half: int) -> tuple[int, int, int]:
        whole, part = divmod(half, 64)
        low, high = i - whole, i + whole
        x, y = (
            64 * sums.of(low, high) + (part * (values[low - 1] + values[high + 1]) if part else 0)
            for sums, values in ((self._sum_x, self._x), (self._sum_y, self._y))
        )
        return x, y, 64 * (2 * whole + 1) + 2 * part

    def _offset(self, i: int, half: int) -> tuple[float, float]:
        x, y, weight = self._box(i, half)
        east, north = (x - weight * self._x[i]) / weight, (y - weight * self._y[i]) / weight
        return east * self._way.east[i], north * METRES_A_UNIT

    def _ahead(self, i: int, many: int) -> tuple[float, float]:
        """From the mean of `many` fixes up to one to the mean of as many after it."""
        east, north = (
            (sums.of(i, i + many) - sums.of(i - many, i)) / (many + 1) * scale
            for sums, scale in ((self._sum_x, self._way.east[i]), (self._sum_y, METRES_A_UNIT))
        )
        return east, north

    def _advance(self, i: int, many: int) -> float:
        def half_of_way(j: int) -> float:
            east = (self._x[j] - self._x[i]) * (self._way.east[i] / 2.0)
            return math.sqrt(east * east + ((self._y[j] - self._y[i]) * (METRES_A_UNIT / 2.0)) ** 2)

        east, north = self._ahead(i, many)
        return max(math.sqrt(east * east + north * north), half_of_way(i + many), half_of_way(i - many))

    def _rough_sums(self) -> tuple[_Sums, _Sums]:
        """For each fix the product of the second differences there and at the next fix, and whether both count."""
        way = self._way
        bends: list[tuple[float, float] | None] = [None] * way.count
        for i in range(1, way.count - 1):
            before, after = way.t[i] - way.t[i - 1], way.t[i + 1] - way.t[i]
            share = 2.0 / (before + after)
            east, north = (
                ((values[i + 1] - values[i]) * before - (values[i] - values[i - 1]) * after) * share * scale
                for values, scale in ((self._x, way.east[i]), (self._y, METRES_A_UNIT))
            )
            if east * east + north * north <= (9.0 * way.smooth[i]) ** 2:
                bends[i] = east, north
        products, counted = [0] * way.count, [0] * way.count
        for i in range(way.count - 1):
            one, other = bends[i], bends[i + 1]
            if one is not None and other is not None:
                products[i], counted[i] = round(1e4 * (one[0] * other[0] + one[1] * other[1])), 1
        return _Sums(products), _Sums(counted)

    def _roughness(self, i: int) -> float:
        low, high = self._way.around(i, 300_000, max(i - 15, 0), min(i + 15, self._way.count - 1))
        many = max(self._pairs.of(low, high - 1), 1)
        return math.sqrt(max(-self._opposing.of(low, high - 1) / (8e4 * many), 0.0))


TrueRule = Literal["standstill", "every_fix"]

MAX_GAP_US = 300 * 1_000_000
MAX_SPEED_MPS = 70.0
WORST_ACCURACY_MM = 100_000
NULL_ISLAND_E7 = 10  # 1e-6 degrees
SPIKE_MPS, SPIKE_US = 10.0, 60 * 1_000_000


@lru_cache(maxsize=65_536)  # the checks of a fix measure each step several times
def metres(latitude_a: float, longitude_a: float, latitude_b: float, longitude_b: float) -> float:
    """The length of the WGS84 geodesic between two places in degrees."""
    length: float = Geodesic.WGS84.Inverse(latitude_a, longitude_a, latitude_b, longitude_b, Geodesic.DISTANCE)["s12"]
    return length


def places(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePlace]]:
    """The places of each unbroken track."""
    for track in tracks(positions, rule):
        lengths = [0.0, *(_step_m(before, after) for before, after in pairwise(track))]
        yield as_reported(track, lengths) if rule == "every_fix" else cleaned(track, lengths)


def tracks(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePosition]]:
    """The unbroken tracks of one device; `positions` in the order in which they were made."""
    track: list[TruePosition] = []
    for fix in _without_jumps(_plausible(_one_of_each_time(positions)), rule):
        if track and (_gap_us(track[-1], fix) > MAX_GAP_US or _too_fast(track[-1], fix, rule)):
            yield track
            track = []
        track.append(fix)
    if track:
        yield track


def _one_of_each_time(positions: list[TruePosition]) -> list[TruePosition]:
    kept: list[TruePosition] = []
    # sorted() is stable, so the first fix of a time is kept.
    for fix in sorted(positions, key=lambda fix: fix.time_us):
        if not kept or kept[-1].time_us != fix.time_us:
            kept.append(fix)
    return kept


def _plausible(positions: list[TruePosition]) -> list[TruePosition]:
    return [
        fix
        for fix in positions
        if not (abs(fix.latitude_e7) < NULL_ISLAND_E7 and abs(fix.longitude_e7) < NULL_ISLAND_E7)
        and (fix.accuracy_mm is None or fix.accuracy_mm <= WORST_ACCURACY_MM)
    ]


def _without_jumps(positions: list[TruePosition], rule: TrueRule) -> list[TruePosition]:
    """Exclude each fix that is too far from both neighbours while they are near each other."""
    return [fix for index, fix in enumerate(positions) if not _jumps(positions, index, rule)]


def _jumps(positions: list[TruePosition], index: int, rule: TrueRule) -> bool:
    # The first and the last fix cannot jump away and back.
    if index in {0, len(positions) - 1}:
        return False
    if rule == "standstill" and _is_spike(positions[max(index - 2, 0) : index + 3]):
        return True
    before, fix, after = positions[index - 1 : index + 2]
    near = _gap_us(before, fix) <= MAX_GAP_US and _gap_us(fix, after) <= MAX_GAP_US
    out_and_back = _too_fast(before, fix, rule) and _too_fast(fix, after, rule)
    return near and out_and_back and not _too_fast(before, after, rule)


def _is_spike(around: list[TruePosition]) -> bool:
    """Whether the middle of five fixes was left within two minutes, from and to one place at rest."""
    if len(around) < 5:
        return False
    first, before, fix, after, last = around
    out = all(
        _gap_us(*step) <= SPIKE_US and _step_m(*step) > SPIKE_MPS * _gap_us(*step) / 1e6 + _off_m(*step)
        for step in ((before, fix), (fix, after))
    )
    rests = all(_step_m(*pair) <= _off_m(*pair) for pair in ((first, before), (before, after), (after, last)))
    return out and rests and max(_gap_us(first, fix), _gap_us(fix, last)) <= MAX_GAP_US


def _off_m(before: TruePosition, after: TruePosition) -> float:
    """The uncertainty of two places together."""
    return uncertain_m(before) + uncertain_m(after)


def _gap_us(before: TruePosition, after: TruePosition) -> int:
    return after.time_us - before.time_us


def _step_m(before: TruePosition, after: TruePosition) -> float:
    return metres(
        before.latitude_e7 / 1e7, before.longitude_e7 / 1e7, after.latitude_e7 / 1e7, after.longitude_e7 / 1e7
    )


def _too_fast(before: TruePosition, after: TruePosition, rule: TrueRule) -> bool:
    """By the rule `standstill` the places may be off by their stated accuracy."""
    off_m = _off_m(before, after) if rule == "standstill" else 0.0
    return _step_m(before, after) > MAX_SPEED_MPS * (_gap_us(before, after) / 1e6) + off_m
