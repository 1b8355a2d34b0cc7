"""Fences from GeoJSON (RFC 7946): every feature is used, or named with its place and the reason.

A text is one or more JSON values: FeatureCollections, arrays of Features, or lone Features (RFC 8142, one per line).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NoReturn

import numpy as np
import shapely
from pydantic import ConfigDict, Field, PlainValidator, ValidationError
from shapely import Polygon

from geo.spatial.activity import FOREVER_MS, YEARS, Activity, effective_ms
from geo.spatial.errors import FenceError
from geo.spatial.fences import Fence
from geo.spatial.fixes import valid_positions
from geo.spatial.gates import Gate
from geo.spatial.geodesic import WGS84, degree_m
from geo.spatial.ids import given_properties, id_fault, named
from geo.spatial.ragged import Floats, Ints
from geo.spatial.rings import Shape, areas, into_world, joined, refused_by_geos, world_polygon
from geo.spatial.weekly import Weekly
from waybill.settings import Settings, as_read, nearest, problem_text, without_consequences

# Circles and corridors as polygons on the ellipsoid.

TOLERANCE_M: Final = 0.01
MAX_CORNERS: Final = 4096
_MIN_CORNERS: Final = 32
_CORRIDOR_LATITUDE: Final = 89.0
_MAX_CORRIDOR_CORNERS: Final = 8192
_CORNERS_PER_POSITION: Final = 128
"""A corridor has at most `_MAX_CORRIDOR_CORNERS` corners, plus this many for each of its positions."""
_RELATIVE_TOLERANCE: Final = 1e-5  # of half a corridor's width, beyond 1 km
_OVERLAP_DEG: Final = 1.0  # parts that would only touch may miss each other by rounding
_STRAIGHT_DEG: Final = 1e-3
_METRES_A_DEGREE: Final = 110_500.0  # of latitude: the minimum anywhere


def circle(lon: float, lat: float, radius_m: float) -> Shape:
    """All places within `radius_m` of a place, as a polygon.

    Its corners lie on the geodesic circle. Between them it is off by at most 1 cm up to a radius of 33 km, where
    `MAX_CORNERS` is reached, and by radius * 1.5e-6 beyond: sides are straight in degrees, not on the ground. Sides
    that end above 80 degrees of latitude are off by more: 3 cm up to 33 km for a centre at 89.5, 1 m at 89.7, and
    radius * 1.6e-3 beyond less than two corners. Raises `FenceError`.
    """
    if not TOLERANCE_M <= radius_m <= 9_000_000.0:
        raise FenceError(f"radius_m {radius_m} is not between 1 cm and 9,000 km")
    ring = _arc(lon, lat, radius_m, 0.0, 360.0)
    return world_polygon([[np.vstack([ring[:-1], ring[:1]])]])


@refused_by_geos()
def corridor(line: Floats, width_m: float) -> Shape:
    """All places within half of `width_m` of a line (n, 2), straight in degrees between its positions.

    To 1 cm up to a width of 2 km, and to 1e-5 of half the width beyond. Raises `FenceError`, also for a corridor that
    reaches beyond 89 degrees of latitude, that needs more corners than its positions account for, or that crosses
    itself everywhere.
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
        raise FenceError(f"the corridor needs more than {most:,} corners: too long, or too many bends, for its width")
    sides = zip(line[:-1], line[1:], steps.tolist(), strict=True)
    parts = [_fan(bend, radius_m) for bend in bends]
    parts += [_side_to_side(start, end, radius_m, count) for start, end, count in sides]
    return into_world(joined(areas(shapely.union_all(shapely.make_valid(np.array(parts))))))


@dataclass(frozen=True, slots=True)
class _Bend:
    """The arc around a position of a line from one azimuth to another, anticlockwise, with this many sides."""

    place: Floats
    start_deg: float
    end_deg: float
    corners: int


