"""Fences from GeoJSON (RFC 7946), each feature used or named with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import numpy as np
import shapely
from numpy.typing import NDArray
from pydantic import ValidationError
from shapely import MultiPolygon, Polygon

from geo.spatial.activity import FOREVER_MS, YEARS, Activity, effective_ms
from geo.spatial.errors import FenceError
from geo.spatial.features import Feature, crs_fault, feature_notices, read_features
from geo.spatial.fences import Fence
from geo.spatial.fixes import valid_positions
from geo.spatial.gates import Gate
from geo.spatial.geodesic import WGS84
from geo.spatial.ids import given_properties, id_fault, named
from geo.spatial.ragged import Floats, Ints
from geo.spatial.rings import Shape, into_world, refused_by_geos, world_polygon
from geo.spatial.weekly import weekly_faults, weekly_of
from waybill.settings import as_read

# Circles and corridors as polygons on the ellipsoid.

TOLERANCE_M: Final = 0.01
MAX_CORNERS: Final = 4096
_MIN_CORNERS: Final = 32
_CORRIDOR_LATITUDE: Final = 89.0
_MAX_CORRIDOR_CORNERS: Final = 8192
_CORNERS_PER_POSITION: Final = 128
"""A corridor has at most `_MAX_CORRIDOR_CORNERS` corners, and so many more for each of its positions."""
_UNITED_AT_ONCE: Final = 8
_RELATIVE_TOLERANCE: Final = 1e-5  # of half a corridor's width, beyond 1 km
_OVERLAP_DEG: Final = 1.0  # parts that would only touch, by rounding may not
_STRAIGHT_DEG: Final = 1e-3
_METRES_A_DEGREE: Final = 110_500.0  # of latitude: not more anywhere


def circle(lon: float, lat: float, radius_m: float) -> Shape:
    """All places within `radius_m` of a place, as a polygon.

    Its corners lie on the geodesic circle; between them it is off by at most 1 cm up to a radius of 33 km, where
    `MAX_CORNERS` is reached, and radius * 1.5e-6 beyond (sides are straight in degrees, not on the ground). Sides that
    end above 80 degrees of latitude: up to 33 km 3 cm for a centre at 89.5 and 1 m at 89.7, and beyond less than two
    corners are apart, radius * 1.6e-3. Raises `FenceError`.
    """
    if not TOLERANCE_M <= radius_m <= 9_000_000.0:
        raise FenceError(f"radius_m {radius_m} is not between 1 cm and 9,000 km")
    ring = _arc(lon, lat, radius_m, 0.0, 360.0)
    return world_polygon([[np.vstack([ring[:-1], ring[:1]])]])[0]


@refused_by_geos()
def corridor(line: Floats, width_m: float) -> Shape:
    """All places within half of `width_m` of a line (n, 2), straight in degrees between its positions.

    To 1 cm up to a width of 2 km, and to 1e-5 of half the width beyond. Raises `FenceError`, also for a corridor of
    which anything lies beyond 89 degrees of latitude, for one of more corners than its positions account for, and for
    one that crosses itself everywhere.
    """
    if not TOLERANCE_M <= width_m <= 100_000.0:
        raise FenceError(f"width_m {width_m} is not between 1 cm and 100 km")
    line, radius_m = _distinct(line), width_m / 2
    if len(line) == 1:
        return circle(float(line[0, 0]), float(line[0, 1]), radius_m)
    farthest = int(np.argmax(np.abs(line[:, 1])))
    if np.abs(line[farthest, 1]) + radius_m / _METRES_A_DEGREE > _CORRIDOR_LATITUDE:
        place = line[farthest].tolist()
        raise FenceError(f"at {place} the corridor reaches beyond {_CORRIDOR_LATITUDE:.0f}° of latitude")
    steps, bends = _steps(line, radius_m), _bends(line, radius_m)
    most = _MAX_CORRIDOR_CORNERS + _CORNERS_PER_POSITION * len(line)
    if 2 * steps.sum() + sum(bend.corners for bend in bends) > most:
        raise FenceError(f"the corridor needs more than {most:,} corners: it is too long, or turns too much, so wide")
    parts = np.array(_parts(line, steps, bends, radius_m))
    crossed = ~shapely.is_valid(parts)
    parts[crossed] = shapely.make_valid(parts[crossed])
    return into_world(_areas(_united(parts)))


def _parts(line: Floats, steps: Ints, bends: list[_Bend], radius_m: float) -> list[Polygon]:
    """What a corridor is put together from, along its line."""
    numbered = [(2 * bend.at, _fan(bend, radius_m)) for bend in bends]
    for at, count in enumerate(steps.tolist()):
        numbered.append((2 * at + 1, _side_to_side(line[at], line[at + 1], radius_m, count)))
    return [part for _, part in sorted(numbered, key=itemgetter(0))]


def _united(parts: NDArray[np.object_]) -> shapely.Geometry:
    """The union, a few neighbours at once, and then of such unions: what lies over each other along the line is gone
    before it is held against the rest.
    """
    while len(parts) > 1:
        groups = [parts[at : at + _UNITED_AT_ONCE] for at in range(0, len(parts), _UNITED_AT_ONCE)]
        parts = np.array([shapely.union_all(group) for group in groups])
    return parts[0]


@dataclass(frozen=True, slots=True)
class _Bend:
    """The arc around the position `at` of a line from one azimuth to another, anticlockwise, in so many sides."""

    at: int
    place: Floats
    start_deg: float
    end_deg: float
    corners: int


def _areas(shape: shapely.Geometry) -> Shape:
    parts = [part for part in shapely.get_parts(shape) if isinstance(part, Polygon) and part.area > 0]
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def _arc(lon: float, lat: float, radius_m: float, start_deg: float, end_deg: float) -> Floats:
    """Points at a distance from a place, over azimuths falling from end to start: counterclockwise."""
    whole = np.pi / np.arccos(1.0 - min(TOLERANCE_M / radius_m, 0.01))
    count = int(np.clip(np.ceil(whole * (end_deg - start_deg) / 360.0), _MIN_CORNERS, MAX_CORNERS)) + 1
    return _from(np.array([[lon, lat]]), np.linspace(end_deg, start_deg, count), radius_m)


def _from(places: Floats, azimuth: Floats, metres: float) -> Floats:
    """Where geodesics from places (n or 1) lead, longitudes within 180° of theirs."""
    lon, lat = np.broadcast_to(places[:, 0], len(azimuth)), np.broadcast_to(places[:, 1], len(azimuth))
    lons, lats, _ = WGS84.fwd(lon, lat, azimuth, np.full(len(azimuth), metres))
    return np.column_stack([lon + np.mod(lons - lon + 180.0, 360.0) - 180.0, lats])


def _distinct(line: Floats) -> Floats:
    """The positions of a line, each edge over more than 180 degrees by the short way; none twice in a row."""
    if line.ndim != 2 or len(line) < 2:
        raise FenceError("a line needs two positions")
    if not np.isfinite(line).all() or (np.abs(line[:, 1]) > 90).any() or (np.abs(line[:, 0]) > 180).any():
        raise FenceError("a position is not valid: longitude first, then latitude within ±90")
    step = np.diff(line[:, 0])
    turns = np.cumsum(-360.0 * np.sign(step) * (np.abs(step) > 180.0))
    line = np.column_stack([line[:, 0] + np.append(0.0, turns), line[:, 1]])
    return np.asarray(line[np.append(True, (np.diff(line, axis=0) != 0.0).any(axis=1))])


def _degree_m(lat: Floats) -> tuple[Floats, Floats]:
    """Metres of a degree to the east and to the north."""
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.cos(np.radians(lat)))
    return east, np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)


def _azimuth(step: Floats, lat: Floats) -> Floats:
    """Where a line that is straight in degrees leads, at some of its latitudes."""
    east, north = _degree_m(lat)
    return np.degrees(np.arctan2(step[..., 0] * east, step[..., 1] * north))


def _tolerance_m(radius_m: float) -> float:
    return max(TOLERANCE_M, radius_m * _RELATIVE_TOLERANCE)


def _steps(line: Floats, radius_m: float) -> Ints:
    """Into how many parts each edge goes: beside it, a side that is straight in degrees stays as far from it.

    What is `radius_m` beside such a line bends by less than radius / R² (3 + 10 tan² latitude) a metre.
    """
    step, lat = np.abs(np.diff(line, axis=0)), np.abs(line[:, 1])
    high, low = (
        np.maximum(lat[:-1], lat[1:]),
        np.where(line[:-1, 1] * line[1:, 1] < 0, 0.0, np.minimum(lat[:-1], lat[1:])),
    )
    steep = np.tan(np.radians(np.minimum(high + radius_m / _METRES_A_DEGREE, _CORRIDOR_LATITUDE)))
    bent = radius_m / WGS84.a**2 * (3.0 + 10.0 * steep**2)
    length = np.hypot(step[:, 0] * _degree_m(low)[0], step[:, 1] * _degree_m(high)[1])
    return np.ceil(length / np.sqrt(8.0 * _tolerance_m(radius_m) / bent)).astype(np.int64)


def _bends(line: Floats, radius_m: float) -> list[_Bend]:
    """Half a circle at both ends, and at each position between what its outer side needs."""
    step = np.diff(line, axis=0)
    starts, ends = _azimuth(step, line[:-1, 1]), _azimuth(step, line[1:, 1])
    last = len(line) - 1
    bends = [_bend(line, 0, starts[0] + 90.0, 180.0, radius_m), _bend(line, last, ends[-1] - 90.0, 180.0, radius_m)]
    turn = np.mod(starts[1:] - ends[:-1] + 180.0, 360.0) - 180.0
    for corner, angle in enumerate(turn.tolist(), start=1):
        # on a turn to the right (above 0) the outer side is the left one; straight on, both may be by rounding
        if angle > -_STRAIGHT_DEG:
            bends.append(_bend(line, corner, ends[corner - 1] - 90.0, max(angle, 0.0), radius_m))
        if angle < _STRAIGHT_DEG:
            bends.append(_bend(line, corner, starts[corner] + 90.0, max(-angle, 0.0), radius_m))
    return bends


def _bend(line: Floats, corner: int, start_deg: float, angle_deg: float, radius_m: float) -> _Bend:
    whole = np.pi / np.arccos(1.0 - min(0.9 * _tolerance_m(radius_m) / radius_m, 0.01))
    start_deg, angle_deg = start_deg - _OVERLAP_DEG, min(angle_deg + 2 * _OVERLAP_DEG, 360.0)
    return _Bend(corner, line[corner], start_deg, start_deg + angle_deg, int(np.ceil(whole * angle_deg / 360.0)))


def _fan(bend: _Bend, radius_m: float) -> Polygon:
    azimuth = np.linspace(bend.start_deg, bend.end_deg, bend.corners + 1)
    return Polygon(np.vstack([bend.place[None, :], _from(bend.place[None, :], azimuth, radius_m)]))


def _side_to_side(start: Floats, end: Floats, radius_m: float, steps: int) -> Polygon:
    """All places beside an edge."""
    share = np.linspace(0.0, 1.0, steps + 1)[:, None]
    places = start * (1.0 - share) + end * share
    azimuth = _azimuth(end - start, places[:, 1])
    left, right = (_from(places, azimuth + turn, radius_m) for turn in (-90.0, 90.0))
    return Polygon(np.vstack([start[None, :], left, end[None, :], right[::-1]]))


@dataclass(frozen=True, slots=True)
class FenceReport:
    """The usable fences and gates, and a message with its line for each refused or repaired one.

    `notices`: of usable ones, properties that are ignored and may be meant as one that counts.
    """

    fences: tuple[Fence, ...] = ()
    gates: tuple[Gate, ...] = ()
    refused: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


MAX_REFUSED: Final = 10_000
"""So many refusals have a message each, the others are counted."""
Box = tuple[float, float, float, float]
_MAX_LATITUDE: Final = 90.0
RESERVED_ID: Final = "*"  # begins what stands for the whole track, or for a crowd
_SHOWN_CHARS: Final = 60
_NUMBERS: Final = frozenset({int, float})  # true and false are none
_Part = TypeVar("_Part")
_NO_POSITIONS: Final = "its coordinates are not positions of [longitude, latitude]"


def fences_from_geojson(text: str) -> FenceReport:
    """Every fence and gate of a GeoJSON text that can be used, and a message with its place for each that cannot.

    Shapes: Polygon and MultiPolygon; Point with `radius_m` (a circle); LineString with `width_m` (a corridor);
    LineString with `"gate": true`. Properties: `id` (or the feature's own `id`), `priority` (0), `effective_from`,
    `effective_until` (ISO 8601 with offset), `weekly` (see `weekly.Weekly`), `speed_limit_mps`. Others are the
    publisher's own, and `null` is none. An `id` that comes again is a later version, by its `effective_from`; the same
    beginning twice is refused, and so is an id that is both a fence and a gate. Raises nothing for any text.
    """
    fences: list[Fence] = []
    gates: list[Gate] = []
    refused, more = list[str](), 0
    repaired, notices = list[str](), list[str]()
    known = _Known()
    for feature in read_features(text):
        try:
            made = fence_of(feature)
            known.add(made, feature.place)
        except FenceError as fault:
            more += len(refused) == MAX_REFUSED
            refused += [str(fault)][: MAX_REFUSED - len(refused)]
            continue
        notices += [f"{feature.place}: {kind_of(made)} {made.id!r}: {note}" for note in feature_notices(feature.value)]
        if isinstance(made, Gate):
            gates.append(made)
        else:
            fences.append(made)
            repaired += [f"{feature.place}: fence {made.id!r}: {note}" for note in made.notes]
    if not (fences or gates or refused):
        refused.append("line 1: the text holds no GeoJSON feature")
    if more:
        refused.append(f"and {more:,} more features that cannot be used")
    return FenceReport(tuple(fences), tuple(gates), tuple(refused), tuple(repaired), tuple(notices))


def box_of(made: Fence | Gate) -> Box:
    """West, south, east, north."""
    west, south, east, north = (
        (*made.line.min(axis=0), *made.line.max(axis=0)) if isinstance(made, Gate) else made.shape.bounds
    )
    return float(west), float(south), float(east), float(north)


def latitude_first(boxes: Sequence[Box], places: Sequence[Box], margin_deg: float = 0.0) -> list[int]:
    """Which boxes (west, south, east, north) may have their axes swapped: they meet no place, and would if they had.

    A box beyond 180° of longitude, or the swapped one of which lies beyond a pole, is none of them.
    """
    tree = shapely.STRtree([shapely.box(*place) for place in places])

    def meet(box: Box) -> bool:
        return len(tree.query(shapely.box(*box).buffer(margin_deg) if margin_deg else shapely.box(*box))) > 0

    return [
        number
        for number, (west, south, east, north) in enumerate(boxes)
        if max(abs(west), abs(east)) <= _MAX_LATITUDE
        and not meet((west, south, east, north))
        and meet((south, west, north, east))
    ]


def kind_of(made: Fence | Gate) -> str:
    """What a message calls it."""
    return "gate" if isinstance(made, Gate) else "fence"


def fence_of_text(text: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    features = list(islice(read_features(text), 2))
    if len(features) != 1 or not text.lstrip().startswith("{"):
        raise FenceError("it is not one GeoJSON feature")
    if features[0].fault is None and features[0].value.get("type") != "Feature":
        raise FenceError("it is not a GeoJSON feature")
    return fence_of(features[0])


def fence_of(feature: Feature) -> Fence | Gate:
    """One feature as a fence or a gate; raises `FenceError` with its id and place."""
    name = named(feature.value)
    try:
        if feature.fault is not None:
            raise FenceError(feature.fault)
        if feature.value.get("type", "Feature") != "Feature":
            raise FenceError(f"its type is {_shown(feature.value['type'])}, not 'Feature'")
        for said in (feature.value.get("geometry"), feature.value):
            if isinstance(said, dict) and (fault := crs_fault(said.get("crs"))):
                raise FenceError(fault)
        if not isinstance(feature.value.get("properties") or {}, dict):
            raise FenceError("its properties are not an object")
        return _made(_id(name), feature, given_properties(feature.value))
    except FenceError as fault:
        shown = "" if name is None else str(name)[:_SHOWN_CHARS]
        raise FenceError(fault.reason, fence_id=shown, place=feature.place) from None


class _Known:
    """The ids read so far: of which kind, with which beginnings."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], str] = {}
        self._kinds: dict[str, type[Fence | Gate]] = {}
        self._readings: dict[str, tuple[str, str]] = {}

    def add(self, made: Fence | Gate, place: str) -> None:
        if self._kinds.setdefault(made.id, type(made)) is not type(made):
            raise FenceError("this id is a fence and a gate", fence_id=made.id, place=place)
        name, where = self._readings.setdefault(as_read(made.id), (made.id, place))
        if name != made.id:
            reason = f"its id is written {made.id!a}, and {name!a} on {where} reads the same"
            raise FenceError(reason, fence_id=made.id, place=place)
        key = made.id, effective_ms(made)
        if key in self._places:
            reason = f"this id is used on {self._places[key]} already; another version needs another effective_from"
            raise FenceError(reason, fence_id=made.id, place=place)
        self._places[key] = place


def _id(name: Any) -> str:
    if name is None or name == "" or isinstance(name, (dict, list, bool)):
        raise FenceError("it has no id: set properties.id")
    text = str(name)
    fault = f"{RESERVED_ID!r} stands for the whole track" if text.startswith(RESERVED_ID) else id_fault(text)
    if fault:
        raise FenceError(f"its id cannot be used: {fault}")
    return text


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A geometry whose type is a text and whose coordinates are an array: nothing else is looked at."""

    kind: str
    coordinates: list[Any]


def _geometry(value: object) -> _Geometry:
    if not isinstance(value, dict):
        raise FenceError("it has no geometry")
    kind, coordinates = value.get("type"), value.get("coordinates")
    if not isinstance(kind, str):
        raise FenceError(f"the type of its geometry is {_shown(kind)}, not a text")
    if not isinstance(coordinates, list):
        raise FenceError(f"its geometry {_shown(kind)} has no coordinates")
    return _Geometry(kind, coordinates)


class _Parts:
    """The parts of a feature, each judged though another one has a fault."""

    def __init__(self) -> None:
        self._faults: list[str] = []

    def of(self, make: Callable[[], _Part]) -> _Part | None:
        """A part; None where it has a fault."""
        try:
            return make()
        except FenceError as fault:
            self._faults.append(fault.reason)
        except ValidationError as fault:
            self._faults.append(weekly_faults(fault))
        return None

    def check(self) -> None:
        """Raises FenceError with every fault, in one text."""
        if self._faults:
            raise FenceError("; ".join(self._faults))


def _made(name: str, feature: Feature, properties: dict[str, Any]) -> Fence | Gate:
    parts = _Parts()
    geometry = parts.of(lambda: _geometry(feature.value.get("geometry")))
    is_gate = geometry and parts.of(lambda: _is_gate(geometry.kind, properties))
    in_force = parts.of(lambda: _in_force(properties))
    if geometry and is_gate:
        line = parts.of(lambda: _ring(geometry.coordinates))
        gate = parts.of(lambda: Gate(name, line, *in_force)) if line is not None and in_force else None
        parts.check()
        assert gate is not None
        return gate
    shape = geometry and is_gate is False and parts.of(lambda: _shape(geometry, properties))
    priority = parts.of(lambda: _priority(properties.get("priority", 0)))
    limited = "speed_limit_mps" in properties
    limit = parts.of(lambda: _number(properties, "speed_limit_mps")) if limited else None
    parts.check()
    assert shape, "checked"
    assert in_force, "checked"
    assert priority is not None, "checked"
    return Fence(
        id=name,
        shape=shape[0],
        priority=priority,
        active=in_force[0],
        notes=shape[1],
        line=feature.line,
        speed_limit_mps=limit,
        effective_from_ms=in_force[1],
    )


def _is_gate(kind: str, properties: dict[str, Any]) -> bool:
    """What was meant is not guessed: a property that makes a shape of one geometry is not passed over at another."""
    gate = properties.get("gate", False)
    if not isinstance(gate, bool):
        raise FenceError(f"gate {_shown(gate)} is not true or false")
    given = {"radius_m": "radius_m" in properties, "width_m": "width_m" in properties, "gate": gate}
    for name, belongs in (("radius_m", "Point"), ("width_m", "LineString"), ("gate", "LineString")):
        if given[name] and kind != belongs:
            raise FenceError(f"{name} is for a {belongs}, not for a {_shown(kind)}")
    if gate and given["width_m"]:
        raise FenceError("it is a gate or has a width_m, not both")
    return gate


def _shape(geometry: _Geometry, properties: dict[str, Any]) -> tuple[Shape, tuple[str, ...]]:
    kind, coordinates = geometry.kind, geometry.coordinates
    if kind == "Point" and "radius_m" in properties:
        lon, lat = _ring([coordinates])[0]
        if not valid_positions(np.array([lat]), np.array([lon])).all():
            raise FenceError("a position is not valid: longitude first, then latitude within ±90")
        return circle(float(lon), float(lat), _number(properties, "radius_m")), ()
    if kind == "LineString" and "width_m" in properties:
        return corridor(_ring(coordinates), _number(properties, "width_m")), ()
    if kind not in {"Polygon", "MultiPolygon"}:
        needs = {"Point": ": a Point needs radius_m", "LineString": ": a LineString needs width_m or gate"}
        raise FenceError(f"geometry {_shown(kind)} is not an area{needs.get(kind, '')}")
    polygons = [coordinates] if kind == "Polygon" else coordinates
    if not all(isinstance(rings, list) for rings in polygons):
        raise FenceError("its coordinates are not rings of positions")
    return world_polygon([_ring(ring) for ring in rings] for rings in polygons)


def _ring(positions: Any) -> Floats:
    """Positions as columns: a JSON array of arrays of two numbers or more, and nothing that could be read as one."""
    if not isinstance(positions, list) or not all(_is_position(position) for position in positions):
        raise FenceError(_NO_POSITIONS)
    try:
        return np.array([position[:2] for position in positions], dtype=np.float64).reshape(-1, 2)
    except OverflowError:
        raise FenceError(_NO_POSITIONS) from None


def _is_position(value: Any) -> bool:
    return type(value) is list and len(value) >= 2 and _NUMBERS.issuperset(map(type, value))


def _number(properties: dict[str, Any], key: str) -> float:
    value = properties[key]
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else np.nan
    except OverflowError:
        number = np.nan
    if not 0 < number < np.inf:
        raise FenceError(f"{key} {_shown(value)} is not a number above 0")
    return number


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 53:
        raise FenceError(f"priority {_shown(value)} is not a whole number below 2^53")
    return value


def _in_force(properties: dict[str, Any]) -> tuple[Activity, int]:
    """When a version is in force, and its effective date: an earlier version ends there, whatever the windows are."""
    parts, weekly = _Parts(), properties.get("weekly")
    begin = parts.of(lambda: effective_from_ms(properties))
    until = parts.of(lambda: _instant(properties, "effective_until"))
    windows = None if weekly is None else parts.of(lambda: weekly_of(weekly).activity())
    parts.check()
    span = Activity([(begin, until)])
    if not span.ever():
        raise FenceError("effective_until is not after effective_from")
    active = span if windows is None else span & windows
    if not active.ever():
        raise FenceError(
            "it is never in force: between its effective_from and effective_until no weekly window is open"
            f" (they hold from {YEARS[0]} to {YEARS[1] - 1})"
        )
    return active, -FOREVER_MS if begin is None else begin


def effective_from_ms(properties: dict[str, Any]) -> int | None:
    """The effective date of a version in Unix ms, None for all of the past; raises `FenceError`."""
    return _instant(properties, "effective_from")


def _instant(properties: dict[str, Any], key: str) -> int | None:
    value = properties.get(key)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
        offset = time.utcoffset()
    except (TypeError, ValueError):
        raise FenceError(f"{key} {_shown(value)} is not an ISO 8601 time") from None
    if offset is None:
        raise FenceError(f"{key} {_shown(value)} has no offset from UTC")
    # By hand: astimezone() raises where the time in UTC lies outside the years 1 to 9999.
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC) - offset) // timedelta(milliseconds=1)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "of too many digits, or too deep"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
