"""The same quantities by other people's code: MobilityDB's MEOS, GeographicLib, and a recorded bus."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
import shapely
from geographiclib.geodesic import Geodesic
from hypothesis import given, settings
from pymeos import TGeomPointInst, TGeomPointSeq, pymeos_finalize, pymeos_initialize
from shapely import Polygon

from geo.spatial import FenceSet, Fixes, use_by_fence
from tests.examples import examples
from tests.geo.spatial.worlds import BUS_TRACK, every_fix, fences, shapes, taken, walks


@pytest.fixture(scope="module", autouse=True)
def meos() -> Iterator[None]:
    pymeos_initialize("UTC")
    yield
    pymeos_finalize()


def stamp(t_ms: int) -> str:
    return datetime.fromtimestamp(t_ms / 1000, UTC).isoformat()


def geodesic_m(line: shapely.LineString) -> float:
    return float(sum(Geodesic.WGS84.Inverse(p[1], p[0], q[1], q[0])["s12"] for p, q in pairwise(line.coords)))


def inside_by_meos(fixes: Fixes, rows: tuple[int, int], shape: Polygon) -> tuple[float, float]:
    instants = [
        TGeomPointInst(
            string=f"Point({float(fixes.lon[row])!r} {float(fixes.lat[row])!r})@{stamp(int(fixes.t_ms[row]))}"
        )
        for row in rows
    ]
    part = TGeomPointSeq(instant_list=instants, lower_inc=True, upper_inc=True).at(shape)
    if part is None:
        return 0.0, 0.0
    metres = seconds = 0.0
    for sequence in [part] if isinstance(part, TGeomPointSeq) else part.sequences():
        points = sequence.values()
        metres += geodesic_m(shapely.LineString([points[0], points[-1]])) if len(points) > 1 else 0.0
        seconds += sequence.duration().total_seconds()
    return metres, seconds


@settings(max_examples=examples(40))
@given(walks(devices=1, longest=8), shapes)
def test_lengths_and_times_inside_a_polygon_are_those_of_meos(fixes: Fixes, shape: Polygon) -> None:
    _, keep = np.unique(fixes.t_ms // 1000, return_index=True)
    fixes = taken(fixes, keep)
    tracks = every_fix(fixes)
    use = use_by_fence(tracks, FenceSet(fences(("a", shape))))
    expected = [inside_by_meos(fixes, (tracks.row[at - 1], tracks.row[at]), shape) for at in tracks.segments()]
    # MEOS rounds times to a microsecond and, by its own tolerance, may take a touch for a stay
    assert use.metres.sum() == pytest.approx(sum(metres for metres, _ in expected), rel=1e-6, abs=0.05)
    assert use.ms.sum() / 1000 == pytest.approx(
        sum(seconds for _, seconds in expected), abs=0.01 + 1e-3 * len(expected)
    )


@pytest.fixture(scope="module")
def buses() -> tuple[Fixes, list[str]]:
    if not BUS_TRACK.exists():
        pytest.skip(f"no recorded track at {BUS_TRACK}")
    with BUS_TRACK.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["vehicle_id"] for row in rows})
    t_ms = [int(datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp() * 1000) for row in rows]
    fixes = Fixes(
        device=[names.index(row["vehicle_id"]) for row in rows],
        t_ms=t_ms,
        lat=[float(row["latitude"]) for row in rows],
        lon=[float(row["longitude"]) for row in rows],
    )
    return fixes, names


CITY = Polygon([(-2.9885, 53.4030), (-2.9705, 53.4005), (-2.9600, 53.4105), (-2.9725, 53.4185), (-2.9880, 53.4140)])


def test_a_recorded_bus_has_the_length_and_the_time_that_others_find(buses: tuple[Fixes, list[str]]) -> None:
    fixes, names = buses
    tracks = every_fix(fixes, max_gap_s=120)
    use = use_by_fence(tracks, FenceSet(fences(("city", CITY))))
    shapely.prepare(CITY)
    expected = np.zeros((len(names), 2))
    whole = 0.0
    for at in tracks.segments():
        a, b = tracks.row[at - 1], tracks.row[at]
        line = shapely.LineString([(fixes.lon[a], fixes.lat[a]), (fixes.lon[b], fixes.lat[b])])
        whole += geodesic_m(line)
        if shapely.intersects(CITY, line):
            expected[fixes.device[a]] += inside_by_meos(fixes, (a, b), CITY)
    assert tracks.metres.sum() == pytest.approx(whole, rel=1e-12)
    assert whole > 50_000
    got = np.zeros_like(expected)
    got[use.device] = np.column_stack([use.metres, use.ms / 1000])
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0.05)
    assert (got[:, 0] > 0).sum() >= 3