def _arc(lon: float, lat: float, radius_m: float, start_deg: float, end_deg: float) -> Floats:
    """Points at a distance from a place, over azimuths falling from end to start: counterclockwise."""
    whole = np.pi / np.arccos(1.0 - min(TOLERANCE_M / radius_m, 0.01))
    count = int(np.clip(np.ceil(whole * (end_deg - start_deg) / 360.0), _MIN_CORNERS, MAX_CORNERS)) + 1
    return _from(np.array([[lon, lat]]), np.linspace(end_deg, start_deg, count), radius_m)


def _from(places: Floats, azimuth: Floats, metres: float) -> Floats:
    """The ends of geodesics from places (n or 1), with longitudes within 180° of theirs."""
    lon, lat = np.broadcast_to(places[:, 0], len(azimuth)), np.broadcast_to(places[:, 1], len(azimuth))
    lons, lats, _ = WGS84.fwd(lon, lat, azimuth, np.full(len(azimuth), metres))
    return np.column_stack([lon + np.mod(lons - lon + 180.0, 360.0) - 180.0, lats])


def _distinct(line: Floats) -> Floats:
    """The positions of a line without repetitions; each edge over more than 180 degrees goes the short way."""
    if line.ndim != 2 or len(line) < 2:
        raise FenceError("a line needs two positions")
    if not np.isfinite(line).all() or (np.abs(line[:, 1]) > 90).any() or (np.abs(line[:, 0]) > 180).any():
        raise FenceError("a position is not valid: longitude first, then latitude within ±90")
    step = np.diff(line[:, 0])
    turns = np.cumsum(-360.0 * np.sign(step) * (np.abs(step) > 180.0))
    line = np.column_stack([line[:, 0] + np.append(0.0, turns), line[:, 1]])
    return np.asarray(line[np.append(True, (np.diff(line, axis=0) != 0.0).any(axis=1))])


def _azimuth(step: Floats, lat: Floats) -> Floats:
    """The azimuth of a line that is straight in degrees, at some of its latitudes."""
    east, north = degree_m(lat)
    return np.degrees(np.arctan2(step[..., 0] * east, step[..., 1] * north))


def _tolerance_m(radius_m: float) -> float:
    return max(TOLERANCE_M, radius_m * _RELATIVE_TOLERANCE)


def _steps(line: Floats, radius_m: float) -> Ints:
    """The number of parts of each edge: a side that is straight in degrees then keeps its distance from the edge.

    The offset of such a line by `radius_m` bends by less than radius / R² (3 + 10 tan² latitude) a metre.
    """
    step, lat = np.abs(np.diff(line, axis=0)), np.abs(line[:, 1])
    high, low = (
        np.maximum(lat[:-1], lat[1:]),
        np.where(line[:-1, 1] * line[1:, 1] < 0, 0.0, np.minimum(lat[:-1], lat[1:])),
    )
    steep = np.tan(np.radians(np.minimum(high + radius_m / _METRES_A_DEGREE, _CORRIDOR_LATITUDE)))
    bent = radius_m / WGS84.a**2 * (3.0 + 10.0 * steep**2)
    length = np.hypot(step[:, 0] * degree_m(low)[0], step[:, 1] * degree_m(high)[1])
    return np.ceil(length / np.sqrt(8.0 * _tolerance_m(radius_m) / bent)).astype(np.int64)


def _bends(line: Floats, radius_m: float) -> list[_Bend]:
    """Half a circle at both ends, and at each position between them the arc of its outer side."""
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
    return _Bend(line[corner], start_deg, start_deg + angle_deg, int(np.ceil(whole * angle_deg / 360.0)))


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


# The features of a text.

MAX_TEXT_CHARS: Final = 1 << 28
_BLANK: Final = re.compile(r"[ \t\r\n\x1e]*")  # with the record separator of RFC 8142
_COLLECTION: Final = "FeatureCollection"
_WGS84: Final = re.compile(r"WGS[ _]?84|(.*[:/])?CRS:?84H?|.*EPSG.*\b(4326|4979)(/PROJ4)?/?")
"""Names of WGS84 in capitals: EPSG:4326, OGC:CRS84, and these as URN or address."""
_SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Feature:
    """One decoded feature, or the fault of a place that has none. `place` is its number in the text."""

    place: str
    value: dict[str, Any]
    fault: str | None = None


