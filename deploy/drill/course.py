"""The way of the devices of a drill: round a small circle, through half of a fence and over a gate each time. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from waybill.record import Position

_LATITUDE: Final = 53.44
_LONGITUDE: Final = -2.93
_SPEED_MPS: Final = 20.0
# small enough that a lap takes seconds, and each lap has its events
_RADIUS_M: Final = 50.0
# of latitude, on the sphere; good enough to lay out a course
_DEGREE_M: Final = 111_320.0
_NORTH: Final = _RADIUS_M / _DEGREE_M
_EAST: Final = _NORTH / math.cos(math.radians(_LATITUDE))

FEATURES: Final[tuple[dict[str, Any], ...]] = (
    {
        "type": "Feature",
        "properties": {"id": "drill-half"},
        "geometry": {
            "type": "Polygon",
            "coordinates": [
                [
                    [_LONGITUDE, _LATITUDE - 2 * _NORTH],
                    [_LONGITUDE + 2 * _EAST, _LATITUDE - 2 * _NORTH],
                    [_LONGITUDE + 2 * _EAST, _LATITUDE + 2 * _NORTH],
                    [_LONGITUDE, _LATITUDE + 2 * _NORTH],
                    [_LONGITUDE, _LATITUDE - 2 * _NORTH],
                ]
            ],
        },
    },
    {
        "type": "Feature",
        "properties": {"id": "drill-gate", "gate": True},
        "geometry": {
            "type": "LineString",
            "coordinates": [[_LONGITUDE - 2 * _EAST, _LATITUDE], [_LONGITUDE, _LATITUDE]],
        },
    },
)
"""An enter, an exit and a passage of the gate in each round of 16 s."""


def position_at(time_us: int, phase: float) -> Position:
    """Where a device is at a moment; `phase`: how far it is ahead of others, in radians."""
    angle = (time_us / 1e6 * _SPEED_MPS / _RADIUS_M + phase) % (2 * math.pi)
    return Position(
        latitude=_LATITUDE + _NORTH * math.sin(angle),
        longitude=_LONGITUDE + _EAST * math.cos(angle),
        speed_mps=_SPEED_MPS,
        accuracy_m=4.0,
    )
