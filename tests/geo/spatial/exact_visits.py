"""Visits by their definition, in whole numbers and one step after the other: the yardstick of `find_visits`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import shapely

from tests.geo.spatial.exact import ExactFence, place_at
from tests.geo.spatial.exact_fuzz import Spot

_AXIS_M, _FLATTENING = 6_378_137.0, 1 / 298.257223563


@dataclass(frozen=True)
class Side:
    """A stretch of a track on one side of a fence's border."""

    inside: bool
    start_ms: Fraction
    end_ms: Fraction
    crossed: bool


@dataclass(frozen=True)
class Rules:
    """When a change of sides counts. `accuracy_m`: what each fix reported, NaN for nothing."""

    buffer_m: float
    min_stay_s: float
    accuracy_m: Sequence[float]


def sides_of(fence: ExactFence, track: Sequence[Spot], t_ms: Sequence[int]) -> tuple[list[Side], float]:
    """The stretches on each side of a border, and the shortest part of a segment, in degrees."""
    looks: list[tuple[Fraction, bool]] = []  # from when on, which side; each fix and each part between two meetings
    finest = math.inf
    for (p, q), (begin, until) in zip(pairwise(track), pairwise(t_ms), strict=True):
        start, end, turned = fence.placed(p, q)
        shape = fence.everywhere() if turned else fence
        cuts = shape.cuts(start, end)
        if start != end:
            finest = min(finest, *(float(high - low) * fence.degrees(start, end) for low, high in pairwise(cuts)))
        looks.append((Fraction(begin), shape.holds((*start, 1))))
        for low, high in pairwise(cuts):
            looks.append((begin + low * (until - begin), shape.holds(place_at(start, end, (low + high) / 2))))
        looks.append((Fraction(until), shape.holds((*end, 1))))
    found: list[Side] = []
    for at, (since, inside) in enumerate(looks):
        until_ms = looks[at + 1][0] if at + 1 < len(looks) else since
        if found and found[-1].inside == inside:
            found[-1] = Side(inside, found[-1].start_ms, until_ms, found[-1].crossed)
        else:
            found.append(Side(inside, since, until_ms, bool(found)))
    return found, finest


def visits_of(
    sides: Sequence[Side], shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: Rules
) -> tuple[list[tuple[float, float, bool, bool]], bool]:
    """(start, end, entered, left) of each visit; and whether it is sure, no distance or time being next to a limit."""
    kept, sure = [sides[0]], True
    for side in sides[1:]:
        stay_s = float(side.end_ms - side.start_ms) / 1000.0
        sure &= rules.min_stay_s == 0.0 or abs(stay_s - rules.min_stay_s) > 1e-6
        if stay_s < rules.min_stay_s:
            continue
        deep, clear = _deep(side, shape, track, t_ms, rules)
        sure &= clear
        if deep and kept[-1].inside != side.inside:
            kept.append(side)
    ends = [*(side.start_ms for side in kept[1:]), Fraction(t_ms[-1])]
    return [
        (float(side.start_ms), float(end), at > 0, at + 1 < len(kept))
        for at, (side, end) in enumerate(zip(kept, ends, strict=True))
        if side.inside
    ], sure


def _deep(
    side: Side, shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: Rules
) -> tuple[bool, bool]:
    """Is any place of a stay as far from the border as it must be: at fixes, and in the middle of parts and of all?"""
    times, clear = [(side.start_ms + side.end_ms) / 2], True
    for begin, until in pairwise(t_ms):
        low, high = max(Fraction(begin), side.start_ms), min(Fraction(until), side.end_ms)
        if low <= high and (begin < side.end_ms or begin < side.start_ms or low < high):
            times += [(low + high) / 2, high]
            # a double tells times of today apart that are a quarter of a microsecond apart
            clear &= not 0 < high - low < Fraction(1, 1000)
    deep = False
    for at in times:
        row = next(row for row in range(1, len(t_ms)) if at <= t_ms[row])
        share = float((at - t_ms[row - 1]) / (t_ms[row] - t_ms[row - 1]))
        (px, py), (qx, qy) = track[row - 1], track[row]
        away = _border_m(shape, px + (qx - px) * share, py + (qy - py) * share)
        doubt = max(rules.buffer_m, 0.0 if math.isnan(rules.accuracy_m[row]) else rules.accuracy_m[row])
        deep |= away >= doubt
        # how far it drives until a double tells the time from the one before
        moved = math.hypot(qx - px, qy - py) * 111_000.0 * 5e-4 / (t_ms[row] - t_ms[row - 1])
        clear &= doubt == 0.0 or abs(away - doubt) > 1e-6 * doubt + 1e-6 + moved
    return deep, clear


def _border_m(shape: shapely.Geometry, x: float, y: float) -> float:
    """Metres to the border, by the ellipsoid's radii at the place."""
    square = _FLATTENING * (2 - _FLATTENING)
    bent = 1.0 - square * math.sin(math.radians(y)) ** 2
    east = math.radians(_AXIS_M / math.sqrt(bent) * math.cos(math.radians(y)))
    north = math.radians(_AXIS_M * (1.0 - square) / bent**1.5)
    near = shapely.transform(shape.boundary, lambda corners: (corners - (x, y)) * (east, north))
    return float(shapely.distance(near, shapely.Point(0.0, 0.0)))