def read_features(text: str) -> Iterator[Feature]:
    """Every feature of a text, and every fault of it, in order. Nothing after a place that is not JSON is read."""
    if len(text) > MAX_TEXT_CHARS:
        yield Feature("feature 1", {}, f"the text is longer than {MAX_TEXT_CHARS:,} characters: split it")
        return
    at, number = _skip_blank(text, 0), 0
    while at < len(text):
        try:
            document, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield Feature(f"feature {number + 1}", {}, f"not JSON: {error}; nothing after it is read")
            return
        features, fault = _members(document)
        if fault:
            number += 1
            yield Feature(f"feature {number}", {}, f"{fault}; no feature of the collection is used")
            features = []
        for value in features:
            number += 1
            yield _feature(f"feature {number}", value)
        at = _skip_blank(text, at)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a member twice")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# By itself the decoder takes NaN and Infinity, which are not JSON, and the last of members with one name.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)


def _skip_blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string


def _members(document: Any) -> tuple[list[Any], str]:
    """The features of a collection or list, and the fault of the collection. Anything else stands for itself."""
    if isinstance(document, list):
        return document, ""
    if isinstance(document, dict) and document.get("type", _COLLECTION) == _COLLECTION:
        features = document.get("features")
        if isinstance(features, list):
            return features, _crs_fault(document.get("crs"))
    return [document], ""


def _feature(place: str, value: Any) -> Feature:
    if isinstance(value, dict):
        return Feature(place, value)
    return Feature(place, {}, f"it is not a Feature but a {type(value).__name__}")


def _crs_fault(value: object) -> str:
    """Why a member `crs` (of GeoJSON 2008) cannot be used; "" for WGS84 by any of its names, and for no `crs`.

    Other systems are refused: positions converted by a guess, or without the right grid, are metres off and billed.
    """
    if value is None:
        return ""
    shown = _crs_name(value)[:_SHOWN_CHARS]
    if _WGS84.fullmatch(shown.strip().upper()):
        return ""
    said = f"is {shown!r}" if shown else "names no system that is known"
    return (
        f"its crs {said}, and positions are WGS84 (longitude, latitude): convert the file, for instance with "
        "`ogr2ogr -f GeoJSON -t_srs EPSG:4326 -lco RFC7946=YES NEW.geojson OLD.geojson`"
    )


def _crs_name(value: object) -> str:
    """The name, link or EPSG code that is written; "" for none."""
    if isinstance(value, str):
        return value
    given = value.get("properties") if isinstance(value, dict) else None
    if not isinstance(given, dict):
        return ""
    code = given.get("code")
    names = [given.get("name"), given.get("href"), f"EPSG:{code}" if isinstance(code, int | str) else None]
    return next((name for name in names if isinstance(name, str)), "")


# The properties of a feature.


def _instant_ms(value: Any) -> int:
    try:
        time = datetime.fromisoformat(value)
        offset = time.utcoffset()
    except (TypeError, ValueError):
        raise ValueError("it is not an ISO 8601 time") from None
    if offset is None:
        raise ValueError("it has no offset from UTC")
    # By hand: astimezone() raises where the time in UTC lies outside the years 1 to 9999.
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC) - offset) // timedelta(milliseconds=1)


_Positive = Annotated[float, Field(gt=0, strict=True)]
_Instant = Annotated[int, PlainValidator(_instant_ms)]


