"""Which publications of fences a track may have met, by boxes around their coordinates: no shape is made. Pure.

A fence elsewhere changes nothing of a way, so of a hundred thousand only those near it are validated and made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import cos, inf, radians
from typing import Final, NamedTuple

from geo.spatial.ragged import Floats

_LEAST_METRES_A_DEGREE: Final = 110_000.0
"""Of latitude there is no degree that is shorter."""
_SLACK_DEG: Final = 1e-6
"""A border that is so near may be met: coordinates are compared after rounding."""
_WIDTHS: Final = {"Point": "radius_m", "LineString": "width_m"}
"""What says how far beside its positions a circle or a corridor reaches."""
_DECODER: Final = json.JSONDecoder()


class TrackBox(NamedTuple):
    """Between which degrees all fixes of a track lie, and so the straight ways between them."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def around(cls, longitudes: Floats, latitudes: Floats) -> TrackBox | None:
        """That of some fixes; None: of a way over the antimeridian, which has all of the world around it."""
        if not len(longitudes):
            # nothing is near no track
            return cls(inf, inf, -inf, -inf)
        low, high = (longitudes.min(), latitudes.min()), (longitudes.max(), latitudes.max())
        found = cls(*(float(one) - _SLACK_DEG for one in low), *(float(one) + _SLACK_DEG for one in high))
        return None if _is_around_the_world(found.west, found.east) else found


def ids_near(bodies: Iterable[tuple[str, str]], track: TrackBox) -> set[str]:
    """Of pairs of a fence's id and the text of a publication the ids of which any publication may lie near a track.

    All publications of an id belong together: one decides from when to when another one holds, and whether it does.
    """
    return {name for name, body in bodies if _may_be_near(body, track)}


def _may_be_near(body: str, track: TrackBox) -> bool:
    """Also a text that cannot be read may be: whether it can be used is for others to say."""
    try:
        feature, _ = _DECODER.raw_decode(body)
        geometry = feature["geometry"]
        kind, positions = geometry["type"], geometry["coordinates"]
        if kind == "Polygon":
            positions = [one for ring in positions for one in ring]
        elif kind == "MultiPolygon":
            positions = [one for rings in positions for ring in rings for one in ring]
        elif kind == "Point":
            positions = [positions]
        latitudes = [one[1] for one in positions]
        south, north = min(latitudes), max(latitudes)
        longitudes = [one[0] for one in positions]
        west, east = min(longitudes), max(longitudes)
        if kind in _WIDTHS and (width_m := (feature.get("properties") or {}).get(_WIDTHS[kind])):
            margin = float(width_m) / _LEAST_METRES_A_DEGREE
            south, north = south - margin, north + margin
            # a degree of longitude is the shortest where the latitude is highest
            narrowest = cos(radians(min(max(abs(south), abs(north)), 90.0)))
            around = margin / narrowest if narrowest > margin / 180.0 else 360.0
            west, east = west - around, east + around
        is_apart = west > track.east or east < track.west or south > track.north or north < track.south
        return not is_apart or _is_around_the_world(west, east)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, AttributeError):
        return True


def _is_around_the_world(west: float, east: float) -> bool:
    return east - west >= 180.0 or west <= -180.0 or east >= 180.0
