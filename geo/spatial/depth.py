"""How far points are from the border of a fence, and whether any place of a way is so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np

from geo.spatial.clip import RESOLUTION_DEG
from geo.spatial.fences import Outlines
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct, expand, offsets, run_starts

_AT_ONCE: Final = 1 << 17  # edges, or boxes of edges: what fits a core's cache
_EDGES_IN_A_BOX: Final = 16
_SLACK_M: Final = 1e-3  # a box is held to be this much nearer than it is, so that rounding leaves out no edge
_FLAT_DEG: Final = 0.02  # of latitude: on so much of a way one scale is right within 1e-3, up to 80 degrees
_MAX_PARTS: Final = 1024


def border_distance_m(
    outlines: Outlines, fence: Ints, lon: Floats, lat: Floats, up_to_m: Floats | float = np.inf
) -> Floats:
    """Metres from each point to the border of its fence, by the radii of curvature at the point.

    Within 1e-3 of the geodesic distance up to some kilometres: made for hysteresis, not for metering. Where a fence
    goes on beyond 180° the cut is no border; nor is a pole. What is farther than `up_to_m` may be returned as infinite:
    then only edges in boxes that reach that near take their step.
    """
    boxes, numbers = _EdgeBoxes.of(outlines, fence)
    nearest, most = np.full(len(fence), np.inf), np.broadcast_to(up_to_m, len(fence))
    for rows in blocks(boxes.count[numbers], _AT_ONCE):
        places = lon[rows], lat[rows]
        point, box = boxes.near(numbers[rows], places, most[rows])
        for some in blocks(boxes.edges[box], _AT_ONCE):
            away = _nearest(outlines, boxes, (point[some], box[some]), places)
            # `rows` is a slice: this writes into `nearest` itself.
            np.minimum.at(nearest[rows], point[some], away)
    return np.asarray(np.minimum(nearest, _to_an_end_at_180(outlines, boxes.at_180(), fence, lon, lat)))


def anywhere_away(outlines: Outlines, fence: Ints, start: Points, end: Points, away_m: Floats) -> Bools:
    """Is any place on each straight way, its ends included, at least `away_m` (above 0) from the border of its fence?

    Distances are those of `border_distance_m`; `end` is within 180 degrees of `start`.
    """
    count = np.clip(np.ceil(np.abs(end[1] - start[1]) / _FLAT_DEG).astype(np.int64), 1, _MAX_PARTS)
    away = np.zeros(len(fence), dtype=np.bool_)
    boxes, numbers = _EdgeBoxes.of(outlines, fence)
    reaching = boxes.at_180()
    for rows in blocks(boxes.count[numbers] * count, _AT_ONCE):
        row, part = expand(np.zeros(rows.stop - rows.start, dtype=np.int64), count[rows])
        row += rows.start
        ways = _Ways.parts(start, end, row, part, count[row])
        near = [
            ways.within(*ends, away_m[row]) for ends in _ends_near(outlines, boxes, numbers[row], ways, away_m[row])
        ]
        near += [ways.within(*ends, away_m[row]) for ends in _ends_at_180(outlines, reaching, fence[row])]
        away[row[ways.leave(near)]] = True
    return away


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Straight ways around their middles: half of each (`dx`, `dy`), degrees, and metres of a degree there."""

    lon: Floats
    lat: Floats
    dx: Floats
    dy: Floats
    east: Floats
    north: Floats

    @classmethod
    def parts(cls, start: Points, end: Points, row: Ints, part: Ints, count: Ints) -> _Ways:
        """Part number `part` of `count` equal ones of each row."""
        (px, py), (qx, qy) = ((x[row], y[row]) for x, y in (start, end))
        middle, half = (part + 0.5) / count, 0.5 / count
        lon, lat = px + (qx - px) * middle, np.clip(py + (qy - py) * middle, -90.0, 90.0)
        return cls(lon, lat, (qx - px) * half, (qy - py) * half, *_degree_m(lat))

    def within(self, way: Ints, a: Points, b: Points, away_m: Floats) -> tuple[Ints, Floats, Floats]:
        """(way, from, to): on which part of each way, -1 to 1 over all of it, it is nearer to its edge than that.

        How far a place is from an edge is convex along a way: it is nearer on one stretch, or nowhere.
        """
        east, north, limit = self.east[way], self.north[way], away_m[way]
        turn = self.lon[way] + 360.0 * np.rint(((a[0] + b[0]) / 2 - self.lon[way]) / 360.0)
        ax, ay = (a[0] - turn) * east, (a[1] - self.lat[way]) * north
        bx, by = (b[0] - turn) * east, (b[1] - self.lat[way]) * north
        dx, dy = self.dx[way] * east, self.dy[way] * north
        ex, ey = bx - ax, by - ay
        square = ex * ex + ey * ey
        length = np.sqrt(square)
        beside = _between(-(ax * ex + ay * ey), dx * ex + dy * ey, np.zeros(len(way)), square)
        across = _between(ey * ax - ex * ay, ex * dy - ey * dx, -limit * length, limit * length)
        low, high = np.maximum(beside[0], across[0]), np.minimum(beside[1], across[1])
        low, high = np.where(low < high, low, np.inf), np.where(low < high, high, -np.inf)
        for x, y in ((ax, ay), (bx, by)):
            from_u, to_u = _in_circle(x, y, dx, dy, limit)
            low, high = np.minimum(low, from_u), np.maximum(high, to_u)
        some = np.flatnonzero((low < 1.0) & (high > -1.0) & (low < high))
        return way[some], low[some], high[some]

    def leave(self, near: list[tuple[Ints, Floats, Floats]]) -> Ints:
        """The ways that stretches of them, without their ends, do not cover."""
        none = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
        way, low, high = (np.concatenate(column) for column in zip(none, *near, strict=True))
        order = np.lexsort((low, way))
        way, low, high = way[order], np.clip(low[order], -2.0, 2.0), np.clip(high[order], -2.0, 2.0)
        # one ascending line for all ways: what was reached on the ways before is behind each
        reached = np.maximum.accumulate(high + 8.0 * way)
        opens = run_starts(way) if len(way) else np.zeros(0, dtype=np.bool_)
        gap = np.where(opens, low >= -1.0, low + 8.0 * way >= np.append(0.0, reached[:-1])[: len(way)])
        last = np.append(opens[1:], True)[: len(way)]
        gap |= last & (reached - 8.0 * way <= 1.0)
        covered = np.zeros(len(self.lon), dtype=np.bool_)
        covered[way] = True
        covered[way[gap]] = False
        return np.flatnonzero(~covered)


