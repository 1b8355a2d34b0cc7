"""Small worlds for the proofs: fences, tracks and zone sets, as Hypothesis strategies and as plain makers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from shapely import Polygon, box

from geo.spatial import Fence, Fixes, GeofenceEvent, Tracks, TrackSettings, build_tracks, end_fixes, fact_id, ordinals

START_MS = 1_767_603_422_000
BUS_TRACK = Path(__file__).parents[3].parent / "shared" / "data" / "liverpool_bus_route14.csv"

# a world of about 10 km around Liverpool; coordinates as receivers give them, and coarse ones that meet often
fine = st.integers(0, 1_000_000).map(lambda whole: whole / 1e7)
coarse = st.integers(0, 10).map(lambda whole: whole / 100)
offsets = fine | coarse
places = st.tuples(offsets.map(lambda dx: -3.0 + dx), offsets.map(lambda dy: 53.4 + dy))
boxes = st.tuples(places, st.integers(1, 60), st.integers(1, 60)).map(
    lambda parts: box(*parts[0], parts[0][0] + parts[1] / 1000, parts[0][1] + parts[2] / 1000)
)


@st.composite
def stars(draw: st.DrawFn) -> Polygon:
    """A polygon of 3 to 12 corners around a centre, with a hole or without."""
    x, y = draw(places)
    corners = draw(st.integers(3, 12))
    radii = [draw(st.integers(5, 300)) / 1e4 for _ in range(corners)]
    angles = np.arange(corners) * 2 * np.pi / corners
    ring = [(x + r * np.cos(a), y + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]
    hole = [(x + r * np.cos(a) / 3, y + r * np.sin(a) / 3) for r, a in zip(radii, angles, strict=True)]
    return Polygon(ring, [hole] if draw(st.booleans()) else [])


shapes = boxes | stars()


@st.composite
def fence_lists(draw: st.DrawFn, most: int = 5) -> list[Fence]:
    found = draw(st.lists(shapes, min_size=1, max_size=most))
    return [Fence(f"f{at}", shape, draw(st.integers(0, 2))) for at, shape in enumerate(found)]


@st.composite
def walks(draw: st.DrawFn, devices: int = 3, longest: int = 25) -> Fixes:
    rows: list[tuple[int, int, float, float]] = []
    for device in range(draw(st.integers(1, devices))):
        t_ms = START_MS
        for x, y in draw(st.lists(places, min_size=2, max_size=longest)):
            rows.append((device, t_ms, y, x))
            t_ms += draw(st.sampled_from([0, 1, 1_000, 60_000, 300_000, 300_001]))
    names, t, lat, lon = zip(*rows, strict=True)
    return Fixes(device=names, t_ms=t, lat=lat, lon=lon)


def every_fix(fixes: Fixes, max_gap_s: float = 300.0) -> Tracks:
    return build_tracks(fixes, TrackSettings.every_fix(max_gap_s))


def line(points: Sequence[tuple[float, float]], step_ms: int = 10_000, device: int = 0) -> Fixes:
    lon, lat = zip(*points, strict=True)
    return Fixes(
        device=[device] * len(points), t_ms=[START_MS + at * step_ms for at in range(len(points))], lat=lat, lon=lon
    )


def joined(parts: Sequence[Fixes]) -> Fixes:
    return Fixes(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("device", "t_ms", "lat", "lon")}
    )


def taken(fixes: Fixes, rows: np.ndarray) -> Fixes:
    return Fixes(device=fixes.device[rows], t_ms=fixes.t_ms[rows], lat=fixes.lat[rows], lon=fixes.lon[rows])


def fences(*named: tuple[str, Polygon]) -> list[Fence]:
    return [Fence(name, shape) for name, shape in named]


def identified(tracks: Tracks, events: Sequence[GeofenceEvent]) -> dict[str, GeofenceEvent]:
    """Events by their ids; the time of the fix that ends a segment stands for its seq."""
    ends = tracks.fixes.t_ms[end_fixes(tracks, events)].tolist()
    keys = [(one.device, end, one.kind, one.place) for one, end in zip(events, ends, strict=True)]
    return {fact_id(*key, at): one for key, at, one in zip(keys, ordinals(keys), events, strict=True)}
