"""Which entries and crossings are charged by the rule `standstill`: steps (7) and (8) of `docs/standstill.md`."""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.shapes import DEGREE, ExactPoint, TrueGate, Zone, Zones
from simulator.truth.track import TruePlace

BUFFER_M = 10.0
SURE_US = LOOK_BACK_US = 120_000_000
RADIUS_M = 6_378_137.0

ZonesAt = Callable[[TruePlace], Zones]
"""The zones in force on the segment that ends at a place."""


class Stay(NamedTuple):
    """A part of a track on one side of a border; `crossed`: it begins with a crossing."""

    inside: bool
    start_us: Fraction
    end_us: Fraction
    sure: bool
    crossed: bool


class Side(NamedTuple):
    """A part of a track on one side of a fence, by its parts of segments, each with the fence then in force."""

    inside: bool
    start_us: Fraction
    crossed: bool
    ways: "list[tuple[Zone | None, Way]]"


class Way(NamedTuple):
    """A part of a segment, from `a` to `b`, and the uncertainty of its places."""

    a: ExactPoint
    b: ExactPoint
    uncertain_m: float


def point(place: TruePlace) -> ExactPoint:
    return ExactPoint(place.x * (DEGREE // 10**7), place.y * (DEGREE // 10**7))


def between(a: ExactPoint, b: ExactPoint, share: Fraction) -> ExactPoint:
    return ExactPoint(a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share)


def changes(a: ExactPoint, b: ExactPoint, zones: Zones) -> Iterator[tuple[Fraction, str]]:
    """The zone between each two borders that the way meets, and at its end, with its share of the way.

    The zone at a border itself is not used: a way that touches one point of a zone crosses nothing.
    """
    cuts = zones.cuts(a, b)
    if not cuts:
        return
    marks = sorted({Fraction(0), *cuts, Fraction(1)})
    for mark, following in pairwise(marks):
        yield mark, zones.at(between(a, b, (mark + following) / 2))
    yield Fraction(1), zones.at(b)


class ChargedEntries:
    def __init__(self, track: Sequence[TruePlace], zones_at: ZonesAt) -> None:
        self._track, self._zones_at = track, zones_at
        self._counted: dict[str, dict[tuple[Fraction, bool], bool]] = {}

    def charged(self, zone: str, moment_us: Fraction) -> bool:
        """An entry at the zone's own border counts if the fence's entry does; else if a fence of higher priority is
        surely left.
        """
        own = self._of_fence(zone).get((moment_us, True))
        if own is not None:
            return own
        names = {one.id for place in self._track for one in self._zones_at(place).in_order}
        return any(self._of_fence(name).get((moment_us, False), False) for name in names)

    def _of_fence(self, name: str) -> dict[tuple[Fraction, bool], bool]:
        """Whether each change of side of a fence counts, by its time and direction (True: inward)."""
        if name not in self._counted:
            stays = list(_stays(self._track, name, self._zones_at))
            counts = sure_changes(stays)
            self._counted[name] = {
                (stay.start_us, stay.inside): count for stay, count in zip(stays, counts, strict=True) if stay.crossed
            }
        return self._counted[name]


def sure_changes(stays: Sequence[Stay]) -> list[bool]:
    """Which stays begin with a change of side that counts."""
    counts = []
    for number, stay in enumerate(stays):
        counts.append(False)
        if number and stay.sure:
            since = stay.start_us - LOOK_BACK_US
            sure = next((one for one in reversed(stays[:number]) if one.sure), None)
            if sure is None or sure.end_us <= since:
                sure = next((one for one in reversed(stays[:number]) if one.start_us <= since), stays[0])
            counts[-1] = sure.inside != stay.inside
    return counts


def _stays(track: Sequence[TruePlace], name: str, zones_at: ZonesAt) -> Iterator[Stay]:
    for side, following in pairwise([*sides_of(track, name, zones_at), None]):
        assert side is not None
        until = following.start_us if following else Fraction(track[-1].time_us)
        sure = until - side.start_us >= SURE_US or any(
            zone is None or deep(zone, way, _sure_m(zone, way.uncertain_m)) for zone, way in side.ways
        )
        yield Stay(side.inside, side.start_us, until, sure, side.crossed)


def sides_of(track: Sequence[TruePlace], name: str, zones_at: ZonesAt) -> Iterator[Side]:
    side: Side | None = None
    for start, end in pairwise(track):
        a, b = point(start), point(end)
        fence = next((zone for zone in zones_at(end).in_order if zone.id == name), None)
        alone = Zones([fence] if fence else [])
        marks = [(Fraction(0), bool(alone.at(a)), False)]
        for share, zone in changes(a, b, alone):
            if bool(zone) != marks[-1][1]:
                marks.append((share, bool(zone), True))
        for (share, inside, is_crossing), (following, *_) in pairwise([*marks, (Fraction(1), False, False)]):
            if side is None or inside != side.inside:
                if side is not None:
                    yield side
                moment = start.time_us + (end.time_us - start.time_us) * share
                side = Side(inside, moment, is_crossing, [])
            side.ways.append((fence, Way(between(a, b, share), between(a, b, following), end.uncertain_m)))
    if side is not None:
        yield side


def deep(zone: Zone, way: Way, away_m: float) -> bool:
    """Whether some place of a way is at least so far from the border."""
    flat_place = _plane(way.a, float(way.a.y + way.b.y) / 2.0)
    end = flat_place(way.b)
    edges = [(flat_place(edge.a), flat_place(edge.b)) for polygon in zone.polygons for ring in polygon for edge in ring]
    if any(all(_away(place, *edge) >= away_m for edge in edges) for place in (0j, end)):
        return True
    near = [part for edge in edges if (part := _within(end, *edge, away_m)) is not None]
    share = 0.0
    for low, high in sorted(near):
        if low >= share:
            break
        share = max(share, high)
    return share <= 1.0


def is_sure(zone: Zone, place: ExactPoint, uncertain_m: float) -> bool:
    """Whether a place is that far from the border."""
    away_m, flat_place = _sure_m(zone, uncertain_m), _plane(place, float(place.y))
    edges = (edge for polygon in zone.polygons for ring in polygon for edge in ring)
    return all(_away(0j, flat_place(edge.a), flat_place(edge.b)) >= away_m for edge in edges)


def _sure_m(zone: Zone, uncertain_m: float) -> float:
    return min(max(BUFFER_M, uncertain_m), 0.5 * _half_width_m(zone))


def _plane(origin: ExactPoint, middle_y: float) -> Callable[[ExactPoint], complex]:
    """A function to metres from an origin, by the radii of curvature at a latitude."""
    es = 0.0066943799901413165
    latitude = math.radians(middle_y / DEGREE)
    flat = 1.0 - es * math.sin(latitude) ** 2
    prime = RADIUS_M / math.sqrt(flat)
    scale = (math.radians(prime * math.cos(latitude)) / DEGREE, math.radians(prime * (1.0 - es) / flat) / DEGREE)
    return lambda place: complex(float(place.x - origin.x) * scale[0], float(place.y - origin.y) * scale[1])


def _half_width_m(zone: Zone) -> float:
    """Half the width of a strip with the fence's area and border: area divided by border length."""
    scale_y = math.radians(RADIUS_M) / DEGREE
    scale_x = scale_y * math.cos(math.radians(float(zone.low.y + zone.high.y) / 2.0 / DEGREE))
    area = length = 0.0
    for polygon in zone.polygons:
        for number, ring in enumerate(polygon):
            x0, y0 = ring[0].a
            twice = 0.0
            for a, b in ring:
                ax, ay, bx, by = (
                    float(one - zero) * scale
                    for one, zero, scale in (
                        (a.x, x0, scale_x),
                        (a.y, y0, scale_y),
                        (b.x, x0, scale_x),
                        (b.y, y0, scale_y),
                    )
                )
                twice += ax * by - bx * ay
                length += math.hypot(bx - ax, by - ay)
            area += abs(twice) / (-2.0 if number else 2.0)
    return area / max(length, 1e-9)


def _within(end: complex, a: complex, b: complex, away_m: float) -> tuple[float, float] | None:
    """The shares of the line from 0 through `end` that are nearer to the edge than `away_m`."""
    if not end:
        away = _away(0j, a, b)
        return (-math.inf, math.inf) if away < away_m else None
    # The distance to a straight edge is convex along a straight line, so at most one part is near.
    low, high = 0.0, 1.0
    for _ in range(90):
        third = (high - low) / 3.0
        if _away(end * (low + third), a, b) <= _away(end * (high - third), a, b):
            high -= third
        else:
            low += third
    nearest = (low + high) / 2.0
    if _away(end * nearest, a, b) >= away_m:
        return None
    return _limit(end, a, b, away_m, nearest, 0.0), _limit(end, a, b, away_m, nearest, 1.0)


def _limit(end: complex, a: complex, b: complex, away_m: float, near: float, far: float) -> float:  # noqa: PLR0917
    """The share between a near and a far one where the distance is `away_m`; infinite if it is never reached."""
    if _away(end * far, a, b) < away_m:
        return math.inf if far else -math.inf
    for _ in range(60):
        middle = (near + far) / 2.0
        near, far = (middle, far) if _away(end * middle, a, b) < away_m else (near, middle)
    return far


def _away(place: complex, a: complex, b: complex) -> float:
    along = b - a
    share = ((place - a) * along.conjugate()).real / abs(along) ** 2 if along else 0.0
    return abs(place - a - along * min(max(share, 0.0), 1.0))


class _Crossing(NamedTuple):
    end: TruePlace
    time_us: Fraction
    forward: bool
    at_mm: int


def charged_crossings(track: Sequence[TruePlace], gate: TrueGate) -> list[TruePlace]:
    """For each charged crossing of a gate, the fix that ends its segment."""
    found: list[_Crossing] = []
    way_mm = 0
    for start, end in pairwise(track):
        way_mm += round(end.metres * 1000.0)
        for share, forward in [] if end.still else gate.crossings(point(start), point(end)):
            moment = start.time_us + (end.time_us - start.time_us) * share
            found.append(_Crossing(end, moment, forward, way_mm - round(end.metres * float(1 - share) * 1000.0)))
    charged: list[TruePlace] = []
    while found:
        # A vehicle can drive around the gate's end to the other side, which begins a new series.
        count = next((i for i in range(1, len(found)) if found[i].forward == found[i - 1].forward), len(found))
        series, found = found[:count], found[count:]
        first = series[0]
        stays = [Stay(not first.forward, Fraction(-(10**18)), first.time_us, sure=True, crossed=False)]
        for crossing, following in pairwise([*series, None]):
            assert crossing is not None
            sure = following is None
            if following is not None:
                away_mm = 2_000.0 * max(crossing.end.uncertain_m, BUFFER_M)
                lasts = following.time_us - crossing.time_us >= SURE_US
                sure = lasts or following.at_mm - crossing.at_mm >= away_mm
            until = Fraction(10**18) if following is None else following.time_us
            stays.append(Stay(crossing.forward, crossing.time_us, until, sure, crossed=True))
        counts = sure_changes(stays)[1:]
        charged += [crossing.end for crossing, count in zip(series, counts, strict=True) if count]
    return charged
