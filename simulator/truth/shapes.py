"""Zones with exact arithmetic (integers and fractions), so that borders need no tolerance.

Coordinates are degrees times 10**12, x east and y north, with straight lines between corners (RFC 7946).
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

# Errors.


class TruthError(Exception):
    """A file of the scenario or the journal is wrong; the message names file and line."""


DEGREE = 10**12
Number = int | Fraction
OUTSIDE = ""


class ExactPoint(NamedTuple):
    x: Number
    y: Number


class Edge(NamedTuple):
    a: ExactPoint
    b: ExactPoint


class Zone(NamedTuple):
    """Polygons of rings of edges (outline first, then holes), and their bounding box."""

    id: str
    priority: int
    polygons: tuple[tuple[tuple[Edge, ...], ...], ...]
    low: ExactPoint
    high: ExactPoint


def on_edge(point: ExactPoint, edge: Edge) -> bool:
    a, b = edge
    cross = (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x)
    return cross == 0 and min(a.x, b.x) <= point.x <= max(a.x, b.x) and min(a.y, b.y) <= point.y <= max(a.y, b.y)


def within_ring(point: ExactPoint, ring: tuple[Edge, ...]) -> bool:
    """Whether a point that is on no edge is enclosed: a ray to the east meets an odd number of edges."""
    odd = False
    for a, b in ring:
        # Half open, so that the ray meets only one of two edges with a common corner.
        if (a.y > point.y) != (b.y > point.y):
            left = (b.x - a.x) * (point.y - a.y) - (point.x - a.x) * (b.y - a.y)
            odd ^= left > 0 if b.y > a.y else left < 0
    return odd


def contains(zone: Zone, point: ExactPoint) -> bool:
    """Whether a zone contains a point. Every border, also of a hole, is inside."""
    if not (zone.low.x <= point.x <= zone.high.x and zone.low.y <= point.y <= zone.high.y):
        return False
    for outline, *holes in zone.polygons:
        if any(on_edge(point, edge) for ring in (outline, *holes) for edge in ring):
            return True
        if within_ring(point, outline) and not any(within_ring(point, hole) for hole in holes):
            return True
    return False


def meetings(start: ExactPoint, end: ExactPoint, edge: Edge) -> list[Fraction]:
    """The shares of the way from `start` (0) to `end` (1) at which it meets a border; the two points differ.

    A border along the way is met at its beginning and its end.
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
    """All zones in the order in which they win: highest priority first, then smallest id."""

    def __init__(self, zones: list[Zone]) -> None:
        self.in_order = sorted(zones, key=lambda zone: (-zone.priority, zone.id))

    def at(self, point: ExactPoint) -> str:
        """The zone of a point; "" outside all."""
        return next((zone.id for zone in self.in_order if contains(zone, point)), OUTSIDE)

    def cuts(self, start: ExactPoint, end: ExactPoint) -> list[Fraction]:
        """The shares of the way at which it meets a border, ascending."""
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
        # Decimals, because the nearest double is beside the corner.
        features = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["features"]
        zones = [zone_of(feature) for feature in features if feature["properties"].get("gate") is not True]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(f"{path}: {error!r}") from error
    if len({zone.id for zone in zones}) != len(zones):
        raise TruthError(f"{path}: two versions of a fence; the truth knows one")
    return Zones(zones)


def zone_of(feature: dict[str, Any]) -> Zone:
    """The zone of a GeoJSON feature with decimal numbers. Raises KeyError, TypeError, ValueError."""
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


# Exact crossings of gates.


class TrueGate(NamedTuple):
    """A line that counts crossings in both directions."""

    id: str
    corners: tuple[ExactPoint, ...]

    def crossings(self, start: ExactPoint, end: ExactPoint) -> list[tuple[Fraction, bool]]:
        """The crossings of a straight way: the share of the way, and whether it comes from the left.

        A fix on the line counts as left; both ends belong to the line. Raises TruthError for a way through an inner
        corner.
        """
        edges = [Edge(a, b) for a, b in pairwise(self.corners)]
        return sorted(
            (meetings(start, end, edge)[0], _is_left(edge, start))
            for number, edge in enumerate(edges)
            if self._crosses(start, end, edge, number, len(edges) - 1)
        )

    def _crosses(self, start: ExactPoint, end: ExactPoint, edge: Edge, number: int, last: int) -> bool:
        if _is_left(edge, start) == _is_left(edge, end):
            return False
        along = _along(start, end, edge)
        if (along == 0 and number > 0) or (along == 1 and number < last):
            raise TruthError(f"gate {self.id}: a way goes through one of its corners, which the truth does not decide")
        return 0 <= along <= 1


def read_gates(path: Path) -> tuple[TrueGate, ...]:
    """The gates of a GeoJSON file. Raises TruthError."""
    try:
        features = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["features"]
        gates = tuple(gate_of(feature) for feature in features if feature["properties"].get("gate") is True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(f"{path}: {error!r}") from error
    if len({gate.id for gate in gates}) != len(gates):
        raise TruthError(f"{path}: two versions of a gate; the truth knows one")
    return gates


def gate_of(feature: dict[str, Any]) -> TrueGate:
    positions: Sequence[Any] = feature["geometry"]["coordinates"]
    corners = tuple(ExactPoint(*(int(Decimal(value) * DEGREE) for value in position[:2])) for position in positions)
    return TrueGate(feature["properties"]["id"], corners)


def _is_left(edge: Edge, point: ExactPoint) -> bool:
    a, b = edge
    return (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x) >= 0


def _along(start: ExactPoint, end: ExactPoint, edge: Edge) -> Fraction:
    """The share of an edge's line (0 at its begin, 1 at its end) where a way that is not parallel meets it."""
    dx, dy = end.x - start.x, end.y - start.y
    ex, ey = edge.b.x - edge.a.x, edge.b.y - edge.a.y
    wx, wy = edge.a.x - start.x, edge.a.y - start.y
    return Fraction(wx * dy - wy * dx, dx * ey - dy * ex)
