"""How far points are from the border of a fence."""

from __future__ import annotations

from typing import Final

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Floats, Ints, expand

_EDGES_AT_ONCE: Final = 1 << 17  # what fits a core's cache


def border_distance_m(outlines: Outlines, fence: Ints, lon: Floats, lat: Floats) -> Floats:
    """Metres from each point to the border of its fence, by the radii of curvature at the point.

    Within 1e-3 of the geodesic distance up to some kilometres: made for hysteresis, not for metering. Cuts at the
    antimeridian count as border. Costs one step for each edge of the fence.
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
    return nearest


def _nearest(outlines: Outlines, first: Ints, sizes: Ints, lon: Floats, lat: Floats) -> Floats:
    point, edge = expand(first, sizes)
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.sqrt(1.0 - sine * sine))[point]
    north = np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)[point]
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    ax, ay, bx, by = (
        (ax - lon[point]) * east,
        (ay - lat[point]) * north,
        (bx - lon[point]) * east,
        (by - lat[point]) * north,
    )
    dx, dy = bx - ax, by - ay
    square = dx * dx + dy * dy
    along = np.divide(-(ax * dx + ay * dy), square, out=np.zeros(len(dx)), where=square > 0)
    along = np.clip(along, 0.0, 1.0)
    away = np.hypot(ax + along * dx, ay + along * dy)
    # the step from one ring of a fence to its next is no edge
    if len(outlines.fence) > outlines.count:
        away[_between_rings(outlines, edge)] = np.inf
    return np.minimum.reduceat(away, np.cumsum(sizes) - sizes) if len(sizes) else np.zeros(0)


def _between_rings(outlines: Outlines, edge: Ints) -> Ints:
    ring = np.searchsorted(outlines.rings, edge, side="right")
    return np.flatnonzero(outlines.rings[ring] == edge + 1)
