"""What the topics of the reference data hold becomes versions, whatever else is in them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cloud_jobs.geofence.fence_changes import changes_between
from cloud_jobs.reference import published_fences, versions_in
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
    assert found.all_refused() == ()


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
        feature(id="bad", priority="high"),
        "[" * 100_000,
        "nothing",
    ],
)
def test_a_fence_that_cannot_be_used_is_named_and_stops_no_other(body: Any) -> None:
    found = published_fences([row("bad", body), row("good", feature(id="good"))])
    (refused,) = found.all_refused()
    assert "fence" in refused
    report = fences_from_geojson(found.geojson)
    assert [fence.id for fence in report.fences] == ["good"]
    assert changes_between(published_fences([]).geojson, found.geojson, 0)
