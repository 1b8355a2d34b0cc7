"""Files of fences: whatever the text is, each feature is a fence, a gate or a message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from geo.spatial import fences_from_geojson
from geo.spatial.features import read_features

RING = [[10, 50], [10.01, 50], [10.01, 50.01], [10, 50.01], [10, 50]]


def feature(kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}


def seeds() -> Iterable[bytes]:
    """One of each shape and property, at the antimeridian and a pole, and texts that are cut, deep, or several."""
    week = {"timezone": "Europe/Berlin", "windows": [{"days": ["mon"], "from": "07:00", "until": "19:00"}]}
    some = [
        feature("Polygon", [RING], id="a", priority=3, weekly=week, speed_limit_mps=22.0),
        feature("MultiPolygon", [[RING], [[[179, 1], [-179, 1], [-179, 2], [179, 2], [179, 1]]]], id="b"),
        feature("Polygon", [[[0, 80], [120, 80], [-120, 80], [0, 80]]], id="pole", effective_from="2026-01-05T00:00Z"),
        feature("Point", [10, 50], id="circle", radius_m=100),
        feature("LineString", [[10, 50], [10.001, 50]], id="corridor", width_m=20),
        feature("LineString", [[10, 50], [-179, 50], [0, 85]], id="far", width_m=100_000),
        feature("LineString", [[179.9, 50], [-179.9, 50]], id="gate", gate=True),
        feature("Polygon", [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]], id="bow"),
    ]
    whole = json.dumps({"type": "FeatureCollection", "features": some}).encode()
    yield whole
    yield whole[: len(whole) // 2]
    yield b"\n".join(json.dumps(one).encode() for one in some)
    yield b'{"features":[null,' + json.dumps(some[0]).encode() + b",NaN]}{}[]"
    yield b"[" * 20_000
    yield b'{"features":[' + b"null," * 3000
    yield b'{"type":"Feature","geometry":{"type":"Polygon","coordinates":[[[1e400,' + b"9" * 5000 + b"]]]}}"


def judge(data: bytes) -> None:
    """Nothing is raised; and each feature read is accounted for."""
    text = data.decode("utf-8-sig", errors="surrogateescape")
    report = fences_from_geojson(text)
    read = sum(1 for _ in read_features(text))
    assert len(report.fences) + len(report.gates) + len(report.refused) == max(read, 1)
    assert all(fence.shape.is_valid and not fence.shape.is_empty for fence in report.fences)


def bounded(data: bytes) -> None:
    """The reading of the text; what a shape takes is bounded by its corners."""
    for _ in read_features(data.decode("utf-8-sig", errors="surrogateescape")):
        pass
