"""How far points are from the border of a fence."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from geo.spatial.clip import RESOLUTION_DEG
from geo.spatial.fences import Outlines
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Bools, Floats, Ints, Points, distinct, expand

_EDGES_AT_ONCE: Final = 1 << 17  # what fits a core's cache


def border_distance_m(outlines: Outlines, fence: Ints, lon: Floats, lat: Floats) -> Floats:
    """Metres from each point to the border of its fence, by the radii of curvature at the point.

    Within 1e-3 of the geodesic distance up to some kilometres: made for hysteresis, not for metering. Where a fence
    goes on beyond 180° the cut is no border; nor is a pole. Costs one step for each edge of the fence.
    """
    first = outlines.first_vertices()
    sizes = first[fence + 1] - first[fence] - 1
    nearest = np.full(len(fence), np.inf)
    done = np.concatenate([[0], np.cumsum(sizes)])
    begin = 0
    while begin < len(fence):
        end = max(int(np.searchsorted(done, done[begin] + _EDGES_AT_ONCE, side="right")) - 1, begin + 1)
        rows = slice(begin, end)
        nearest[rows] = _nearest(outlines, first[fence[rows]], sizes[rows], lon[rows], lat[rows])
        begin = end
    return np.asarray(np.minimum(nearest, _to_an_end_at_180(outlines, fence, lon, lat)), dtype=np.float64)


def _degree_m(lat: Floats) -> Points:
    """Metres of a degree to the east and to the north."""
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.sqrt(1.0 - sine * sine))
    return east, np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)


def _to_an_end_at_180(outlines: Outlines, fence: Ints, lon: Floats, lat: Floats) -> Floats:
    """Metres from each point to where its fence ends at the antimeridian: it is on one side of that place alone."""
    nearest = np.full(len(fence), np.inf)
    for number in distinct(fence).tolist():
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


def _nearest(outlines: Outlines, first: Ints, sizes: Ints, lon: Floats, lat: Floats) -> Floats:
    point, edge = expand(first, sizes)
    east, north = (metres[point] for metres in _degree_m(lat))
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    # no borders: where the world ends, and the step from one ring of a fence to its next
    none = ((np.abs(ax) == 180.0) & (ax == bx)) | ((np.abs(ay) == 90.0) & (ay == by))
    if len(outlines.fence) > outlines.count:
        none[_between_rings(outlines, edge)] = True
    away = _metres((ax, ay, bx, by), (lon[point], lat[point]), (east, north))
    away[none] = np.inf
    return np.minimum.reduceat(away, np.cumsum(sizes) - sizes) if len(sizes) else np.zeros(0)


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
