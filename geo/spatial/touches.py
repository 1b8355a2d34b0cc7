"""Ways that touch a gate at a corner, at an end, at a fix or along an edge: what they cross, in whole numbers.

Where a way and a gate are together for a moment or a while, the way comes from one side of the gate and goes on to
one: it crosses if the two differ. A fix on the gate counts as on its left. Beyond an end the gate is taken to go
straight on, for the places at its end alone: so an end belongs to the gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from geo.spatial.predicates import whole
from geo.spatial.ragged import Floats

_TURN: Final = whole(360.0)

Place: TypeAlias = tuple[int, int]
Crossing: TypeAlias = tuple[bool, float]  # forward, fraction of the way


def crossings_of(ends: tuple[float, float, float, float], line: Floats) -> list[Crossing]:
    """The crossings of a gate by the way from (px, py) to (qx, qy), by all names of its longitudes, in its order."""
    px, py, qx, qy = (whole(value) for value in ends)
    places = [(whole(x), whole(y)) for x, y in line.tolist()]
    places = [place for at, place in enumerate(places) if not at or place != places[at - 1]]
    west, east = min(x for x, _ in places), max(x for x, _ in places)
    found: list[Crossing] = []
    if (px, py) == (qx, qy) or len(places) < 2:
        return found
    for turn in range(-(-(west - max(px, qx)) // _TURN), (east - min(px, qx)) // _TURN + 1):
        found += _Way((px + turn * _TURN, py), (qx + turn * _TURN, qy), places).crossings()
    return sorted(found, key=lambda crossing: crossing[1])


@dataclass(slots=True)
class _Contact:
    """Way and gate are together from fraction `start` to `end`: there the gate's corners, or an edge, are numbered."""

    edge: int
    start: Fraction
    end: Fraction
    start_corner: int | None
    end_corner: int | None

    def join(self, other: _Contact) -> None:
        if other.start < self.start:
            self.start, self.start_corner = other.start, other.start_corner
        if other.end > self.end:
            self.end, self.end_corner = other.end, other.end_corner


class _Way:
    def __init__(self, p: Place, q: Place, gate: list[Place]) -> None:
        self._p, self._q, self._d = p, q, (q[0] - p[0], q[1] - p[1])
        self._gate, self._closed = gate, gate[0] == gate[-1] and len(gate) > 2
        self._square = self._d[0] ** 2 + self._d[1] ** 2

    def crossings(self) -> Iterator[Crossing]:
        back = (-self._d[0], -self._d[1])
        for met in self._contacts():
            from_left = met.start == 0 or self._left(met.edge, met.start_corner, back)
            to_left = met.end == 1 or self._left(met.edge, met.end_corner, self._d)
            if from_left != to_left:
                # a fix on the gate is on its left: to the right it leaves last, from the right it comes first
                yield from_left, float(met.end if from_left else met.start)

    def _contacts(self) -> list[_Contact]:
        """Contacts with edges, those that share a corner on the way made one."""
        found: list[_Contact] = []
        shared = False
        for edge in range(len(self._gate) - 1):
            met = self._contact(edge)
            if met is not None and shared:
                found[-1].join(met)
            elif met is not None:
                found.append(met)
            shared = met is not None and self._on_way(edge + 1)
        if self._closed and shared and len(found) > 1:
            found[0].join(found.pop())
        return found

    def _contact(self, edge: int) -> _Contact | None:
        a, b = self._gate[edge], self._gate[edge + 1]
        at_a, at_b = _cross(self._p, self._q, a), _cross(self._p, self._q, b)
        at_p, at_q = _cross(a, b, self._p), _cross(a, b, self._q)
        if at_a == at_b == 0:
            return self._along(edge)
        if at_a * at_b > 0 or at_p * at_q > 0:
            return None
        corner = edge if at_a == 0 else edge + 1 if at_b == 0 else None
        fraction = Fraction(at_p, at_p - at_q)
        return _Contact(edge, fraction, fraction, corner, corner)

    def _along(self, edge: int) -> _Contact | None:
        (start, start_corner), (end, end_corner) = sorted((self._fraction(at), at) for at in (edge, edge + 1))
        if end < 0 or start > 1:
            return None
        return _Contact(edge, max(start, Fraction(0)), min(end, Fraction(1)), start_corner, end_corner)

    def _on_way(self, corner: int) -> bool:
        place = self._gate[corner]
        return _cross(self._p, self._q, place) == 0 and 0 <= self._fraction(corner) <= 1

    def _fraction(self, corner: int) -> Fraction:
        x, y = self._gate[corner]
        return Fraction((x - self._p[0]) * self._d[0] + (y - self._p[1]) * self._d[1], self._square)

    def _left(self, edge: int, corner: int | None, towards: Place) -> bool:
        """Is what lies in a direction from a place on the gate (a corner, or within an edge) on its left?"""
        before, after = self._rays(edge, corner)
        if before is None or after is None:
            ray = before or after
            return ray is None or _turn(ray, towards) >= 0
        bend = _turn(before, after)
        if bend > 0:
            return _turn(before, towards) > 0 and _turn(after, towards) > 0
        return _turn(before, towards) >= 0 or (bend < 0 and _turn(after, towards) >= 0)

    def _rays(self, edge: int, corner: int | None) -> tuple[Place | None, Place | None]:
        """How the gate reaches a place, and how it goes on; None at its ends."""
        gate, last = self._gate, len(self._gate) - 1
        if corner is None:
            along = _ray(gate[edge], gate[edge + 1])
            return along, along
        if self._closed and corner in {0, last}:
            return _ray(gate[last - 1], gate[last]), _ray(gate[0], gate[1])
        before = _ray(gate[corner - 1], gate[corner]) if corner else None
        return before, _ray(gate[corner], gate[corner + 1]) if corner < last else None


def _ray(start: Place, end: Place) -> Place:
    return end[0] - start[0], end[1] - start[1]


def _turn(one: Place, other: Place) -> int:
    """Above 0 if the second direction is to the left of the first."""
    return one[0] * other[1] - one[1] * other[0]


def _cross(a: Place, b: Place, place: Place) -> int:
    return _turn(_ray(a, b), _ray(a, place))