class _Properties(Settings):
    """The properties that have a meaning here. Others are the publisher's own. Instants are Unix milliseconds."""

    model_config = ConfigDict(extra="ignore")

    gate: Annotated[bool, Field(strict=True)] = False
    radius_m: _Positive | None = None
    width_m: _Positive | None = None
    priority: Annotated[int, Field(strict=True, gt=-(1 << 53), lt=1 << 53)] = 0
    speed_limit_mps: _Positive | None = None
    effective_from: _Instant | None = None
    effective_until: _Instant | None = None
    weekly: Weekly | None = None

    def active(self) -> Activity:
        """When the version is in force. Raises FenceError if that is never."""
        span = Activity([(self.effective_from, self.effective_until)])
        if not span.ever():
            raise FenceError("effective_until is not after effective_from")
        active = span if self.weekly is None else span & self.weekly.activity()
        if not active.ever():
            raise FenceError(
                "it is never in force: between its effective_from and effective_until no weekly window is open"
                f" (they hold from {YEARS[0]} to {YEARS[1] - 1})"
            )
        return active

    def check_geometry(self, kind: str) -> None:
        """Raises FenceError for a property that makes a shape of another geometry: nobody guesses what was meant."""
        given = {"radius_m": self.radius_m is not None, "width_m": self.width_m is not None, "gate": self.gate}
        for name, belongs in (("radius_m", "Point"), ("width_m", "LineString"), ("gate", "LineString")):
            if given[name] and kind != belongs:
                raise FenceError(f"{name} needs a {belongs}, not a {kind!r}")
        if self.gate and self.width_m is not None:
            raise FenceError("it is a gate or has a width_m, not both")


_MAX_NOTICES: Final = 20
_MAX_PROBLEMS: Final = 20
_SIMILAR: Final = 0.8
"""As much as `radius` is like `radius_m`. With less, `date` would be taken for `gate`."""
_MAX_PROPERTIES: Final = 1_000


def feature_notices(feature: dict[str, Any]) -> list[str]:
    """Properties that are ignored and look like a misspelled one."""
    given = given_properties(feature)
    known = ["id", *_Properties.model_fields]
    absent = [name for name in known if name not in given]
    notices = []
    for name in list(given)[:_MAX_PROPERTIES]:
        is_unknown = name not in known and len(name) <= _SHOWN_CHARS
        if is_unknown and (meant := nearest(name.replace("-", "_"), absent, _SIMILAR)):
            notices.append(f"the property {name!r} means nothing here, and is ignored: did you mean {meant}?")
    return notices[:_MAX_NOTICES]


# Features as fences and gates.


@dataclass(frozen=True, slots=True)
class FenceReport:
    """The usable fences and gates, and a message with its place for each refused one.

    `notices`: ignored properties of usable ones that look like a misspelled one.
    """

    fences: tuple[Fence, ...] = ()
    gates: tuple[Gate, ...] = ()
    refused: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


MAX_REFUSED: Final = 10_000
"""This many refusals have a message each; the rest are counted."""
Box = tuple[float, float, float, float]
_MAX_LATITUDE: Final = 90.0
RESERVED_ID: Final = "*"  # stands for the whole track, or for a crowd
_NUMBERS: Final = frozenset({int, float})  # not true or false
_NO_POSITIONS: Final = "its coordinates are not positions of [longitude, latitude]"


def fences_from_geojson(text: str) -> FenceReport:
    """Every fence and gate of a GeoJSON text that can be used, and a message with its place for each that cannot.

    Shapes: Polygon and MultiPolygon; Point with `radius_m` (a circle); LineString with `width_m` (a corridor);
    LineString with `"gate": true`. An `id` that comes again is a later version, by its `effective_from`; the same
    beginning twice is refused, and so is an id that is both a fence and a gate. Raises nothing for any text.
    """
    fences: list[Fence] = []
    gates: list[Gate] = []
    refused, more = list[str](), 0
    notices = list[str]()
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
    if not (fences or gates or refused):
        refused.append("the text holds no GeoJSON feature")
    if more:
        refused.append(f"and {more:,} more features that cannot be used")
    return FenceReport(tuple(fences), tuple(gates), tuple(refused), tuple(notices))


def box_of(made: Fence | Gate) -> Box:
    """West, south, east, north."""
    west, south, east, north = (
        (*made.line.min(axis=0), *made.line.max(axis=0)) if isinstance(made, Gate) else made.shape.bounds
    )
    return float(west), float(south), float(east), float(north)


