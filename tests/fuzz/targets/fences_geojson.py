"""Files of fences: whatever the text is, each feature is a fence, a gate or a message."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable
from typing import Any

from geo.spatial import FenceReport, fences_from_geojson
from geo.spatial.features import read_features
from geo.spatial.geojson import MAX_REFUSED
from tests.geo.spatial.json_values import UNEXPECTED, drawn, put

RING = [[10, 50], [10.01, 50], [10.01, 50.01], [10, 50.01], [10, 50]]


def feature(kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}


WEEK = {"timezone": "Europe/Berlin", "windows": [{"days": ["mon"], "from": "07:00", "until": "19:00"}]}
FEATURES = [
    feature("Polygon", [RING], id="a", priority=3, weekly=WEEK, speed_limit_mps=22.0, effective_until="2027-01-01T00Z"),
    feature("MultiPolygon", [[RING], [[[179, 1], [-179, 1], [-179, 2], [179, 2], [179, 1]]]], id="b"),
    feature("Polygon", [[[0, 80], [120, 80], [-120, 80], [0, 80]]], id="pole", effective_from="2026-01-05T00:00Z"),
    feature("Point", [10, 50], id="circle", radius_m=100),
    feature("LineString", [[10, 50], [10.001, 50]], id="corridor", width_m=20),
    feature("LineString", [[10, 50], [-179, 50], [0, 85]], id="far", width_m=100_000),
    feature("LineString", [[179.9, 50], [-179.9, 50]], id="gate", gate=True),
    feature("Polygon", [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]], id="bow"),
]
"""One of each shape and property, at the antimeridian and a pole."""
FURTHER = 2
"""Places of each text that is a JSON value, drawn from the text, at which every unexpected value is judged, too."""
MAX_FURTHER_BYTES = 8192


def seeds() -> Iterable[bytes]:
    """One of each shape and property, together and alone, and texts that are cut, deep, or several."""
    some = FEATURES
    yield from (json.dumps(one).encode() for one in some)
    yield f"[{json.dumps(some[0])}, {json.dumps(some[3])}]".encode()
    yield f"var fences = [{json.dumps(some[0])}, {json.dumps(some[3])}, {json.dumps(some[4])}];".encode()
    whole = json.dumps({"type": "FeatureCollection", "features": some}).encode()
    yield whole
    yield whole[: len(whole) // 2]
    yield b"\n".join(json.dumps(one).encode() for one in some)
    yield b'{"features":[null,' + json.dumps(some[0]).encode() + b",NaN]}{}[]"
    yield b"[" * 20_000
    yield b'{"features":[' + b"null," * 3000
    yield b'{"type":"Feature","geometry":{"type":"Polygon","coordinates":[[[1e400,' + b"9" * 5000 + b"]]]}}"


def judge(data: bytes, further: int = FURTHER) -> None:
    """Nothing is raised; and each feature read is accounted for. So it is with other values at other places of it."""
    judge_text(data.decode("utf-8-sig", errors="surrogateescape"))
    try:
        value = json.loads(data) if further and len(data) <= MAX_FURTHER_BYTES else None
    except (ValueError, RecursionError):
        return
    if value is None:
        return
    draw = random.Random(zlib.crc32(data))
    for _ in range(further):
        place = drawn(value, draw)
        for unexpected in UNEXPECTED:
            judge_text(json.dumps(put(value, place, unexpected)))


def judge_text(text: str) -> FenceReport:
    """What a text holds; every feature of it is accounted for."""
    report = fences_from_geojson(text)
    read = sum(1 for _ in read_features(text))
    assert len(report.fences) + len(report.gates) + len(report.refused) == max(read, 1) or read > MAX_REFUSED
    assert all(fence.shape.is_valid and not fence.shape.is_empty for fence in report.fences)
    return report


def bounded(data: bytes) -> None:
    """The reading of the text; what a shape takes is bounded by its corners."""
    for _ in read_features(data.decode("utf-8-sig", errors="surrogateescape")):
        pass
