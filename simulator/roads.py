"""The streets of an invented city: an uneven, rotated grid with main streets, missing blocks and speed limits."""

import heapq
import math
from itertools import pairwise
from random import Random
from typing import NamedTuple

# A flat map: metres east and north of the centre, and degrees.

METRES_PER_DEGREE = 111_320.0


class PlanePoint(NamedTuple):
    """Metres east (`x`) and north (`y`) of the plane's centre."""

    x: float
    y: float


class Plane(NamedTuple):
    """A flat map around a place."""

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
    return math.hypot(end.x - start.x, end.y - start.y)


def rotated(point: PlanePoint, angle_rad: float) -> PlanePoint:
    """The point rotated counter-clockwise about the centre."""
    cos, sin = math.cos(angle_rad), math.sin(angle_rad)
    return PlanePoint(point.x * cos - point.y * sin, point.x * sin + point.y * cos)


MAIN_STREET_EVERY = 4
MAIN_LIMIT_MPS = 70 / 3.6
SIDE_LIMITS_MPS = (50 / 3.6, 50 / 3.6, 30 / 3.6)
BLOCK_M = (210.0, 430.0)
MISSING_BLOCKS = 0.08


class Street(NamedTuple):
    to: int
    length_m: float
    limit_mps: float


class Roads(NamedTuple):
    """The junctions, and the streets that leave each of them."""

    junctions: tuple[PlanePoint, ...]
    streets: tuple[tuple[Street, ...], ...]

    def route(self, start: int, goal: int) -> list[tuple[int, float]] | None:
        """The fastest route as (junction, limit of the street to it), from `start`; None if there is none."""
        best: dict[int, float] = {start: 0.0}
        came_by: dict[int, tuple[int, float]] = {}
        queue = [(0.0, start)]
        while queue:
            time_s, here = heapq.heappop(queue)
            if here == goal:
                return self._walk_back(start, goal, came_by)
            # A faster route was found after this entry was pushed.
            if time_s > best[here]:
                continue
            for street in self.streets[here]:
                arrival_s = time_s + street.length_m / street.limit_mps
                if arrival_s < best.get(street.to, math.inf):
                    best[street.to] = arrival_s
                    came_by[street.to] = (here, street.limit_mps)
                    heapq.heappush(queue, (arrival_s, street.to))
        return None

    @staticmethod
    def _walk_back(start: int, goal: int, came_by: dict[int, tuple[int, float]]) -> list[tuple[int, float]]:
        way: list[tuple[int, float]] = []
        here = goal
        while here != start:
            before, limit_mps = came_by[here]
            way.append((here, limit_mps))
            here = before
        return [(start, 0.0), *reversed(way)]


def build_roads(rng: Random, half_side_m: float) -> Roads:
    """The streets of a square city that reaches `half_side_m` metres from its centre in each direction."""
    eastings, northings = _lines(rng, half_side_m), _lines(rng, half_side_m)
    turn_rad = math.radians(rng.uniform(5.0, 25.0))
    columns = len(eastings)
    junctions = tuple(
        rotated(PlanePoint(x + rng.uniform(-25, 25), y + rng.uniform(-25, 25)), turn_rad)
        for y in northings
        for x in eastings
    )
    streets: list[list[Street]] = [[] for _ in junctions]
    for row in range(len(northings)):
        line = [row * columns + column for column in range(columns)]
        _lay(line, _limit(rng, row), rng, junctions, streets)
    for column in range(columns):
        line = [row * columns + column for row in range(len(northings))]
        _lay(line, _limit(rng, column), rng, junctions, streets)
    return Roads(junctions, tuple(tuple(leaving) for leaving in streets))


def _lines(rng: Random, half_side_m: float) -> list[float]:
    lines = [-half_side_m]
    while lines[-1] < half_side_m:
        lines.append(lines[-1] + rng.uniform(*BLOCK_M))
    return lines


def _limit(rng: Random, line: int) -> float:
    return MAIN_LIMIT_MPS if line % MAIN_STREET_EVERY == 0 else rng.choice(SIDE_LIMITS_MPS)


def _lay(
    line: list[int], limit_mps: float, rng: Random, junctions: tuple[PlanePoint, ...], streets: list[list[Street]]
) -> None:
    """Lay a street along a line of junctions; a side street may miss a block."""
    for one, other in pairwise(line):
        # Main streets are complete, so that every trip has a route.
        if limit_mps < MAIN_LIMIT_MPS and rng.random() < MISSING_BLOCKS:
            continue
        length_m = distance_m(junctions[one], junctions[other])
        streets[one].append(Street(other, length_m, limit_mps))
        streets[other].append(Street(one, length_m, limit_mps))
