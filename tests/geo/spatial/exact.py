"""What a segment does in a fence, in whole numbers alone: the yardstick of the engine, which shares no code with it.

Coordinates become whole numbers of a unit of which every one of them is a multiple. The segment is cut wherever it
meets an edge; each part is asked at its middle, and the two fixes, by the parity of the edges to the north of them; a
border is inside.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import shapely
from geographiclib.geodesic import Geodesic

Place = tuple[int, int]
Edge = tuple[Place, Place]
Homogeneous = tuple[int, int, int]


def bits_of(values: Iterable[float]) -> int:
    return max(value.as_integer_ratio()[1].bit_length() for value in values)


@dataclass(frozen=True)
class Inside:
    """What one segment has in one fence. `length`, and `finest`, the shortest part it was cut into, are in degrees.

    `along`: a part of it lies on the border.
    """

    entries: int
    exits: int
    share: Fraction
    metres: float
    along: bool
    length: float
    finest: float


class ExactFence:
    def __init__(self, shape: shapely.Geometry, bits: int) -> None:
        self._bits = bits
        turn = self._whole(360.0)
        rings = [ring for part in shapely.get_parts(shape) for ring in (part.exterior, *part.interiors)]
        corners = [[(self._whole(x), self._whole(y)) for x, y in ring.coords] for ring in rings]
        home = [edge for ring in corners for edge in pairwise(ring)]
        self.edges: list[Edge] = home
        self._everywhere = [
            ((ax + turns * turn, ay), (bx + turns * turn, by)) for turns in (-1, 0, 1) for (ax, ay), (bx, by) in home
        ]

    def _whole(self, value: float) -> int:
        numerator, denominator = value.as_integer_ratio()
        whole, rest = divmod(numerator << self._bits, denominator)
        assert not rest
        return whole

    def everywhere(self) -> ExactFence:
        """The same with the edges a turn to either side, which only matter at the antimeridian."""
        other = copy.copy(self)
        other.edges = self._everywhere
        return other

    def along(self, p: tuple[float, float], q: tuple[float, float]) -> Inside:
        start, end, turned = self.placed(p, q)
        if turned and len(self.edges) != len(self._everywhere):
            return self.everywhere().along(p, q)
        cuts = self.cuts(start, end)
        states = [self.holds((*start, 1))]
        parts = list(pairwise(cuts))
        states += [self.holds(place_at(start, end, (low + high) / 2)) for low, high in parts]
        states += [self.holds((*end, 1))]
        changes = list(pairwise(states))
        length = self.degrees(start, end)
        return Inside(
            entries=sum(after and not before for before, after in changes),
            exits=sum(before and not after for before, after in changes),
            share=sum(
                ((high - low) for (low, high), held in zip(parts, states[1:-1], strict=True) if held), Fraction()
            ),
            metres=sum(self.metres(start, end, run) for run in merged(parts, states[1:-1])),
            along=any(self._on_border(place_at(start, end, (low + high) / 2)) for low, high in parts),
            length=length,
            # a part that is shorter than a double can be is not of no length
            finest=max(min(float(high - low) for low, high in parts) * length, math.ulp(0.0)) if length else 0.0,
        )

    def placed(self, p: tuple[float, float], q: tuple[float, float]) -> tuple[Place, Place, bool]:
        """The ends of the short way, and whether it comes to the antimeridian."""
        (start, end), half = [(self._whole(x), self._whole(y)) for x, y in (p, q)], self._whole(180.0)
        if abs(end[0] - start[0]) > half:
            end = (end[0] + (2 * half if end[0] < start[0] else -2 * half), end[1])
        return start, end, max(abs(start[0]), abs(end[0])) >= half

    def degrees(self, start: Place, end: Place) -> float:
        return math.hypot(*(float(Fraction(to - at, 2**self._bits)) for at, to in zip(start, end, strict=True)))

    def cuts(self, p: Place, q: Place) -> list[Fraction]:
        found = {Fraction(0), Fraction(1)}
        for a, b in self._near(p, q):
            at_a, at_b, at_p, at_q = _cross(p, q, a), _cross(p, q, b), _cross(a, b, p), _cross(a, b, q)
            if at_p * at_q < 0 and at_a * at_b <= 0:
                found.add(Fraction(at_p, at_p - at_q))
        return sorted(found)

    def gate_crossings(self, p: tuple[float, float], q: tuple[float, float]) -> list[tuple[int, bool, Fraction]]:
        """Of the edges, each taken as a gate, those that the way crosses: (edge, from left to right, where on the way).

        A fix on the line of a gate is on its left, and both ends belong to the gate.
        """
        start, end, turned = self.placed(p, q)
        home = len(self._everywhere) // 3
        found = []
        for number, (a, b) in enumerate(self._everywhere if turned else self.edges):
            at_p, at_q = _cross(a, b, start), _cross(a, b, end)
            if (at_p >= 0) != (at_q >= 0) and _cross(start, end, a) * _cross(start, end, b) <= 0:
                found.append((number % home, at_p >= 0, Fraction(at_p, at_p - at_q)))
        return found

    def _near(self, p: Place, q: Place) -> list[Edge]:
        (west, east), (south, north) = (sorted(pair) for pair in zip(p, q, strict=True))
        return [
            (a, b)
            for a, b in self.edges
            if (a[0] <= east or b[0] <= east)
            and (a[0] >= west or b[0] >= west)
            and (a[1] <= north or b[1] <= north)
            and (a[1] >= south or b[1] >= south)
        ]

    def _on_border(self, place: Homogeneous) -> bool:
        x, y, unit = place
        return any(
            (ax * unit - x) * (bx * unit - x) <= 0
            and (ay * unit - y) * (by * unit - y) <= 0
            and (bx - ax) * (y - ay * unit) == (by - ay) * (x - ax * unit)
            for (ax, ay), (bx, by) in self.edges
        )

    def holds(self, place: Homogeneous) -> bool:
        x, y, unit = place
        odd = False
        for (ax, ay), (bx, by) in self.edges:
            west, east = ax * unit <= x, bx * unit <= x
            if west and east and not (ax * unit == x or bx * unit == x):
                continue
            side = (bx - ax) * (y - ay * unit) - (by - ay) * (x - ax * unit)
            if side == 0 and (ax * unit - x) * (bx * unit - x) <= 0 and (ay * unit - y) * (by * unit - y) <= 0:
                return True
            odd ^= west != east and (side < 0) == (bx > ax)
        return odd

    def metres(self, p: Place, q: Place, run: tuple[Fraction, Fraction]) -> float:
        (x, y), (u, v) = (
            (float(Fraction(a, unit * 2**self._bits)), float(Fraction(b, unit * 2**self._bits)))
            for a, b, unit in (place_at(p, q, at) for at in run)
        )
        return float(Geodesic.WGS84.Inverse(y, x, v, u)["s12"])


def place_at(p: Place, q: Place, at: Fraction) -> Homogeneous:
    part, unit = at.numerator, at.denominator
    return p[0] * unit + (q[0] - p[0]) * part, p[1] * unit + (q[1] - p[1]) * part, unit


def merged(parts: Sequence[tuple[Fraction, Fraction]], held: Sequence[bool]) -> list[tuple[Fraction, Fraction]]:
    runs: list[tuple[Fraction, Fraction]] = []
    for (low, high), inside in zip(parts, held, strict=True):
        if inside and runs and runs[-1][1] == low:
            runs[-1] = (runs[-1][0], high)
        elif inside:
            runs.append((low, high))
    return runs


def _cross(a: Place, b: Place, place: Place) -> int:
    return (b[0] - a[0]) * (place[1] - a[1]) - (b[1] - a[1]) * (place[0] - a[0])
