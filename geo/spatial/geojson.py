"""Fences from GeoJSON (RFC 7946), each feature with the line it stands on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from pydantic import ValidationError

from geo.spatial.activity import Activity, begin_ms
from geo.spatial.errors import FenceError
from geo.spatial.fences import Fence
from geo.spatial.fixes import valid_positions
from geo.spatial.gates import Gate
from geo.spatial.ragged import Floats
from geo.spatial.report import FenceReport
from geo.spatial.rings import Shape, world_polygon
from geo.spatial.shapes import circle, corridor
from geo.spatial.weekly import weekly_of

_FEATURE = re.compile(r'\{\s*"type"\s*:\s*"Feature"')
_LIST = re.compile(r'"features"\s*:\s*\[')
_BLANK = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of a file: its decoded JSON, or what is wrong with it; `line` counts from 1."""

    line: int
    value: dict[str, Any]
    fault: str | None = None


def read_features(text: str) -> Iterator[Feature]:
    """The features of a FeatureCollection, of a lone Feature, or of one Feature a line; faults do not hide the rest."""
    found = _LIST.search(text)
    at = found.end() if found else 0
    decoder, line, counted = json.JSONDecoder(), 1, 0
    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # the pattern matches the empty string
        if at >= len(text) or text[at] != "{":
            return
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
            yield Feature(line, value)
        except json.JSONDecodeError as fault:
            yield Feature(line, {}, f"not JSON: {fault.msg} (line {fault.lineno})")
            following = _FEATURE.search(text, max(fault.pos, at + 1))
            if following is None:
                return
            at = following.start()


def fences_from_geojson(text: str) -> FenceReport:
    """Every fence and gate of a GeoJSON text that can be used, and a message with its line for each that cannot.

    Shapes: Polygon and MultiPolygon; Point with `radius_m` (a circle); LineString with `width_m` (a corridor);
    LineString with `"gate": true`. Properties: `id` (or the feature's own `id`), `priority` (0), `effective_from`,
    `effective_until` (ISO 8601 with offset), `weekly` (see `weekly.Weekly`), `speed_limit_mps`. Others are the
    publisher's own. An `id` that comes again is a later version, by its `effective_from`; the same beginning twice
    is refused.
    """
    fences: list[Fence] = []
    gates: list[Gate] = []
    refused: list[str] = []
    repaired: list[str] = []
    begins: dict[tuple[str, int], int] = {}
    for feature in read_features(text):
        try:
            made = fence_of(feature)
            _once(made.id, begin_ms(made.active), feature.line, begins)
        except FenceError as fault:
            refused.append(str(fault))
            continue
        if isinstance(made, Gate):
            gates.append(made)
        else:
            fences.append(made)
            repaired += [f"line {feature.line}: fence {made.id!r}: {note}" for note in made.notes]
    if not (fences or gates or refused):
        refused.append("line 1: the text holds no GeoJSON feature")
    return FenceReport(tuple(fences), tuple(gates), tuple(refused), tuple(repaired))


def fence_of(feature: Feature) -> Fence | Gate:
    """One feature as a fence or a gate; raises `FenceError` with its id and line."""
    properties = feature.value.get("properties") or {}
    name = properties.get("id", feature.value.get("id")) if isinstance(properties, dict) else None
    try:
        if feature.fault is not None:
            raise FenceError(feature.fault)
        if name is None or name == "" or isinstance(name, (dict, list, bool)):
            raise FenceError("it has no id: set properties.id")
        return _made(str(name), feature, properties)
    except FenceError as fault:
        raise FenceError(fault.reason, fence_id="" if name is None else str(name), line=feature.line) from None
    except ValidationError as fault:
        reason = "; ".join(f"weekly {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in fault.errors())
        raise FenceError(reason, fence_id=str(name), line=feature.line) from None


def _once(name: str, begin: int, line: int, begins: dict[tuple[str, int], int]) -> None:
    earlier = begins.setdefault((name, begin), line)
    if earlier != line:
        reason = f"this id is used on line {earlier} already; another version needs another effective_from"
        raise FenceError(reason, fence_id=name, line=line)


def _made(name: str, feature: Feature, properties: dict[str, Any]) -> Fence | Gate:
    geometry = feature.value.get("geometry")
    if not isinstance(geometry, dict):
        raise FenceError("it has no geometry")
    if geometry.get("type") == "LineString" and properties.get("gate") is True:
        line = _ring(geometry.get("coordinates"))
        if len(line) < 2 or not valid_positions(line[:, 1], line[:, 0]).all():
            raise FenceError("a gate needs two positions or more, longitude first")
        return Gate(name, line, _active(properties), feature.line)
    shape, notes = _shape(geometry, properties)
    return Fence(
        id=name,
        shape=shape,
        priority=_priority(properties.get("priority", 0)),
        active=_active(properties),
        notes=notes,
        line=feature.line,
        speed_limit_mps=_number(properties, "speed_limit_mps") if "speed_limit_mps" in properties else None,
    )


def _shape(geometry: dict[str, Any], properties: dict[str, Any]) -> tuple[Shape, tuple[str, ...]]:
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if kind == "Point" and "radius_m" in properties:
        lon, lat = _ring([coordinates])[0]
        return circle(float(lon), float(lat), _number(properties, "radius_m")), ()
    if kind == "LineString" and "width_m" in properties:
        return corridor(_ring(coordinates), _number(properties, "width_m")), ()
    if kind not in {"Polygon", "MultiPolygon"}:
        needs = {"Point": ": a Point needs radius_m", "LineString": ": a LineString needs width_m or gate"}
        raise FenceError(f"geometry {kind!r} is no area{needs.get(str(kind), '')}")
    if not isinstance(coordinates, list):
        raise FenceError("it has no coordinates")
    polygons = [coordinates] if kind == "Polygon" else coordinates
    if not all(isinstance(rings, list) for rings in polygons):
        raise FenceError("its coordinates are not rings of positions")
    return world_polygon([_ring(ring) for ring in rings] for rings in polygons)


def _ring(positions: Any) -> Floats:
    try:
        pairs = [(float(position[0]), float(position[1])) for position in positions]
    except (IndexError, KeyError, TypeError, ValueError):
        raise FenceError("its coordinates are not positions of [longitude, latitude]") from None
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _number(properties: dict[str, Any], key: str) -> float:
    value = properties[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value) or value <= 0:
        raise FenceError(f"{key} {value!r} is not a number above 0")
    return float(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FenceError(f"priority {value!r} is not a whole number")
    return value


def _active(properties: dict[str, Any]) -> Activity:
    span = Activity([(_instant(properties, "effective_from"), _instant(properties, "effective_until"))])
    if not len(span.switches):
        raise FenceError("effective_until is not after effective_from")
    weekly = properties.get("weekly")
    return span if weekly is None else span & weekly_of(weekly).activity()


def _instant(properties: dict[str, Any], key: str) -> int | None:
    value = properties.get(key)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise FenceError(f"{key} {value!r} is not an ISO 8601 time") from None
    if time.tzinfo is None:
        raise FenceError(f"{key} {value!r} has no offset from UTC")
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
