"""Of the fences that were published each is in force, or is named with the reason, whatever the others are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud_jobs.derived.fences import changes_between
from cloud_jobs.reference.tables import parse_fences
from geo.reference.in_force import PublishedFences, published_fences
from tests.cloud_jobs.publications import publication_id, row_of


def feature(width: float = 1.0, **properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [width, 0], [width, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def widths_of(found: PublishedFences) -> list[float]:
    return [json.loads(one)["geometry"]["coordinates"][0][1][0] for one in found.features]


def test_a_correction_of_a_version_replaces_it_however_its_instant_is_written() -> None:
    rows = [
        row_of("fence", "a", feature(2.0, id="a", effective_from="2026-01-05T01:00:00+01:00"), 1),
        row_of("fence", "a", feature(1.0, id="a", effective_from="2026-01-05T00:00:00Z")),
        row_of("fence", "a", feature(3.0, id="a", effective_from="2026-01-06T00:00:00Z")),
    ]
    found = published_fences(rows)
    assert widths_of(found) == [2.0, 3.0]
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
    found = published_fences([row_of("fence", "bad", body), row_of("fence", "good", feature(id="good"))])
    (refused,) = found.refused
    assert (refused.kind, refused.id, refused.place) == ("fence", "bad", "topic 3:0:-1")
    assert refused.reason
    assert [fence.id for fence in parse_fences(found.features).fences] == ["good"]
    assert changes_between((), found.features, 0)


def test_a_correction_that_cannot_be_used_is_named_and_the_version_stays_as_it_was() -> None:
    found = published_fences([row_of("fence", "a", feature(id="a")), row_of("fence", "a", feature(0.0, id="a"), 1)])
    assert [fence.id for fence in parse_fences(found.features).fences] == ["a"]
    assert [refused.publication_id for refused in found.refused] == [publication_id(1)]
