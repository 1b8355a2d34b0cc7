"""Gates, decided exactly: whether the way between two fixes goes from one side of a line to the other."""

import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from simulator.truth.errors import TruthError
from simulator.truth.shapes import DEGREE, Edge, ExactPoint, meetings


class TrueGate(NamedTuple):
    """A line that counts who crosses it, in either direction."""

    id: str
    corners: tuple[ExactPoint, ...]

    def crossings(self, start: ExactPoint, end: ExactPoint) -> list[tuple[Fraction, bool]]:
        """Where the straight way crosses it, in order, as shares of the way, and whether from the left.

        A fix on the line is on its left; both ends belong to the line. Raises TruthError for a way through a corner
        between two edges: that is not decided here.
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
    """The gates of a GeoJSON file; its zones are left to `read_zones`. Raises TruthError."""
    try:
        features = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["features"]
        gates = tuple(_gate(feature) for feature in features if _is_gate(feature))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TruthError(f"{path}: {error!r}") from error
    if len({gate.id for gate in gates}) != len(gates):
        raise TruthError(f"{path}: two versions of a gate; the truth knows one")
    return gates


def _is_gate(feature: dict[str, Any]) -> bool:
    return feature["properties"].get("gate") is True


def _gate(feature: dict[str, Any]) -> TrueGate:
    positions: Sequence[Any] = feature["geometry"]["coordinates"]
    corners = tuple(ExactPoint(*(int(Decimal(value) * DEGREE) for value in position[:2])) for position in positions)
    return TrueGate(feature["properties"]["id"], corners)


def _is_left(edge: Edge, point: ExactPoint) -> bool:
    a, b = edge
    return (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x) >= 0


def _along(start: ExactPoint, end: ExactPoint, edge: Edge) -> Fraction:
    """Where on the line through an edge (0 at its begin, 1 at its end) a way meets it that is not parallel to it."""
    dx, dy = end.x - start.x, end.y - start.y
    ex, ey = edge.b.x - edge.a.x, edge.b.y - edge.a.y
    wx, wy = edge.a.x - start.x, edge.a.y - start.y
    return Fraction(wx * dy - wy * dx, dx * ey - dy * ex)
