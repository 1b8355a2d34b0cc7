"""A flat map around a city: metres east and north of its centre, and back to degrees.

Good to a few parts in a thousand over some kilometres, which is all that made-up streets need; what is measured and
billed is computed from the degrees, never from these metres.
"""

import math
from typing import NamedTuple

METRES_PER_DEGREE = 111_320.0


class PlanePoint(NamedTuple):
    """Metres east (`x`) and north (`y`) of the centre of the plane."""

    x: float
    y: float


class Plane(NamedTuple):
    """The flat map around (`latitude`, `longitude`)."""

    latitude: float
    longitude: float

    def degrees(self, point: PlanePoint) -> tuple[float, float]:
        """(latitude, longitude) of a point."""
        east = METRES_PER_DEGREE * math.cos(math.radians(self.latitude))
        return self.latitude + point.y / METRES_PER_DEGREE, self.longitude + point.x / east


def heading_deg(start: PlanePoint, end: PlanePoint) -> float:
    """Degrees clockwise from north, 0 up to 360, from `start` to `end`."""
    return math.degrees(math.atan2(end.x - start.x, end.y - start.y)) % 360.0


def distance_m(start: PlanePoint, end: PlanePoint) -> float:
    """Metres between two points of one plane."""
    return math.hypot(end.x - start.x, end.y - start.y)


def rotated(point: PlanePoint, angle_rad: float) -> PlanePoint:
    """`point` turned counter-clockwise about the centre."""
    cos, sin = math.cos(angle_rad), math.sin(angle_rad)
    return PlanePoint(point.x * cos - point.y * sin, point.x * sin + point.y * cos)
