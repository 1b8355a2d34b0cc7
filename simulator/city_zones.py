"""The zones of a city: drawn once on a square from -1 to 1, then laid over any extent.

Each shape is there because it is awkward: a hole, an overlap that priorities decide, and a bay (a concave outline).
Corners get half a unit beyond the seventh decimal, so that no fix (a whole number of 1e-7 degrees) lies on a straight
north-south or east-west border by accident; tests put fixes on borders on purpose.
"""

from collections.abc import Callable
from typing import NamedTuple

from simulator.plane import Plane, PlanePoint
from simulator.scenario import LonLat, Ring, ScenarioFence

# A recorded track may stand on one spot, and its zones need an area.
LEAST_HALF_DEG = 0.002
Outline = tuple[tuple[float, float], ...]


class Shape(NamedTuple):
    """A zone on the unit square: its name after the prefix, its priority and its rings, not yet closed."""

    name: str
    priority: int
    rings: tuple[Outline, ...]


SHAPES = (
    Shape("centre", 30, (((-0.21, -0.17), (0.03, -0.26), (0.24, -0.12), (0.22, 0.16), (-0.04, 0.25), (-0.24, 0.13)),)),
    Shape(
        "ring",
        10,
        (
            ((-0.62, -0.53), (0.57, -0.61), (0.66, 0.52), (-0.55, 0.6)),
            ((-0.36, -0.31), (-0.33, 0.37), (0.38, 0.33), (0.34, -0.35)),
        ),
    ),
    Shape("harbour", 25, (((0.41, -0.97), (0.95, -0.88), (0.92, -0.31), (0.47, -0.27)),)),
    Shape("depot", 20, (((0.27, -0.79), (0.68, -0.76), (0.71, -0.47), (0.29, -0.44)),)),
    Shape(
        "bend",
        15,
        (((-0.96, 0.31), (-0.35, 0.36), (-0.37, 0.57), (-0.72, 0.53), (-0.74, 0.74), (-0.33, 0.77), (-0.31, 0.95),
          (-0.93, 0.92)),),
    ),
)  # fmt: skip


def city_fences(prefix: str, plane: Plane, half_side_m: float) -> tuple[ScenarioFence, ...]:
    """The zones of the city whose square reaches `half_side_m` metres in each direction from the plane's centre."""

    def place(x: float, y: float) -> LonLat:
        latitude, longitude = plane.degrees(PlanePoint(x * half_side_m, y * half_side_m))
        return longitude, latitude

    return tuple(_fence(prefix, shape, place) for shape in SHAPES)


def extent_fences(prefix: str, west: float, south: float, east: float, north: float) -> tuple[ScenarioFence, ...]:
    """The zones laid over an extent given in degrees."""

    half_width, half_height = max((east - west) / 2, LEAST_HALF_DEG), max((north - south) / 2, LEAST_HALF_DEG)

    def place(x: float, y: float) -> LonLat:
        return (west + east) / 2 + x * half_width, (south + north) / 2 + y * half_height

    return tuple(_fence(prefix, shape, place) for shape in SHAPES)


def _fence(prefix: str, shape: Shape, place: Callable[[float, float], LonLat]) -> ScenarioFence:
    rings: list[Ring] = []
    for outline in shape.rings:
        corners = tuple(_off_grid(place(x, y)) for x, y in outline)
        # A ring of GeoJSON ends where it begins (RFC 7946).
        rings.append((*corners, corners[0]))
    return ScenarioFence(id=f"{prefix}-{shape.name}", priority=shape.priority, rings=tuple(rings))


def _off_grid(corner: LonLat) -> LonLat:
    longitude, latitude = corner
    # Rounded again: a sum of doubles has digits that are not meant, and the file has them all.
    return round(round(longitude, 7) + 5e-8, 8), round(round(latitude, 7) + 5e-8, 8)
