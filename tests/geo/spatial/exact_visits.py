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
class VisitRules:
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
    sides: Sequence[Side], shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: VisitRules
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
    side: Side, shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: VisitRules
) -> tuple[bool, bool]:
    """Is any place of a stay as far from the border as it must be; and is that clear, no distance next to the limit?"""
    found, clear = [False, False], True
    for row, (begin, until) in enumerate(pairwise(t_ms), start=1):
        low, high = max(Fraction(begin), side.start_ms), min(Fraction(until), side.end_ms)
        # a stay of no length at a fix is judged by what that fix reported, with the segment that ends there
        if low > high or (low == high and (side.start_ms < side.end_ms or low == begin)):
            continue
        # a double distinguishes times of today that are a quarter of a microsecond apart
        clear &= not 0 < high - low < Fraction(1, 1000)
        (px, py), (qx, qy) = track[row - 1], track[row]
        shares = (float((at - begin) / (until - begin)) for at in (low, high))
        ends = [(px + (qx - px) * share, py + (qy - py) * share) for share in shares]
        doubt = max(rules.buffer_m, 0.0 if math.isnan(rules.accuracy_m[row]) else rules.accuracy_m[row])
        if doubt == 0.0:
            return True, clear
        # how far it drives until a double distinguishes the time from the one before
        moved = math.hypot(qx - px, qy - py) * 111_000.0 * 5e-4 / (until - begin)
        blur = 2e-3 * doubt + 1e-6 + moved
        try:
            for at, limit in enumerate((doubt - blur, doubt + blur)):
                found[at] = found[at] or _away(shape, ends[0], ends[1], limit)
        except shapely.errors.GEOSException:  # a buffer that it cannot make, by its rounding
            clear = False
    return found[1], clear and found[0] == found[1]


def _away(shape: shapely.Geometry, start: Spot, end: Spot, away_m: float) -> bool:
    """Is any place on a straight way so far from the border? What is nearer is a buffer of it, on a flat earth."""
    parts = min(math.ceil(abs(end[1] - start[1]) / 0.02), 50) or 1
    for at in range(parts):
        p, q = (
            [a + (b - a) * share for a, b in zip(start, end, strict=True)] for share in (at / parts, (at + 1) / parts)
        )
        x, y = (p[0] + q[0]) / 2, (p[1] + q[1]) / 2
        if _border_m(shape, x, y) >= away_m:
            return True
        scale = _degree_m(y)
        near = shapely.transform(shape.boundary, lambda corners, x=x, y=y, scale=scale: (corners - (x, y)) * scale)
        way = shapely.LineString([((one[0] - x) * scale[0], (one[1] - y) * scale[1]) for one in (p, q)])
        if way.length and not shapely.difference(way, shapely.buffer(near, away_m, quad_segs=64)).is_empty:
            return True
    return False


def _degree_m(y: float) -> tuple[float, float]:
    square = _FLATTENING * (2 - _FLATTENING)
    bent = 1.0 - square * math.sin(math.radians(y)) ** 2
    east = math.radians(_AXIS_M / math.sqrt(bent) * math.cos(math.radians(y)))
    return east, math.radians(_AXIS_M * (1.0 - square) / bent**1.5)


def _border_m(shape: shapely.Geometry, x: float, y: float) -> float:
    """Metres to the border, by the ellipsoid's radii at the place."""
    near = shapely.transform(shape.boundary, lambda corners: (corners - (x, y)) * _degree_m(y))
    return float(shapely.distance(near, shapely.Point(0.0, 0.0)))