def latitude_first(boxes: Sequence[Box], places: Sequence[Box], margin_deg: float = 0.0) -> list[int]:
    """Which boxes (west, south, east, north) may have swapped axes: they meet no place, and would with axes swapped.

    A box beyond 180° of longitude, or whose swapped box lies beyond a pole, is not one of them.
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
    return "gate" if isinstance(made, Gate) else "fence"


def fence_of_text(text: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise FenceError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("type") != "Feature":
        raise FenceError("it is not a GeoJSON feature")
    return fence_of(Feature("", value))


def fence_of(feature: Feature) -> Fence | Gate:
    """One feature as a fence or a gate; raises `FenceError` with its id and place."""
    name = named(feature.value)
    try:
        if feature.fault is not None:
            raise FenceError(feature.fault)
        return _made(_id(name), feature.value)
    except FenceError as fault:
        shown = str(name)[:_SHOWN_CHARS] if isinstance(name, (str, int, float)) else ""
        raise FenceError(fault.reason, fence_id=shown, place=feature.place) from None


class _Known:
    """The ids read so far: of which kind, with which beginnings."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], str] = {}
        self._kinds: dict[str, type[Fence | Gate]] = {}
        self._readings: dict[str, tuple[str, str]] = {}

    def add(self, made: Fence | Gate, place: str) -> None:
        """Raises FenceError for an id that cannot stand beside those before."""
        key = made.id, effective_ms(made)
        name, where = self._readings.setdefault(as_read(made.id), (made.id, place))
        reason = ""
        if self._kinds.setdefault(made.id, type(made)) is not type(made):
            reason = "this id is a fence and a gate"
        elif name != made.id:
            reason = f"its id is written {made.id!a}, and {name!a} of {where} reads the same"
        elif key in self._places:
            reason = f"this id is used by {self._places[key]} already; another version needs another effective_from"
        if reason:
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


def _made(name: str, value: dict[str, Any]) -> Fence | Gate:
    geometry = value.get("geometry")
    if value.get("type", "Feature") != "Feature" or "features" in value:
        raise FenceError("its type is not 'Feature', or it has a member 'features'")
    if not isinstance(geometry, dict):
        raise FenceError("it has no geometry")
    if fault := _crs_fault(geometry.get("crs")) or _crs_fault(value.get("crs")):
        raise FenceError(fault)
    if not isinstance(value.get("properties") or {}, dict):
        raise FenceError("its properties are not an object")
    try:
        properties = _Properties.model_validate(given_properties(value))
    except ValidationError as error:
        details = without_consequences(error.errors(include_url=False))[:_MAX_PROBLEMS]
        raise FenceError("; ".join(problem_text(_Properties, one, "property") for one in details)) from None
    active = properties.active()
    begin = -FOREVER_MS if properties.effective_from is None else properties.effective_from
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if not isinstance(kind, str) or not isinstance(coordinates, list):
        raise FenceError("its geometry has no type or no coordinates")
    properties.check_geometry(kind[:_SHOWN_CHARS])
    if properties.gate:
        return Gate(name, _ring(coordinates), active, begin)
    return Fence(
        id=name,
        shape=_shape(kind, coordinates, properties),
        priority=properties.priority,
        active=active,
        speed_limit_mps=properties.speed_limit_mps,
        effective_from_ms=begin,
    )


def _shape(kind: str, coordinates: list[Any], properties: _Properties) -> Shape:
    if kind == "Point" and properties.radius_m is not None:
        lon, lat = _ring([coordinates])[0]
        if not valid_positions(np.array([lat]), np.array([lon])).all():
            raise FenceError("a position is not valid: longitude first, then latitude within ±90")
        return circle(float(lon), float(lat), properties.radius_m)
    if kind == "LineString" and properties.width_m is not None:
        return corridor(_ring(coordinates), properties.width_m)
    if kind not in {"Polygon", "MultiPolygon"}:
        needs = {"Point": ": a Point needs radius_m", "LineString": ": a LineString needs width_m or gate"}
        raise FenceError(f"geometry {kind[:_SHOWN_CHARS]!r} is not an area{needs.get(kind, '')}")
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
