"""Where the vehicles of the load and those that are timed drive, and the fences there. Pure.

The town is a grid of square yards, a fence each. A vehicle of the load drives to and fro along a track at 20 m/s; half
of the tracks lead through yards. East of the town is a border for each timed vehicle, a gate or the side of a fence,
and it crosses it with each of its fixes: so each fix has an alert, and an alert is the answer to one fix.
"""

from __future__ import annotations

import math
from typing import Any, Final

ROWS, COLUMNS = 25, 40
_CELL_M: Final = 200.0
_YARD_M: Final = 100.0
_SOUTH, _WEST = 50.0, 8.0
_DEGREE_M: Final = 111_320.0
_TRACKS_M: Final = (20.0, 40.0, 60.0, 80.0, 120.0, 140.0, 160.0, 180.0)
"""Of each row of cells, half of them through yards. None along a side: on which side who drives there is, is in doubt,
and what is said of it depends on how fixes come (docs/alerts.md)."""
_SPEED_MPS: Final = 20.0
_LENGTH_M: Final = COLUMNS * _CELL_M
_BORDER_M: Final = _LENGTH_M + 2_000.0
_APART_M: Final = 300.0
_FROM_BORDER_M: Final = 20.0
"""So far from its border each fix of a timed vehicle is: beyond the 10 m within which nothing counts."""
Place = tuple[float, float]
"""Latitude and longitude."""


def place(east_m: float, north_m: float) -> Place:
    """So far from the south-western corner of the town."""
    return (
        _SOUTH + north_m / _DEGREE_M,
        _WEST + east_m / (_DEGREE_M * math.cos(math.radians(_SOUTH))),
    )


def on_track(number: int, at_s: float) -> Place:
    """Where a vehicle of the load is so long after the beginning."""
    driven_m = (number * 37.0 + _SPEED_MPS * at_s) % (2 * _LENGTH_M)
    row, track = divmod(number % (ROWS * len(_TRACKS_M)), len(_TRACKS_M))
    return place(min(driven_m, 2 * _LENGTH_M - driven_m), row * _CELL_M + _TRACKS_M[track])


def at_border(number: int, fix: int) -> Place:
    """Where a timed vehicle is at its fix of that number: on the other side than at the one before."""
    return place(_BORDER_M + (_FROM_BORDER_M if fix % 2 else -_FROM_BORDER_M), number * _APART_M)


def features(timed: int) -> list[dict[str, Any]]:
    """The yards, and a border for each timed vehicle."""
    yards = [
        _yard(f"yard-{row}-{column}", column * _CELL_M + 50.0, row * _CELL_M)
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    return yards + [_border(number) for number in range(timed)]


def _border(number: int) -> dict[str, Any]:
    north_m = number * _APART_M
    if number % 2:
        return _yard(f"depot-{number}", _BORDER_M, north_m - _YARD_M / 2)
    line = [_point(_BORDER_M, north_m - 50.0), _point(_BORDER_M, north_m + 50.0)]
    geometry = {"type": "LineString", "coordinates": line}
    return {"type": "Feature", "properties": {"id": f"gate-{number}", "gate": True}, "geometry": geometry}


def _yard(name: str, west_m: float, south_m: float) -> dict[str, Any]:
    east_m, north_m = west_m + _YARD_M, south_m + _YARD_M
    corners = ((west_m, south_m), (east_m, south_m), (east_m, north_m), (west_m, north_m), (west_m, south_m))
    ring = [_point(*corner) for corner in corners]
    return {"type": "Feature", "properties": {"id": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def _point(east_m: float, north_m: float) -> list[float]:
    latitude, longitude = place(east_m, north_m)
    return [longitude, latitude]
