"""How far points are from the border of a fence, and whether any place of a way is that far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.geodesic import degree_m
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct, expand, offsets, run_starts

_AT_ONCE: Final = 1 << 17  # edges, or boxes of edges, that fit a core's cache
_EDGES_IN_A_BOX: Final = 16
_SLACK_M: Final = 1e-3  # boxes count as this much nearer, so that rounding leaves out no edge
_FLAT_DEG: Final = 0.02  # of latitude: on this part of a way one scale is right within 1e-3, up to 80 degrees
_MAX_PARTS: Final = 1024


def border_distance_m(
    outlines: Outlines, fence: Ints, lon: Floats, lat: Floats, up_to_m: Floats | float = np.inf
) -> Floats:
    """Metres from each point to the border of its fence, by the radii of curvature at the point.

    Within 1e-3 of the geodesic distance up to some kilometres: made for hysteresis, not for metering. An edge along
    ±180° or a pole is no border. A distance above `up_to_m` may be returned as infinite: then only edges in boxes that
    near are measured.
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
    return nearest


def anywhere_away(outlines: Outlines, fence: Ints, start: Points, end: Points, away_m: Floats) -> Bools:
    """Whether any place on each straight way, ends included, is at least `away_m` (above 0) from the border of its
    fence.

    Distances are those of `border_distance_m`; `end` is within 180 degrees of `start`.
    """
    count = np.clip(np.ceil(np.abs(end[1] - start[1]) / _FLAT_DEG).astype(np.int64), 1, _MAX_PARTS)
    away = np.zeros(len(fence), dtype=np.bool_)
    boxes, numbers = _EdgeBoxes.of(outlines, fence)
    for rows in blocks(boxes.count[numbers] * count, _AT_ONCE):
        row, part = expand(np.zeros(rows.stop - rows.start, dtype=np.int64), count[rows])
        row += rows.start
        ways = _Ways.parts(start, end, row, part, count[row])
        near = [
            ways.within(*ends, away_m[row]) for ends in _ends_near(outlines, boxes, numbers[row], ways, away_m[row])
        ]
        away[row[ways.leave(near)]] = True
    return away


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Straight ways around their middles: half of each (`dx`, `dy`) in degrees, and metres of a degree there."""

    lon: Floats
    lat: Floats
    dx: Floats
    dy: Floats
    east: Floats
    north: Floats

    @classmethod
    def parts(cls, start: Points, end: Points, row: Ints, part: Ints, count: Ints) -> _Ways:
        (px, py), (qx, qy) = ((x[row], y[row]) for x, y in (start, end))
        middle, half = (part + 0.5) / count, 0.5 / count
        lon, lat = px + (qx - px) * middle, np.clip(py + (qy - py) * middle, -90.0, 90.0)
        return cls(lon, lat, (qx - px) * half, (qy - py) * half, *degree_m(lat))

    def within(self, way: Ints, a: Points, b: Points, away_m: Floats) -> tuple[Ints, Floats, Floats]:
        """(way, from, to): the part of each way, -1 to 1 over all of it, that is nearer to its edge than `away_m`.

        The distance from an edge is convex along a way, so there is one such part or none.
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
        """The ways that these open stretches do not cover."""
        none = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
        way, low, high = (np.concatenate(column) for column in zip(none, *near, strict=True))
        order = np.lexsort((low, way))
        way, low, high = way[order], np.clip(low[order], -2.0, 2.0), np.clip(high[order], -2.0, 2.0)
        # one ascending line for all ways: each way begins beyond what the ways before it reached
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
    """The open range of u in which value + slope * u is between two limits; (inf, -inf) if there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one, other = (low - value) / slope, (high - value) / slope
    level, holds = slope == 0.0, (low < value) & (value < high)
    from_u = np.where(level, np.where(holds, -np.inf, np.inf), np.minimum(one, other))
    return from_u, np.where(level, np.where(holds, np.inf, -np.inf), np.maximum(one, other))


def _in_circle(x: Floats, y: Floats, dx: Floats, dy: Floats, radius: Floats) -> Points:
    """The range of u in which (dx, dy) * u is nearer to (x, y) than a radius; (inf, -inf) if there is none."""
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
    """(way, ends) of the edges in boxes that reach this near to the way."""
    way, box = boxes.near(number, (ways.lon, ways.lat), up_to_m, (np.abs(ways.dx), np.abs(ways.dy)))
    for some in blocks(boxes.edges[box], _AT_ONCE):
        item, edge = expand(boxes.edge[box[some]], boxes.edges[box[some]])
        a, b = outlines.at(edge), outlines.at(edge + 1)
        real = np.flatnonzero(~_no_border(outlines, edge, a, b))
        yield way[some][item[real]], (a[0][real], a[1][real]), (b[0][real], b[1][real])


@dataclass(frozen=True, slots=True, eq=False)
class _EdgeBoxes:
    """Boxes (degrees) of up to `_EDGES_IN_A_BOX` neighbouring edges of some fences.

    Fence `fence[n]` has the boxes `first[n] .. first[n] + count[n] - 1`. Box b holds `edges[b]` edges from `edge[b]`
    on, including the steps from ring to ring.
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
        """The boxes of the distinct fences, and the place of each given fence among the distinct ones."""
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
        """Pairs (row of `number`, box) of boxes, of fences by their place in `fence`, that reach this near to their
        places.

        `reach`: how many degrees the places may be off.
        """
        row, box = expand(self.first[number], self.count[number])
        lon, lat = places[0][row], places[1][row]
        west, east = self.west[box] - lon, lon - self.east[box]
        # the other way round the world may be the nearer one
        across = np.minimum(np.maximum(west, east), 360.0 + np.minimum(west, east))
        beyond = np.maximum(self.south[box] - lat, lat - self.north[box])
        if reach is not None:
            across, beyond = across - reach[0][row], beyond - reach[1][row]
        to_east, to_north = degree_m(places[1])
        away = np.hypot(np.maximum(across, 0.0) * to_east[row], np.maximum(beyond, 0.0) * to_north[row])
        near = np.flatnonzero(away <= up_to_m[row] + _SLACK_M)
        return row[near], box[near]


def _nearest(outlines: Outlines, boxes: _EdgeBoxes, pairs: tuple[Ints, Ints], places: Points) -> Floats:
    """Metres from the place of each pair (place, box) to the nearest edge of the box."""
    point, box = pairs
    item, edge = expand(boxes.edge[box], boxes.edges[box])
    point = point[item]
    east, north = (metres[point] for metres in degree_m(places[1]))
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    none = _no_border(outlines, edge, (ax, ay), (bx, by))
    away = _metres((ax, ay, bx, by), (places[0][point], places[1][point]), (east, north))
    away[none] = np.inf
    return np.minimum.reduceat(away, offsets(boxes.edges[box])[:-1]) if len(item) else np.zeros(0)


def _no_border(outlines: Outlines, edge: Ints, a: Points, b: Points) -> Bools:
    """Whether an edge is the end of the world, or the step from one ring of a fence to its next."""
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
