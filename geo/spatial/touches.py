"""Ways that touch a gate at a corner, at an end, at a fix or along an edge: what they cross, in whole numbers.

Where a way and a gate are together for a moment or a while, the way comes from one side of the gate and goes on to
one: it crosses if the two differ. A fix on the gate counts as on its left. Beyond an end the gate is taken to go
straight on, for the places at its end alone: so an end belongs to the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from geo.spatial.predicates import whole
from geo.spatial.ragged import Floats

_TURN: Final = whole(360.0)

Place: TypeAlias = tuple[int, int]
Crossing: TypeAlias = tuple[bool, float]  # forward, fraction of the way


def crossings_of(
    ends: tuple[float, float, float, float], line: Floats, edges: Iterable[int], *, beside: bool = True
) -> list[Crossing]:
    """The crossings of a gate by the way from (px, py) to (qx, qy), by all names of its longitudes, in its order.

    `line`: the gate's corners, of which no two neighbours are the same place; `edges`: the numbers of those that the
    way meets by any of its names. With `beside` those beside them are looked at as well, and no others: an edge that
    is met by a name that rounding moved may be the one beside it.
    """
    px, py, qx, qy = (whole(value) for value in ends)
    gate = _Corners(line)
    near = gate.edges_beside(edges) if beside else sorted(set(edges))
    crossings: list[Crossing] = []
    if (px, py) == (qx, qy) or not near:
        return crossings
    longitudes = [gate[corner][0] for edge in near for corner in (edge, edge + 1)]
    west, east = min(longitudes), max(longitudes)
    for turn in range(-(-(west - max(px, qx)) // _TURN), (east - min(px, qx)) // _TURN + 1):
        crossings += _Way((px + turn * _TURN, py), (qx + turn * _TURN, qy), gate, near).crossings()
    return sorted(crossings, key=lambda crossing: crossing[1])


class _Corners:
    """The corners of a gate in whole numbers, each when it is asked for."""

    def __init__(self, line: Floats) -> None:
        self._line, self._known = line, dict[int, Place]()
        self.last: Final = len(line) - 1
        self.closed: Final = len(line) > 2 and bool((line[0] == line[-1]).all())

    def __getitem__(self, corner: int) -> Place:
        if corner not in self._known:
            x, y = self._line[corner].tolist()
            self._known[corner] = whole(x), whole(y)
        return self._known[corner]

    def edges_beside(self, edges: Iterable[int]) -> list[int]:
        """Some edges and their neighbours, ascending."""
        beside = {number for edge in edges for number in (edge - 1, edge, edge + 1)}
        if self.closed:
            return sorted({number % self.last for number in beside})
        return sorted(number for number in beside if 0 <= number < self.last)


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
    def __init__(self, p: Place, q: Place, gate: _Corners, edges: list[int]) -> None:
        self._p, self._q, self._d = p, q, (q[0] - p[0], q[1] - p[1])
        self._gate, self._edges = gate, edges
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
        contacts: list[_Contact] = []
        shared: int | None = None  # the corner on the way at which the last edge that was met ends
        for edge in self._edges:
            met = self._contact(edge)
            if met is None:
                continue
            if shared == edge:
                contacts[-1].join(met)
            else:
                contacts.append(met)
            shared = edge + 1 if self._on_way(edge + 1) else None
        # The last edge of a closed gate ends where the first begins: a way through that corner meets them as one.
        if self._gate.closed and shared == self._gate.last and len(contacts) > 1 and self._edges[0] == 0:
            contacts[0].join(contacts.pop())
        return contacts

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
        gate, last = self._gate, self._gate.last
        if corner is None:
            along = _ray(gate[edge], gate[edge + 1])
            return along, along
        if gate.closed and corner in {0, last}:
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
