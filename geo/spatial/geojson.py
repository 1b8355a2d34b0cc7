"""Fences from GeoJSON (RFC 7946), each feature with the line it stands on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pydantic import ValidationError

from geo.spatial.activity import Activity
from geo.spatial.errors import FenceError
from geo.spatial.fences import Fence, FenceReport
from geo.spatial.rings import Shape, world_polygon

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
    """Every fence of a GeoJSON text that can be used, and a message with its line for each that cannot.

    Properties of a feature: `id` (or the feature's own `id`), `priority`, `effective_from`, `effective_until` (ISO
    8601 with offset). Refused: no id, geometry other than Polygon and MultiPolygon, no area, places that are none.
    """
    fences: list[Fence] = []
    refused: list[str] = []
    repaired: list[str] = []
    for feature in read_features(text):
        try:
            fence = fence_of(feature)
        except FenceError as fault:
            refused.append(str(fault))
            continue
        fences.append(fence)
        repaired += [f"line {feature.line}: fence {fence.id!r}: {note}" for note in fence.notes]
    if not fences and not refused:
        refused.append("line 1: the text holds no GeoJSON feature")
    return FenceReport(tuple(fences), tuple(refused), tuple(repaired))


def fence_of(feature: Feature) -> Fence:
    """One feature as a fence; raises `FenceError` with its id and line."""
    properties = feature.value.get("properties") or {}
    name = properties.get("id", feature.value.get("id")) if isinstance(properties, dict) else None
    try:
        if feature.fault is not None:
            raise FenceError(feature.fault)
        if name is None or name == "" or isinstance(name, (dict, list, bool)):
            raise FenceError("it has no id: set properties.id")
        shape, notes = _shape(feature.value.get("geometry"))
        return Fence(
            id=str(name),
            shape=shape,
            priority=_priority(properties.get("priority", 0)),
            active=_active(properties),
            notes=notes,
            line=feature.line,
        )
    except FenceError as fault:
        raise FenceError(fault.reason, fence_id="" if name is None else str(name), line=feature.line) from None
    except ValidationError as fault:
        raise FenceError(str(fault), fence_id=str(name), line=feature.line) from None


def _shape(geometry: Any) -> tuple[Shape, tuple[str, ...]]:
    if not isinstance(geometry, dict):
        raise FenceError("it has no geometry")
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if kind not in {"Polygon", "MultiPolygon"}:
        raise FenceError(f"geometry {kind!r} is no area: Polygon or MultiPolygon")
    try:
        polygons: list[Any] = [coordinates] if kind == "Polygon" else list(coordinates or ())
        rings = [[_ring(ring) for ring in polygon] for polygon in polygons]
    except (IndexError, TypeError, ValueError):
        raise FenceError("its coordinates are not rings of [longitude, latitude]") from None
    return world_polygon(rings)


def _ring(positions: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([(float(position[0]), float(position[1])) for position in positions], dtype=np.float64)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FenceError(f"priority {value!r} is not a whole number")
    return value


def _active(properties: dict[str, Any]) -> Activity:
    return Activity([(_instant(properties, "effective_from"), _instant(properties, "effective_until"))])


def _instant(properties: dict[str, Any], key: str) -> int | None:
    value = properties.get(key)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except (IndexError, TypeError, ValueError):
        raise FenceError(f"{key} {value!r} is not an ISO 8601 time") from None
    if time.tzinfo is None:
        raise FenceError(f"{key} {value!r} has no offset from UTC")
    return int((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
