"""Drives among a few fences, for tests of what a region finds in fixes as they come."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from gateway.alerts.evaluation import AlertRules
from gateway.alerts.fixes import FixColumns, FixSource
from geo.spatial import (
    DayEvent,
    Fence,
    FenceSet,
    Fixes,
    Gate,
    GateSet,
    PublishedEventSettings,
    TrackSettings,
    build_tracks,
    end_fixes,
    fences_from_geojson,
    find_events,
    identified,
)

NOON = 1_767_614_400_000  # 2026-01-05T12:00Z, a Monday
NOW = NOON + 3_600_000


def square(name: str, west: float, south: float, size: float, **properties: object) -> dict[str, object]:
    east, north = west + size, south + size
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "id": name, "properties": properties, "geometry": geometry}


FEATURES: list[dict[str, object]] = [
    square("depot", 0.0, 0.0, 0.004),
    square("yard", 0.001, 0.001, 0.001, speed_limit_mps=8.0),
    square("beside", 0.004, 0.0, 0.003),
    {
        "type": "Feature",
        "id": "gate",
        "properties": {"gate": True},
        "geometry": {"type": "LineString", "coordinates": [[0.002, -0.001], [0.002, 0.006]]},
    },
]


def places(features: Sequence[dict[str, object]] = FEATURES) -> list[Fence | Gate]:
    report = fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": [*features]}))
    assert not report.refused, report.refused
    return [*report.fences, *report.gates]


def live_rules(features: Sequence[dict[str, object]] = FEATURES, *, min_stay_s: float = 0.0) -> AlertRules:
    made = places(features)
    fences = FenceSet([one for one in made if isinstance(one, Fence)])
    gates = GateSet([one for one in made if isinstance(one, Gate)])
    events = PublishedEventSettings(dwell_s=60.0, min_stay_s=min_stay_s)
    return AlertRules(fences, gates, TrackSettings(rule="every_fix", max_gap_s=120.0), events)


class LiveFix(NamedTuple):
    device: str
    t_ms: int
    seq: int
    latitude: float
    longitude: float
    accuracy_m: float = float("nan")
    speed_mps: float = float("nan")


def columns(fixes: Sequence[LiveFix]) -> FixColumns:
    names = list(dict.fromkeys(one.device for one in fixes))
    table = {name: np.array([getattr(one, name) for one in fixes], dtype=np.float64) for name in LiveFix._fields[3:]}
    t_ms = np.array([one.t_ms for one in fixes], dtype=np.int64)
    return FixColumns(
        sources=[FixSource("acme", name, 7) for name in names],
        source=np.array([names.index(one.device) for one in fixes], dtype=np.int64),
        seq=np.array([one.seq for one in fixes], dtype=np.int64),
        t_ms=t_ms,
        received_ms=t_ms + 200,
        **table,
    )


def engine_finds(fixes: Sequence[LiveFix], by: AlertRules) -> dict[str, DayEvent]:
    given = columns(fixes)
    tracks = build_tracks(
        Fixes(
            device=given.source,
            t_ms=given.t_ms,
            lat=given.latitude,
            lon=given.longitude,
            accuracy_m=given.accuracy_m,
            speed_mps=given.speed_mps,
        ),
        by.tracks,
    )
    events = find_events(tracks, by.fences, by.gates, by.events)
    seqs = given.seq[end_fixes(tracks, events)].tolist()
    found = [DayEvent(one.t_ms, one.kind, one.place, one.value, 7, seq) for one, seq in zip(events, seqs, strict=True)]
    return identified("acme", fixes[0].device, found)


STEPS = st.tuples(
    st.sampled_from([1_000, 2_000, 5_000, 20_000, 90_000, 200_000]),
    st.floats(-0.0008, 0.0008),
    st.floats(-0.0008, 0.0008),
    st.sampled_from([float("nan"), 5.0, 40.0]),
    st.sampled_from([float("nan"), 3.0, 12.0]),
    st.booleans(),
)


@st.composite
def drives(draw: st.DrawFn, device: str = "bus-1", most: int = 60) -> list[LiveFix]:
    """A way among the fences, now fast, now slow, with stops, gaps, outliers and jitter at borders."""
    lon, lat, t_ms = draw(st.floats(-0.002, 0.008)), draw(st.floats(-0.002, 0.008)), NOON
    fixes = []
    for seq, (ms, east, north, accuracy, speed, stands) in enumerate(
        draw(st.lists(STEPS, min_size=2, max_size=most)), 1
    ):
        lon, lat = (lon, lat) if stands else (lon + east, lat + north)
        t_ms += ms
        fixes.append(LiveFix(device, t_ms, seq, lat, lon, accuracy, speed))
    return fixes


def cut(fixes: Sequence[LiveFix], sizes: Sequence[int]) -> list[Sequence[LiveFix]]:
    parts, at = [], 0
    for size in sizes:
        parts.append(fixes[at : at + size])
        at += size
    return [part for part in [*parts, fixes[at:]] if part]