def _between(value: Floats, slope: Floats, low: Floats, high: Floats) -> Points:
    """From which u to which value + slope * u is between two limits, and none of them; infinite where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one, other = (low - value) / slope, (high - value) / slope
    level, holds = slope == 0.0, (low < value) & (value < high)
    from_u = np.where(level, np.where(holds, -np.inf, np.inf), np.minimum(one, other))
    return from_u, np.where(level, np.where(holds, np.inf, -np.inf), np.maximum(one, other))


def _in_circle(x: Floats, y: Floats, dx: Floats, dy: Floats, radius: Floats) -> Points:
    """From which u to which (dx, dy) * u is nearer to (x, y) than a radius; infinite where it is not."""
    square, along, rest = dx * dx + dy * dy, x * dx + y * dy, x * x + y * y - radius * radius
    root = along * along - square * rest
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.sqrt(np.maximum(root, 0.0))
        from_u, to_u = (along - half) / square, (along + half) / square
    stands, meets = square == 0.0, root > 0.0
    from_u = np.where(stands, np.where(rest < 0.0, -np.inf, np.inf), np.where(meets, from_u, np.inf))
    return from_u, np.where(stands, np.where(rest < 0.0, np.inf, -np.inf), np.where(meets, to_u, -np.inf))


def _ends_near(
    outlines: Outlines, boxes: _EdgeBoxes, number: Ints, ways: _Ways, up_to_m: Floats
) -> Iterator[tuple[Ints, Points, Points]]:
    """(way, ends) of edges in boxes that reach so near to the way."""
    way, box = boxes.near(number, (ways.lon, ways.lat), up_to_m, (np.abs(ways.dx), np.abs(ways.dy)))
    for some in blocks(boxes.edges[box], _AT_ONCE):
        item, edge = expand(boxes.edge[box[some]], boxes.edges[box[some]])
        a, b = outlines.at(edge), outlines.at(edge + 1)
        real = np.flatnonzero(~_no_border(outlines, edge, a, b))
        yield way[some][item[real]], (a[0][real], a[1][real]), (b[0][real], b[1][real])


def _ends_at_180(outlines: Outlines, reaching: Ints, fence: Ints) -> Iterator[tuple[Ints, Points, Points]]:
    for number, south, north in _one_sided_ends(outlines, reaching):
        way = np.flatnonzero(fence == number)
        line, low, high = (np.full(len(way), value) for value in (180.0, south, north))
        yield way, (line, low), (line, high)


@dataclass(frozen=True, slots=True, eq=False)
class _EdgeBoxes:
    """Boxes (degrees) of up to `_EDGES_IN_A_BOX` neighbouring edges of some fences.

    Fence `fence[n]` has the boxes `first[n] .. first[n] + count[n] - 1`; box b holds `edges[b]` edges from
    `edge[b]` on, the steps from ring to ring among them.
    """

    fence: Ints
    first: Ints
    count: Ints
    edge: Ints
    edges: Ints
    west: Floats
    south: Floats
    east: Floats
    north: Floats

    @classmethod
    def of(cls, outlines: Outlines, fence: Ints) -> tuple[_EdgeBoxes, Ints]:
        """The boxes of the distinct ones of these fences, and where each of these is among the distinct ones."""
        asked = distinct(fence)
        vertex = outlines.first_vertices()
        sizes = vertex[asked + 1] - vertex[asked] - 1
        count = -(-sizes // _EDGES_IN_A_BOX)
        row, part = expand(np.zeros(len(asked), dtype=np.int64), count)
        before = part * _EDGES_IN_A_BOX
        edge, edges = vertex[asked][row] + before, np.minimum(sizes[row] - before, _EDGES_IN_A_BOX)
        sides = [np.empty(len(edge)) for _ in range(4)]
        for some in blocks(edges + 1, _AT_ONCE):
            corners = outlines.at(expand(edge[some], edges[some] + 1)[1])
            begins = offsets(edges[some] + 1)[:-1]
            for side, (end, values) in zip(sides, product((np.minimum, np.maximum), corners), strict=True):
                side[some] = end.reduceat(values, begins)
        return cls(asked, offsets(count)[:-1], count, edge, edges, *sides), np.searchsorted(asked, fence)

    def near(self, number: Ints, places: Points, up_to_m: Floats, reach: Points | None = None) -> tuple[Ints, Ints]:
        """Pairs (row of `number`, box) of fences (by their place in `fence`) that reach this near to their places.

        `reach`: how many degrees the places may be off what is given.
        """
        row, box = expand(self.first[number], self.count[number])
        lon, lat = places[0][row], places[1][row]
        west, east = self.west[box] - lon, lon - self.east[box]
        # the other way round the world may be the nearer one
        across = np.minimum(np.maximum(west, east), 360.0 + np.minimum(west, east))
        beyond = np.maximum(self.south[box] - lat, lat - self.north[box])
        if reach is not None:
            across, beyond = across - reach[0][row], beyond - reach[1][row]
        to_east, to_north = _degree_m(places[1])
        away = np.hypot(np.maximum(across, 0.0) * to_east[row], np.maximum(beyond, 0.0) * to_north[row])
        near = np.flatnonzero(away <= up_to_m[row] + _SLACK_M)
        return row[near], box[near]

    def at_180(self) -> Ints:
        """Those fences that reach the antimeridian."""
        row = np.repeat(np.arange(len(self.fence)), self.count)
        return distinct(self.fence[row[(self.west == -180.0) | (self.east == 180.0)]])


def _degree_m(lat: Floats) -> Points:
    """Metres of a degree to the east and to the north."""
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.sqrt(1.0 - sine * sine))
    return east, np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)


def _to_an_end_at_180(outlines: Outlines, reaching: Ints, fence: Ints, lon: Floats, lat: Floats) -> Floats:
    """Metres from each point to where its fence ends at the antimeridian: it is on one side of that place alone.

    `reaching`: the fences that reach there.
    """
    nearest = np.full(len(fence), np.inf)
    for number, south, north in _one_sided_ends(outlines, reaching):
        rows = np.flatnonzero(fence == number)
        line = np.full(len(rows), 180.0)
        ends = line, np.full(len(rows), south), line, np.full(len(rows), north)
        away = _metres(ends, (lon[rows], lat[rows]), _degree_m(lat[rows]))
        nearest[rows] = np.minimum(nearest[rows], away)
    return nearest


def _one_sided_ends(outlines: Outlines, reaching: Ints) -> Iterator[tuple[int, float, float]]:
    """(fence, south, north) of where fences end at the antimeridian."""
    for number in reaching.tolist():
        edges = outlines.edges_of(number)
        (ax, ay), (bx, by) = outlines.at(edges), outlines.at(edges + 1)
        along = np.flatnonzero((np.abs(ax) == 180.0) & (ax == bx))
        for south, north in _one_sided(ax[along] > 0, ay[along], by[along]):
            yield number, south, north


def _one_sided(east: Bools, start: Floats, end: Floats) -> list[tuple[float, float]]:
    """From where to where edges along 180° have none along -180° beside them, or the other way round."""
    low, high = np.minimum(start, end), np.maximum(start, end)
    ends = distinct(np.concatenate([low, high]))
    spans: list[tuple[float, float]] = []
    for south, north in pairwise(ends.tolist()):
        over = (low <= south) & (high >= north)
        # the corners of a cut are rounded: a distance below the resolution of a place is zero
        if (over & east).any() != (over & ~east).any() and north - south > RESOLUTION_DEG:
            spans.append((south, north))
    return spans


def _nearest(outlines: Outlines, boxes: _EdgeBoxes, pairs: tuple[Ints, Ints], places: Points) -> Floats:
    """Metres from the place of each pair (place, box) to the nearest edge of the box."""
    point, box = pairs
    item, edge = expand(boxes.edge[box], boxes.edges[box])
    point = point[item]
    east, north = (metres[point] for metres in _degree_m(places[1]))
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    none = _no_border(outlines, edge, (ax, ay), (bx, by))
    away = _metres((ax, ay, bx, by), (places[0][point], places[1][point]), (east, north))
    away[none] = np.inf
    return np.minimum.reduceat(away, offsets(boxes.edges[box])[:-1]) if len(item) else np.zeros(0)


def _no_border(outlines: Outlines, edge: Ints, a: Points, b: Points) -> Bools:
    """Where the world ends, and the step from one ring of a fence to its next."""
    (ax, ay), (bx, by) = a, b
    none: Bools = ((np.abs(ax) == 180.0) & (ax == bx)) | ((np.abs(ay) == 90.0) & (ay == by))
    if len(outlines.fence) > outlines.count:
        none[_between_rings(outlines, edge)] = True
    return none


def _metres(edges: tuple[Floats, Floats, Floats, Floats], points: Points, scale: Points) -> Floats:
    """Metres from each point to its edge, on the nearer way round the world; `scale`: metres of a degree."""
    (ax, ay, bx, by), (lon, lat), (east, north) = edges, points, scale
    turn = 360.0 * np.rint(((ax + bx) / 2 - lon) / 360.0)
    ax, ay, bx, by = (ax - turn - lon) * east, (ay - lat) * north, (bx - turn - lon) * east, (by - lat) * north
    dx, dy = bx - ax, by - ay
    square = dx * dx + dy * dy
    along = np.divide(-(ax * dx + ay * dy), square, out=np.zeros(len(dx)), where=square > 0)
    along = np.clip(along, 0.0, 1.0)
    return np.asarray(np.hypot(ax + along * dx, ay + along * dy), dtype=np.float64)


def _between_rings(outlines: Outlines, edge: Ints) -> Ints:
    ring = np.searchsorted(outlines.rings, edge, side="right")
    return np.flatnonzero(outlines.rings[ring] == edge + 1)
