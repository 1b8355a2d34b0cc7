"""What nobody knows of a device's way, by quarters of the hour: from one track to the next, with plain loops."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import is_sure
from simulator.truth.journal import TruePosition
from simulator.truth.metering import QUARTER_US
from simulator.truth.shapes import DEGREE, OUTSIDE, ExactPoint, Zones
from simulator.truth.standstill import NOT_SAID_M, stated_m
from simulator.truth.track import TrueRule, metres, places, tracks

NOISE_M = 200.0
"""A beeline up to here is none of a vehicle that moved."""
SLOW_MPS = 3
"""A gap is as long as its beeline takes at this speed, at most."""
DRIVEN_MPS = 1.0
HOUR_US = 3_600_000_000
LONGEST_HOURS = 24


class TrueUnknown(NamedTuple):
    """What a device drove in the quarter that begins at `quarter`, and what is unknown of its way by gaps that ended
    in it: time and beeline, and the entries that it must have made."""

    device: str
    quarter: datetime
    driven_ms: int = 0
    unknown_ms: int = 0
    unknown_mm: int = 0
    inferred_entries: int = 0


class _Sum:
    def __init__(self) -> None:
        self.driven_us = 0
        self.unknown_ms: list[float] = []
        self.beelines_m: list[float] = []
        self.entries = 0


def unknown_of(
    device: str, positions: list[TruePosition], zones: Zones, rule: TrueRule = "every_fix"
) -> list[TrueUnknown]:
    """What is unknown of one device, and what it drove, by quarter; quarters with neither are left out.

    What was driven is of the places where the device is taken to have been; a gap is between two reported ones.
    """
    sums = dict[int, _Sum]()
    for track in places(positions, rule):
        for start, end in pairwise(track):
            spent_us = end.time_us - start.time_us
            if not end.still and end.metres * 1e6 >= DRIVEN_MPS * spent_us:
                sums.setdefault(end.time_us // QUARTER_US, _Sum()).driven_us += spent_us
    for begin, finish, length_m in _gaps(list(tracks(positions, rule))):
        total = sums.setdefault(finish.time_us // QUARTER_US, _Sum())
        total.unknown_ms.append(min((finish.time_us - begin.time_us) / 1000, length_m * (1000 / SLOW_MPS)))
        total.beelines_m.append(length_m)
    for (quarter, _), count in inferred_in(positions, lambda _: zones, rule).items():
        sums[quarter].entries += count
    return [_row(device, quarter, total) for quarter, total in sorted(sums.items())]


def inferred_in(
    positions: list[TruePosition], zones_at: Callable[[TruePosition], Zones], rule: TrueRule = "every_fix"
) -> Counter[tuple[int, str]]:
    """The entries that a device must have made in gaps, by the quarter (since 1970) and the zone.

    `zones_at`: those in force at a fix; each end of a gap is judged by its own. Both ends must be sure of their side.
    """
    found = Counter[tuple[int, str]]()
    for begin, finish, _ in _gaps(list(tracks(positions, rule))):
        before, after = (zones_at(fix).at(_point(fix)) for fix in (begin, finish))
        sure = rule == "every_fix" or all(_is_sure(fix, zones_at(fix), {before, after}) for fix in (begin, finish))
        found[finish.time_us // QUARTER_US, after] += sure and after not in {OUTSIDE, before}
    return +found


def _is_sure(fix: TruePosition, zones: Zones, names: set[str]) -> bool:
    """Whether a fix by itself is on one side of each of these zones, as far as they are in force, for sure."""
    uncertain_m = stated_m(fix) or NOT_SAID_M / 2.0
    return all(is_sure(zone, _point(fix), uncertain_m) for zone in zones.in_order if zone.id in names)


def _gaps(found: list[list[TruePosition]]) -> Iterator[tuple[TruePosition, TruePosition, float]]:
    """The fixes around each gap in which the device moved, and how far they are apart.

    Fixes that no track takes end none. What is longer than a day is silence.
    """
    for before, after in pairwise(found):
        start, end = before[-1], after[0]
        length_m = _length_m(start, end)
        if end.time_us // HOUR_US - start.time_us // HOUR_US <= LONGEST_HOURS and length_m > NOISE_M:
            yield start, end, length_m


def _point(fix: TruePosition) -> ExactPoint:
    return ExactPoint(fix.longitude_e7 * (DEGREE // 10**7), fix.latitude_e7 * (DEGREE // 10**7))


def _length_m(start: TruePosition, end: TruePosition) -> float:
    return metres(start.latitude_e7 / 1e7, start.longitude_e7 / 1e7, end.latitude_e7 / 1e7, end.longitude_e7 / 1e7)


def _row(device: str, quarter: int, total: _Sum) -> TrueUnknown:
    return TrueUnknown(
        device,
        datetime.fromtimestamp(quarter * 900, UTC),
        round(Fraction(total.driven_us, 1000)),
        round(math.fsum(total.unknown_ms)),
        round(math.fsum(total.beelines_m) * 1000),
        total.entries,
    )
