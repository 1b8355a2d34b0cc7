"""Fences as they are published: what is read, refused, and by which place it is named."""

import json
import tracemalloc
from datetime import datetime
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import shapely
from geographiclib.geodesic import Geodesic
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import Point

from geo.spatial import Fence, FenceReport, FenceSet, GateSet, fences_from_geojson
from geo.spatial.activity import Activity
from geo.spatial.geojson import circle, corridor
from tests.examples import examples
from tests.geo.spatial.worlds import every_fix, line

SQUARE = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]


def feature(name: str | None, kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    named = {} if name is None else {"id": name}
    return {"type": "Feature", "properties": named | properties, "geometry": {"type": kind, "coordinates": coordinates}}


def read(*features: dict[str, Any]) -> FenceReport:
    rows = ",\n".join(json.dumps(one) for one in features)
    return fences_from_geojson('{"type": "FeatureCollection",\n"features": [\n' + rows + "\n]}")


def test_a_bad_fence_is_named_with_its_place_and_does_not_hide_the_rest() -> None:
    report = read(
        feature("good", "Polygon", [SQUARE]),
        feature("flat", "Polygon", [[[0, 0], [1, 1], [2, 2], [0, 0]]]),
        feature(None, "Polygon", [SQUARE]),
        feature("point", "Point", [0, 0]),
        feature("north of north", "Polygon", [[[0, 89], [1, 89], [1, 91], [0, 89]]]),
        feature("torn", "Polygon", [[[0, 0], ["x", 0], [1, 1], [0, 0]]]),
        feature("odd", "Polygon", [SQUARE], priority="high"),
        feature("last", "MultiPolygon", [[SQUARE]]),
    )
    assert [one.id for one in report.fences] == ["good", "last"]
    assert [message.split(":")[0] for message in report.refused] == [f"feature {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert "'flat'" in report.refused[0]


def test_a_syntax_error_is_named_with_its_line_and_nothing_of_its_collection_is_read() -> None:
    rows = [json.dumps(feature(name, "Polygon", [SQUARE])) for name in "abc"]
    rows[1] = rows[1].replace("[0, 1]", "[0, ]")
    report = fences_from_geojson('{"type": "FeatureCollection", "features": [\n' + ",\n".join(rows) + "]}")
    assert report.fences == ()
    assert report.refused[0].startswith("feature 1: not JSON: ")
    assert "line 3 column" in report.refused[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": "FeatureCollection", "features": []}', "no json"])
def test_a_text_without_a_feature_says_so(text: str) -> None:
    report = fences_from_geojson(text)
    assert not report.fences
    assert len(report.refused) == 1


def test_features_may_stand_one_on_a_line() -> None:
    rows = [json.dumps(feature(name, "Polygon", [SQUARE])) for name in "abc"]
    assert [one.id for one in fences_from_geojson("\n".join(rows)).fences] == ["a", "b", "c"]


def test_a_ring_that_crosses_itself_is_refused_with_the_place() -> None:
    (said,) = read(feature("bow tie", "Polygon", [[[0, 0], [2, 2], [2, 0], [0, 2], [0, 0]]])).refused
    assert said.startswith("feature 1: fence 'bow tie': its outline is not valid (Self-intersection[1 1])")


def test_an_id_twice_is_refused_unless_it_is_a_later_version() -> None:
    first = feature("a", "Polygon", [SQUARE], effective_from="2026-01-01T00:00:00Z")
    report = read(first, first, feature("a", "Polygon", [SQUARE], effective_from="2026-02-01T00:00:00+01:00"))
    assert len(report.fences) == 2
    assert report.refused[0].startswith("feature 2: fence 'a': this id is used by feature 1 already")


@given(st.floats(-180, 180), st.floats(-89, 89), st.floats(1, 30_000))
def test_a_circle_is_a_centimetre_from_the_geodesic_circle_anywhere(lon: float, lat: float, radius_m: float) -> None:
    shape = circle(lon, lat, radius_m)
    rng = np.random.default_rng(0)
    for azimuth in rng.uniform(0, 360, 6):
        for factor, inside in ((1 - 0.02 / radius_m - 1e-9, True), (1 + 1e-7, False)):
            at = Geodesic.WGS84.Direct(lat, lon, azimuth, radius_m * factor)
            assert shape.intersects(Point(at["lon2"], at["lat2"])) == inside


def test_a_corridor_reaches_half_its_width_on_both_sides_and_round_its_ends() -> None:
    shape = corridor(np.array([[10.0, 50.0], [10.1, 50.05], [10.1, 50.2]]), 200.0)
    for east, north, along in ((10.1, 50.1, 90.0), (10.1, 50.1, 270.0), (10.1, 50.2, 0.0), (10.1, 50.2, 45.0)):
        for away, inside in ((99.9, True), (100.1, False)):
            at = Geodesic.WGS84.Direct(north, east, along, away)
            assert shape.covers(Point(at["lon2"], at["lat2"])) == inside


def test_a_gate_counts_each_direction_also_when_both_fixes_are_far_from_it() -> None:
    # drawn northwards: who drives west to east goes from its left to its right
    gates = GateSet(read(feature("bridge", "LineString", [[1, -1], [1, 1]], gate=True)).gates)
    there = gates.crossings(every_fix(line([(0, 0.5), (4, 0.5), (0, 0.5), (0, 5), (4, 5)])))
    assert there.forward.tolist() == [True, False]
    assert there.t_ms.tolist() == [1767603422000 + 2500, 1767603422000 + 17500]


def with_crs(name: str, where: str = "collection") -> str:
    """A file of one fence that says in which system it is: its collection before or behind the features, or a part."""
    crs = {"type": "name", "properties": {"name": name}}
    one = feature("depot", "Polygon", [SQUARE])
    if where == "feature":
        one["crs"] = crs
    if where == "geometry":
        one["geometry"]["crs"] = crs
    said = {"crs": crs} if where in {"collection", "behind"} else {}
    collection = {"type": "FeatureCollection", "features": [one]}
    return json.dumps(said | collection if where == "collection" else collection | said)


OTHER_SYSTEMS = [
    "urn:ogc:def:crs:EPSG::4314",
    "urn:ogc:def:crs:EPSG::4258",
    "EPSG:31467",
    "EPSG:43260",
    "http://www.opengis.net/def/crs/EPSG/0/3857",
    "WGS 72",
    "local grid",
    "",
]
WGS84 = [
    "urn:ogc:def:crs:OGC:1.3:CRS84",
    "urn:ogc:def:crs:OGC::CRS84",
    "OGC:CRS84",
    "CRS84",
    "EPSG:4326",
    "epsg:4979",
    "urn:ogc:def:crs:EPSG::4326",
    "urn:ogc:def:crs:EPSG:6.9:4326",
    "http://www.opengis.net/def/crs/OGC/1.3/CRS84",
    "http://www.opengis.net/def/crs/EPSG/0/4326",
    "http://www.opengis.net/gml/srs/epsg.xml#4326",
    "WGS 84",
]
PLACES = ["collection", "behind", "feature", "geometry"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", OTHER_SYSTEMS)
def test_a_system_that_is_not_wgs84_is_refused_by_its_name_wherever_it_stands(name: str, where: str) -> None:
    report = fences_from_geojson(with_crs(name, where))
    (said,) = report.refused
    assert report.fences == ()
    assert (repr(name) if name else "names no system") in said


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", WGS84)
def test_wgs84_by_any_of_its_names_is_longitude_latitude(name: str, where: str) -> None:
    report = fences_from_geojson(with_crs(name, where))
    assert (report.refused, report.fences[0].shape.bounds) == ((), (0, 0, 1, 1))


@pytest.mark.parametrize(
    ("crs", "is_taken"),
    [
        (None, True),
        ({"type": "EPSG", "properties": {"code": 4326}}, True),
        ({"type": "EPSG", "properties": {"code": 31467}}, False),
        ({"type": "link", "properties": {"href": "http://spatialreference.org/ref/epsg/4326/proj4/"}}, True),
        ({"type": "link", "properties": {"href": "http://spatialreference.org/ref/epsg/4314/proj4/"}}, False),
        ("EPSG:4326", True),
        ("EPSG:4314", False),
        ({}, False),
        (4314, False),
        ([], False),
    ],
)
def test_a_system_is_read_in_each_form_that_files_have(crs: Any, is_taken: bool) -> None:
    collection = {"type": "FeatureCollection", "features": [feature("depot", "Polygon", [SQUARE])], "crs": crs}
    report = fences_from_geojson(json.dumps(collection))
    assert (len(report.fences), len(report.refused)) == ((1, 0) if is_taken else (0, 1))


@pytest.mark.parametrize(
    ("first", "second"),
    [("K\u00f6ln", "Ko\u0308ln"), (12, 12.0), ("12", 12.0), ("Tor 1", "Tor\u00a01"), ("a", "a\u200b")],
)
def test_two_ids_that_read_the_same_are_one_fence_and_a_slip(first: Any, second: Any) -> None:
    report = read(*(feature(name, "Polygon", [SQUARE]) for name in (first, "other", second)))
    assert [one.id for one in report.fences] == [str(first), "other"]
    (said,) = report.refused
    assert said.endswith(f"is written {str(second)!a}, and {str(first)!a} of feature 1 reads the same")


EAST = [[10, 0], [11, 0], [11, 1], [10, 1], [10, 0]]


def windows(day: str) -> dict[str, object]:
    return {"timezone": "UTC", "windows": [{"days": [day], "from": "08:00", "until": "09:00"}]}


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def held(fences: FenceSet, when: str) -> list[bool]:
    point, _ = fences.holding(np.array([0.5, 10.5]), np.array([0.5, 0.5]), np.full(2, ms(when)))
    return [0 in point.tolist(), 1 in point.tolist()]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_version_with_windows_takes_over_at_its_date_not_at_its_first_window(order: tuple[int, int]) -> None:
    versions = [
        feature("a", "Polygon", [SQUARE], effective_from="2026-01-01T00:00:00Z", weekly=windows("fri")),
        feature("a", "Polygon", [EAST], effective_from="2026-01-05T00:00:00Z", weekly=windows("mon")),
    ]
    report = read(*(versions[at] for at in order))
    assert report.refused == ()
    fences = FenceSet(report.fences)
    assert held(fences, "2026-01-02T08:30:00Z") == [True, False]
    assert held(fences, "2026-01-09T08:30:00Z") == [False, False]
    assert held(fences, "2026-01-12T08:30:00Z") == [False, True]


def test_versions_of_a_gate_supersede_each_other_in_any_order() -> None:
    gate = [[1, -1], [1, 1]]
    versions = [
        feature("g", "LineString", gate, gate=True),
        feature("g", "LineString", gate, gate=True, effective_from="2020-01-01T00:00:00Z"),
        feature("g", "LineString", gate[::-1], gate=True, effective_from="2025-01-01T00:00:00Z"),
    ]
    way = every_fix(line([(0, 0.5), (2, 0.5)]))
    for order in permutations(versions):
        crossings = GateSet(read(*order).gates).crossings(way)
        assert crossings.forward.tolist() == [False]


def test_dates_at_the_ends_of_the_calendar_are_times_or_are_refused() -> None:
    dates = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
    assert not read(*(feature(date, "Polygon", [SQUARE], effective_from=date) for date in dates)).refused
    assert fences_from_geojson("{}").refused


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 9),
            st.none() | st.integers(0, 12),
            st.none() | st.integers(0, 12),
            st.none() | st.integers(0, 12),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_at_most_one_version_is_in_force_and_it_is_found_by_one_search(
    versions: list[tuple[str, int, int | None, int | None, int | None]],
) -> None:
    fences = FenceSet(
        [
            Fence(name, shapely.box(0, 0, 1, 1), rank, Activity([(begin, end)]), effective_from_ms=effective)
            for name, rank, begin, end, effective in versions
        ]
    )
    times = np.arange(-1, 14)
    for number, name in enumerate(fences.names):
        own = [at for at, fence in enumerate(fences.fences) if fence.id == name]
        found = fences.version_at(np.full(len(times), number), times.astype(float))
        for t_ms, at in zip(times, found.tolist(), strict=True):
            stands = [one for one in own if fences.fences[one].active.at(np.array([t_ms])).all()]
            assert len(stands) <= 1
            assert at == (stands or [-1])[0]


def test_a_thousand_versions_of_a_fence_cost_a_vehicle_parked_there_no_more_than_one() -> None:
    count, fixes, begin = 1_000, 2_000, 1_700_000_000_000
    shape = shapely.box(10.0, 50.0, 10.0005, 50.0004)
    from_ms = [begin + at * 10 for at in range(count)]
    fences = FenceSet([Fence("d", shape, active=Activity([(at, None)]), effective_from_ms=at) for at in from_ms])
    t_ms = (begin + np.arange(fixes) * 10).astype(np.float64)
    name = np.zeros(fixes, dtype=np.int64)
    tracemalloc.start()
    found = fences.version_at(name, t_ms)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [fences.fences[at].effective_from_ms for at in found[:count].tolist()] == from_ms
    # two million pairs would be sixteen bytes each, and more
    assert peak < 4e6
