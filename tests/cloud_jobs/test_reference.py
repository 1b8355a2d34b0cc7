"""What the topics of the reference data hold becomes versions, whatever else is in them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.errors import CloudError
from cloud_jobs.geofence.fence_changes import changes_between
from cloud_jobs.reference import published_fences, read_folder, versions_in
from geo.spatial import fences_from_geojson

AT = datetime(2026, 1, 5, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "key": "fence-1@2026-01-01",
    "value": b'{"type": "Feature"}',
    "publish_time": AT,
    "message_id": "1:2:-1",
    "malformed": None,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": None},
        {"key": None, "malformed": "key not UTF-8: ff"},
        {"value": None},
        {"value": b""},
        {"value": b"\xff"},
        {"value": b"no JSON"},
        {"value": b"[]"},
        {"value": b"[" * 100_000},
        {"publish_time": None, "malformed": "publish_time not a time of the years 1970 to 9999: 0 ms"},
    ],
)
def test_a_message_that_is_no_version_is_left_out_and_stops_no_other(wrong: dict[str, Any]) -> None:
    rows = versions_in("fence", [GOOD | wrong, GOOD])
    assert rows == [{"kind": "fence", "id": "fence-1", "body": '{"type": "Feature"}', "published_at": AT}]


def feature(width: float = 1.0, **properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [width, 0], [width, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def row(id_: str, body: Any, minute: int = 0) -> dict[str, Any]:
    text = body if isinstance(body, str) else json.dumps(body)
    return {"kind": "fence", "id": id_, "body": text, "published_at": AT + timedelta(minutes=minute)}


def test_a_correction_of_a_version_replaces_it_however_its_instant_is_written() -> None:
    rows = [
        row("a", feature(2.0, id="a", effective_from="2026-01-05T01:00:00+01:00"), minute=1),
        row("a", feature(1.0, id="a", effective_from="2026-01-05T00:00:00Z")),
        row("a", feature(3.0, id="a", effective_from="2026-01-06T00:00:00Z")),
    ]
    found = published_fences(rows)
    widths = [one["geometry"]["coordinates"][0][1][0] for one in json.loads(found.geojson)["features"]]
    assert widths == [2.0, 3.0]
    assert found.refused == ()


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Feature"},
        {"type": "Feature", "properties": []},
        {"type": "Feature", "properties": None, "geometry": None},
        feature(),
        feature(id="bad", effective_from="tomorrow"),
        feature(id="bad", effective_from=["2026-01-05T00:00:00Z"]),
        feature(id="bad", effective_from="2026-01-05T00:00:00"),
        feature(0.0, id="bad"),
        {"id": "bad"},
        {"type": "FeatureCollection", "features": []},
        {"type": "FeatureCollection", "features": [feature(id="x"), feature(id="y")]},
        [feature(id="bad")],
        feature(id="bad", priority="high"),
        "[" * 100_000,
        "nothing",
    ],
)
def test_a_fence_that_cannot_be_used_is_named_and_stops_no_other(body: Any) -> None:
    found = published_fences([row("bad", body), row("good", feature(id="good"))])
    (refused,) = found.refused
    assert "fence" in refused
    report = fences_from_geojson(found.geojson)
    assert [fence.id for fence in report.fences] == ["good"]
    assert changes_between(published_fences([]).geojson, found.geojson, 0)


def test_a_fence_named_by_the_feature_itself_is_a_fence_like_others() -> None:
    lone = {key: value for key, value in feature().items() if key != "properties"} | {"id": "b"}
    for body in (lone, lone | {"properties": None}, lone | {"properties": {}}):
        found = published_fences([row("b", body)])
        assert found.refused == ()
        assert [fence.id for fence in fences_from_geojson(found.geojson).fences] == ["b"]
        assert changes_between(published_fences([]).geojson, found.geojson, 0)


def test_of_two_rows_of_one_version_the_newest_holds_whatever_their_keys_are() -> None:
    absent, null = feature(1.0, id="a"), feature(2.0, id="a", effective_from=None)
    for first, second, width in ((absent, null, 2.0), (null, absent, 1.0)):
        for keys in (("a", "zzz"), ("zzz", "a")):
            found = published_fences([row(keys[0], first), row(keys[1], second, minute=1)])
            assert found.refused == ()
            (fence,) = fences_from_geojson(found.geojson).fences
            assert fence.shape.bounds[2] == width


def test_a_correction_that_cannot_be_used_is_named_and_the_version_stays_as_it_was() -> None:
    found = published_fences([row("a", feature(id="a")), row("a", feature(0.0, id="a"), minute=1)])
    assert [fence.id for fence in fences_from_geojson(found.geojson).fences] == ["a"]
    assert len(found.refused) == 1
    assert "a" in found.refused[0]


def test_an_id_of_a_fence_and_a_gate_is_one_of_them_and_the_other_is_named() -> None:
    line = {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}
    gate = feature(id="a", gate=True, effective_from="2026-01-05T00:00:00Z") | {"geometry": line}
    found = published_fences([row("a", feature(id="a")), row("a", gate, minute=1)])
    assert fences_from_geojson(found.geojson).refused == ()
    assert len(found.refused) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fences.geojson", "[1]"),
        ("fences.geojson", json.dumps({"type": "Feature", "properties": None})),
        ("fences.geojson", "{"),
        ("tariffs.json", "{}"),
        ("tariffs.json", '["a"]'),
        ("accounts.json", "[{}]"),
        ("accounts.json", "[" * 100_000),
    ],
)
def test_a_folder_with_what_is_no_version_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    files = {"fences.geojson": json.dumps(feature(id="a")), "tariffs.json": "[]", "accounts.json": "[]"}
    for one, content in (files | {name: text}).items():
        (tmp_path / one).write_text(content)
    with pytest.raises(CloudError, match=name):
        list(read_folder(tmp_path))
