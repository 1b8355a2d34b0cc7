"""Which side of a line a place lies on, decided exactly.

A double is a whole number of 2^-1074, so a determinant of doubles is a whole number of a smaller unit. Where
floating-point rounding could decide (Shewchuk's bound), integers of any length do.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.ragged import Bools, Floats, Ints, Points

# Shewchuk's bound for the rounding of a 2x2 orientation determinant, with room for the products' own rounding
ROUNDING: Final = 4e-16
# how far rounding may move a place on a segment, as a fraction of its largest coordinate
_MOVED: Final = 2.0**-50
_UNIT_BITS: Final = 1074

Signs = NDArray[np.int8]


def side(a: Points, b: Points, point: Points) -> Points:
    """Twice the signed area of (a, b, point), positive on the left of a-b, and how much of it may be rounding."""
    left, right = (b[0] - a[0]) * (point[1] - a[1]), (b[1] - a[1]) * (point[0] - a[0])
    return left - right, ROUNDING * (np.abs(left) + np.abs(right))


def orientation(a: Points, b: Points, point: Points, known: Points | None = None) -> Signs:
    """1 where `point` is on the left of the line from a to b, -1 on its right, 0 on it: exact.

    `known`: the result of `side` for them, if there is one.
    """
    value, slack = side(a, b, point) if known is None else known
    signs = np.sign(value).astype(np.int8)
    unsure = np.flatnonzero(np.abs(value) <= slack)
    near = [(corner[0][unsure], corner[1][unsure]) for corner in (a, b, point)]
    for row in unsure[~_plainly_on(near[0], near[1], near[2])].tolist():
        (ax, ay), (bx, by), (x, y) = (
            (whole(float(corner[0][row])), whole(float(corner[1][row]))) for corner in (a, b, point)
        )
        twice = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        signs[row] = (twice > 0) - (twice < 0)
    return signs


def _plainly_on(a: Points, b: Points, point: Points) -> Bools:
    """Where a point is on a line at a glance: it is one of the ends, or on a meridian or parallel with them."""
    (ax, ay), (bx, by), (x, y) = a, b, point
    level, upright = (ay == by) & (ay == y), (ax == bx) & (ax == x)
    return np.asarray(level | upright | ((ax == x) & (ay == y)) | ((bx == x) & (by == y)), dtype=np.bool_)


def whole(value: float) -> int:
    """A double as a whole number of 2^-1074."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length())


def crossing_fraction(
    p: tuple[float, float], q: tuple[float, float], a: tuple[float, float], b: tuple[float, float]
) -> float:
    """The fraction of p-q at which it crosses the line a-b, which is not parallel: the nearest double."""
    (px, py), (qx, qy), (ax, ay), (bx, by) = ((whole(x), whole(y)) for x, y in (p, q, a, b))
    at_p = (bx - ax) * (py - ay) - (by - ay) * (px - ax)
    at_q = (bx - ax) * (qy - ay) - (by - ay) * (qx - ax)
    return float(Fraction(at_p, at_p - at_q))


