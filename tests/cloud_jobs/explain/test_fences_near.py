"""The fences near a track are all that can decide anything of it: with those alone usage is the same, row by row."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.explain.metered_again import TrackBox, ids_near
from geo.reference.in_force import parse_fence
from geo.spatial import Fence, FenceError

DEGREES = st.integers(-720, 720).map(lambda quarter: quarter / 4)
SMALL = st.integers(0, 40).map(lambda tenth: tenth / 10)


def feature(kind: str, coordinates: Any, **properties: Any) -> str:
    geometry = {"type": kind, "coordinates": coordinates}
    return json.dumps({"type": "Feature", "properties": {"id": "f", **properties}, "geometry": geometry})


def box(west: float, south: float, east: float, north: float) -> TrackBox | None:
    return TrackBox.around(np.array([west, east]), np.array([south, north]))


def is_near(body: str, track: TrackBox | None) -> bool:
    # a track that has all of the world around it
    return track is None or bool(ids_near([("f", body)], track))


@st.composite
def features(draw: st.DrawFn) -> str:
    lon, lat = draw(DEGREES), draw(st.integers(-360, 360)) / 4
    corner = st.tuples(SMALL, SMALL).map(lambda by: [lon + by[0], lat + by[1]])
    kind = draw(st.sampled_from(["circle", "corridor", "gate", "polygon", "wide", "parts"]))
    if kind == "circle":
        return feature("Point", [lon, lat], radius_m=draw(st.sampled_from([1, 500, 50_000, 2_000_000])))
    if kind in {"corridor", "gate"}:
        more = {"gate": True} if kind == "gate" else {"width_m": draw(st.sampled_from([1, 20_000, 100_000]))}
        return feature("LineString", draw(st.lists(corner, min_size=2, max_size=4)), **more)
    ring = draw(st.lists(corner, min_size=4, max_size=6))
    if kind == "wide":
        ring = draw(st.lists(st.tuples(DEGREES, st.integers(-90, 90)).map(list), min_size=4, max_size=6))
    ring.append(ring[0])
    return feature("MultiPolygon", [[ring]]) if kind == "parts" else feature("Polygon", [ring])


@given(features(), st.data())
def test_no_fence_that_a_track_can_meet_is_left_out(body: str, data: st.DataObject) -> None:
    try:
        made = parse_fence(body)
    except FenceError:
        return
    if isinstance(made, Fence):
        west, south, east, north = made.shape.bounds
    else:
        (west, south), (east, north) = made.line.min(axis=0), made.line.max(axis=0)
        if east - west > 180:
            return
    # a fix anywhere in the box of what was made, and on its edge
    share = st.sampled_from([0.0, 0.1, 0.5, 1.0])
    lon = west + data.draw(share) * (east - west)
    lat = south + data.draw(share) * (north - south)
    assert is_near(body, box(lon, lat, lon, lat))
