"""Zones, decided exactly: whole numbers and fractions, so that a border is a border and nothing is nearly touching.

Coordinates are degrees times 10**12, x to the east and y to the north, straight lines between corners (RFC 7946).
"""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from simulator.truth.errors import TruthError

DEGREE = 10**12
Number = int | Fraction
OUTSIDE = ""


class ExactPoint(NamedTuple):
    """A place: degrees times 10**12."""

    x: Number
    y: Number


class Edge(NamedTuple):
    """A straight border between two corners."""

    a: ExactPoint
    b: ExactPoint


class Zone(NamedTuple):
    """A zone: polygons of rings of edges (outline first, then holes) and the box that holds them."""

    id: str
    priority: int
    polygons: tuple[tuple[tuple[Edge, ...], ...], ...]
    low: ExactPoint
    high: ExactPoint


def on_edge(point: ExactPoint, edge: Edge) -> bool:
    """Whether a point lies on a border."""
    a, b = edge
    cross = (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x)
    return cross == 0 and min(a.x, b.x) <= point.x <= max(a.x, b.x) and min(a.y, b.y) <= point.y <= max(a.y, b.y)


def within_ring(point: ExactPoint, ring: tuple[Edge, ...]) -> bool:
    """Whether a point that lies on no edge is enclosed: a ray to the east meets an odd number of edges."""
    odd = False
    for a, b in ring:
        # Half open, so that of two edges that share a corner the ray meets one.
        if (a.y > point.y) != (b.y > point.y):
            left = (b.x - a.x) * (point.y - a.y) - (point.x - a.x) * (b.y - a.y)
            odd ^= left > 0 if b.y > a.y else left < 0
    return odd


def contains(zone: Zone, point: ExactPoint) -> bool:
    """Whether a zone contains a point; every border, a hole's too, belongs to the inside."""
    if not (zone.low.x <= point.x <= zone.high.x and zone.low.y <= point.y <= zone.high.y):
        return False
    for outline, *holes in zone.polygons:
        if any(on_edge(point, edge) for ring in (outline, *holes) for edge in ring):
            return True
        if within_ring(point, outline) and not any(within_ring(point, hole) for hole in holes):
            return True
    return False


def meetings(start: ExactPoint, end: ExactPoint, edge: Edge) -> list[Fraction]:
    """Where the way from `start` (0) to `end` (1), which are not the same, meets a border, as shares of the way.

    A border that runs along the way is met where it begins and where it ends.
    """
    dx, dy = end.x - start.x, end.y - start.y
    ex, ey = edge.b.x - edge.a.x, edge.b.y - edge.a.y
    wx, wy = edge.a.x - start.x, edge.a.y - start.y
    across = dx * ey - dy * ex
    if across != 0:
        share = Fraction(wx * ey - wy * ex, across)
        along_edge = Fraction(wx * dy - wy * dx, across)
        return [share] if 0 <= share <= 1 and 0 <= along_edge <= 1 else []
    if wx * dy - wy * dx != 0:
        return []
    shares = [Fraction((c.x - start.x) * dx + (c.y - start.y) * dy, dx * dx + dy * dy) for c in edge]
    return [share for share in shares if 0 <= share <= 1]


class Zones:
    """All zones of a scenario, in the order in which they win: highest priority first, then smallest id."""

    def __init__(self, zones: list[Zone]) -> None:
        self.in_order = sorted(zones, key=lambda zone: (-zone.priority, zone.id))

    def at(self, point: ExactPoint) -> str:
        """The zone that a point belongs to; "" outside all."""
        return next((zone.id for zone in self.in_order if contains(zone, point)), OUTSIDE)

    def cuts(self, start: ExactPoint, end: ExactPoint) -> list[Fraction]:
        """Every share of the way from `start` to `end` at which it meets a border, ascending."""
        if start == end:
            return []
        found: set[Fraction] = set()
        low = ExactPoint(min(start.x, end.x), min(start.y, end.y))
        high = ExactPoint(max(start.x, end.x), max(start.y, end.y))
        for zone in self.in_order:
            if low.x <= zone.high.x and zone.low.x <= high.x and low.y <= zone.high.y and zone.low.y <= high.y:
                for polygon in zone.polygons:
                    for ring in polygon:
                        for edge in ring:
                            found.update(meetings(start, end, edge))
        return sorted(found)


def read_zones(path: Path) -> Zones:
    """The zones of a GeoJSON file, without its gates. Raises TruthError."""
    try:
        # Decimals as they are written: the nearest double lies beside the corner.
        features = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["features"]
        zones = [zone_of(feature) for feature in features if feature["properties"].get("gate") is not True]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(f"{path}: {error!r}") from error
    if len({zone.id for zone in zones}) != len(zones):
        raise TruthError(f"{path}: two versions of a fence; the truth knows one")
    return Zones(zones)


def zone_of(feature: dict[str, Any]) -> Zone:
    """The zone of a GeoJSON feature whose numbers were read as decimals. Raises KeyError, TypeError, ValueError."""
    geometry = feature["geometry"]
    polygons = {"Polygon": [geometry["coordinates"]], "MultiPolygon": geometry["coordinates"]}[geometry["type"]]
    rings = tuple(tuple(_ring(ring) for ring in polygon) for polygon in polygons)
    corners = [edge.a for polygon in rings for ring in polygon for edge in ring]
    low = ExactPoint(min(corner.x for corner in corners), min(corner.y for corner in corners))
    high = ExactPoint(max(corner.x for corner in corners), max(corner.y for corner in corners))
    return Zone(feature["properties"]["id"], int(feature["properties"]["priority"]), rings, low, high)


def _ring(positions: list[Any]) -> tuple[Edge, ...]:
    corners = [ExactPoint(_scaled(position[0]), _scaled(position[1])) for position in positions]
    if corners[0] != corners[-1]:
        raise ValueError("a ring that is not closed")
    return tuple(Edge(corners[i], corners[i + 1]) for i in range(len(corners) - 1))


def _scaled(degrees: Decimal | int) -> int:
    return int((Decimal(degrees) * DEGREE).to_integral_value())