@dataclass(frozen=True, slots=True, eq=False)
class OnLines:
    """Places at fractions of straight lines, `turns` whole turns of longitude east of them."""

    px: Floats
    py: Floats
    qx: Floats
    qy: Floats
    fraction: Floats
    turns: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Spots:
    """Places to look up. Places on lines are not doubles: `x` and `y` are within `slop` degrees of them."""

    x: Floats
    y: Floats
    slop: float = 0.0
    on: OnLines | None = None

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def on_lines(cls, on: OnLines) -> Spots:
        """Places on lines, each moved into [-180, 180]."""
        rest = 1.0 - on.fraction
        x, y = on.px * rest + on.qx * on.fraction, on.py * rest + on.qy * on.fraction
        turns = np.where(x >= 180.0, -1.0, np.where(x < -180.0, 1.0, 0.0))
        on = OnLines(on.px, on.py, on.qx, on.qy, on.fraction, on.turns + turns)
        return cls(x + 360.0 * turns, y, _MOVED * 540.0, on)

    def turned(self, rows: Ints, turns: Floats) -> Spots:
        """Some of them, moved by whole turns of longitude to the east."""
        on = self.on
        if on is not None:
            columns = (column[rows] for column in (on.px, on.py, on.qx, on.qy, on.fraction, on.turns + 0.0))
            px, py, qx, qy, fraction, before = columns
            on = OnLines(px, py, qx, qy, fraction, before + turns)
        return Spots(self.x[rows] + 360.0 * turns, self.y[rows], self.slop, on)

    def at(self, rows: Ints) -> Points:
        """Where some of them are, within `slop`."""
        return self.x[rows], self.y[rows]

    def doubles(self, rows: Ints) -> Points:
        """The exact coordinates of some of them where they are known to be doubles; else NaN."""
        on = self.on
        if on is None:
            return self.at(rows)
        upright = (on.px[rows] == on.qx[rows]) & (on.turns[rows] == 0.0)
        level = on.py[rows] == on.qy[rows]
        return np.where(upright, on.px[rows], np.nan), np.where(level, on.py[rows], np.nan)

    def key(self, row: int) -> tuple[float, ...]:
        """A key that identifies the exact place."""
        if self.on is None:
            return float(self.x[row]), float(self.y[row])
        on = self.on
        return tuple(float(column[row]) for column in (on.px, on.py, on.qx, on.qy, on.fraction, on.turns))

    def exact(self, row: int) -> tuple[int, int, int]:
        """(x, y, bits): where the place is, in whole numbers of 2^-(1074 + bits)."""
        if self.on is None:
            return whole(float(self.x[row])), whole(float(self.y[row])), 0
        px, py, qx, qy, fraction, turns = self.key(row)
        part, parts = fraction.as_integer_ratio()
        bits = parts.bit_length() - 1
        x, y = ((whole(start) << bits) + (whole(end) - whole(start)) * part for start, end in ((px, qx), (py, qy)))
        return x + (whole(360.0 * turns) << bits), y, bits


def turn_of(
    edge: tuple[float, float, float, float], place: tuple[int, int, int], mark: tuple[float, float]
) -> bool | None:
    """Whether the way from place to mark crosses the edge an odd number of times, exactly; None: the place is on the
    edge.

    The way goes along the meridian of the place to a corner, then along the parallel to the mark. It is taken a
    trace east of the place, and its second leg a still smaller trace north of the mark. So it meets no vertex,
    and no edge runs along it.
    """
    x, y, bits = place
    ax, ay, bx, by = (whole(value) << bits for value in edge)
    mark_x, mark_y = (whole(value) << bits for value in mark)
    dx, dy = bx - ax, by - ay
    at_place = dx * (y - ay) - dy * (x - ax)
    if at_place == 0 and min(ax, bx) <= x <= max(ax, bx) and min(ay, by) <= y <= max(ay, by):
        return None
    over, beside = (ax <= x) != (bx <= x), (ay <= mark_y) != (by <= mark_y)
    along = dx * (mark_y - ay)
    corner = (along - dy * (x - ax) or -dy or dx) > 0
    far = (along - dy * (mark_x - ax) or dx) > 0
    return (over and (at_place > 0) != corner) != (beside and corner != far)


def on_or_odd(edges: tuple[Points, Points], place: tuple[int, int, int], near: tuple[float, float, float]) -> bool:
    """Whether the place lies on one of these edges, or an odd number of them are north of it: exact.

    `near`: the place as doubles, and how far they may be from it.
    """
    (ax, ay), (bx, by) = edges
    x, y, slop = near
    value, slack = side((ax, ay), (bx, by), (np.array([x]), np.array([y])))
    over = (ax <= x) != (bx <= x)
    unsure = np.abs(value) <= slack + slop * (np.abs(bx - ax) + np.abs(by - ay))
    unsure |= (np.abs(ax - x) <= slop) | (np.abs(bx - x) <= slop)
    odd = np.count_nonzero(over & ~unsure & ((value < 0) == (bx > ax))) % 2 == 1
    for row in np.flatnonzero(unsure).tolist():
        turn = turn_of((float(ax[row]), float(ay[row]), float(bx[row]), float(by[row])), place, (0.0, 1000.0))
        if turn is None:
            return True
        odd ^= turn
    return bool(odd)
