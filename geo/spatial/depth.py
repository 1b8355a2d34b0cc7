"""How far points are from the border of a fence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

import numpy as np

from geo.spatial.clip import RESOLUTION_DEG
from geo.spatial.fences import Outlines
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct, expand, offsets

_AT_ONCE: Final = 1 << 17  # edges, or boxes of edges: what fits a core's cache
_EDGES_IN_A_BOX: Final = 16
_SLACK_M: Final = 1e-3  # a box is held to be this much nearer than it is, so that rounding leaves out no edge


def border_distance_m(
    outlines: Outlines, fence: Ints, lon: Floats, lat: Floats, up_to_m: Floats | float = np.inf
) -> Floats:
    """Metres from each point to the border of its fence, by the radii of curvature at the point.

    Within 1e-3 of the geodesic distance up to some kilometres: made for hysteresis, not for metering. Where a fence
    goes on beyond 180° the cut is no border; nor is a pole. What is farther than `up_to_m` may be told as infinite:
    then only edges in boxes that reach that near take their step.
    """
    boxes, numbers = _Boxes.of(outlines, fence)
    nearest, most = np.full(len(fence), np.inf), np.broadcast_to(up_to_m, len(fence))
    for rows in blocks(boxes.count[numbers], _AT_ONCE):
        places = lon[rows], lat[rows]
        point, box = boxes.near(numbers[rows], places, most[rows])
        for some in blocks(boxes.edges[box], _AT_ONCE):
            away = _nearest(outlines, boxes, (point[some], box[some]), places)
            np.minimum.at(nearest[rows], point[some], away)
    return np.asarray(np.minimum(nearest, _to_an_end_at_180(outlines, boxes.at_180(), fence, lon, lat)))


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
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
    def of(cls, outlines: Outlines, fence: Ints) -> tuple[_Boxes, Ints]:
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

    def near(self, number: Ints, places: Points, up_to_m: Floats) -> tuple[Ints, Ints]:
        """Pairs (row of `number`, box) of fences (by their place in `fence`) that reach this near to their places."""
        row, box = expand(self.first[number], self.count[number])
        lon, lat = places[0][row], places[1][row]
        west, east = self.west[box] - lon, lon - self.east[box]
        # the other way round the world may be the nearer one
        aside = np.minimum(np.maximum(west, east), 360.0 + np.minimum(west, east))
        beyond = np.maximum(self.south[box] - lat, lat - self.north[box])
        to_east, to_north = _degree_m(places[1])
        away = np.hypot(np.maximum(aside, 0.0) * to_east[row], np.maximum(beyond, 0.0) * to_north[row])
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
    for number in reaching.tolist():
        edges = outlines.edges_of(number)
        (ax, ay), (bx, by) = outlines.at(edges), outlines.at(edges + 1)
        along = np.flatnonzero((np.abs(ax) == 180.0) & (ax == bx))
        if not len(along):
            continue
        rows = np.flatnonzero(fence == number)
        for south, north in _one_sided(ax[along] > 0, ay[along], by[along]):
            line = np.full(len(rows), 180.0)
            ends = line, np.full(len(rows), south), line, np.full(len(rows), north)
            away = _metres(ends, (lon[rows], lat[rows]), _degree_m(lat[rows]))
            nearest[rows] = np.minimum(nearest[rows], away)
    return nearest


def _one_sided(east: Bools, start: Floats, end: Floats) -> list[tuple[float, float]]:
    """From where to where edges along 180° have none along -180° beside them, or the other way round."""
    low, high = np.minimum(start, end), np.maximum(start, end)
    ends = distinct(np.concatenate([low, high]))
    found: list[tuple[float, float]] = []
    for south, north in pairwise(ends.tolist()):
        over = (low <= south) & (high >= north)
        # the corners of a cut are rounded: what is shorter than places are told apart is none
        if (over & east).any() != (over & ~east).any() and north - south > RESOLUTION_DEG:
            found.append((south, north))
    return found


def _nearest(outlines: Outlines, boxes: _Boxes, pairs: tuple[Ints, Ints], places: Points) -> Floats:
    """Metres from the place of each pair (place, box) to the nearest edge of the box."""
    point, box = pairs
    item, edge = expand(boxes.edge[box], boxes.edges[box])
    point = point[item]
    east, north = (metres[point] for metres in _degree_m(places[1]))
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    # no borders: where the world ends, and the step from one ring of a fence to its next
    none = ((np.abs(ax) == 180.0) & (ax == bx)) | ((np.abs(ay) == 90.0) & (ay == by))
    if len(outlines.fence) > outlines.count:
        none[_between_rings(outlines, edge)] = True
    away = _metres((ax, ay, bx, by), (places[0][point], places[1][point]), (east, north))
    away[none] = np.inf
    return np.minimum.reduceat(away, offsets(boxes.edges[box])[:-1]) if len(item) else np.zeros(0)


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
