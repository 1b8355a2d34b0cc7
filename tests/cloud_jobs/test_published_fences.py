"""However many fences are published, none is refused for the others, and none is left out unsaid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.derived.fences import changes_between
from cloud_jobs.errors import CloudError
from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.lake.schemas import WHOLE_DEVICE
from cloud_jobs.reference.tables import parse_fences
from geo.reference.in_force import published_fences
from geo.spatial import TrackSettings
from tests.cloud_jobs.geofence.centre import GeofenceCentre, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.publications import row_of
from tests.usage_rows import metered_rows


def square(name: str, lon: float = 0.0, **more: Any) -> str:
    ring = [[lon, 0], [lon + 0.01, 0], [lon + 0.01, 0.01], [lon, 0.01], [lon, 0]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return json.dumps({"type": "Feature", "properties": {"id": name, **more}, "geometry": geometry})


def rows(*bodies: str) -> list[dict[str, Any]]:
    return [
        row_of("fence", str(json.loads(body)["properties"]["id"]), body, number) for number, body in enumerate(bodies)
    ]


def test_a_fence_that_is_published_again_in_other_words_is_the_same_one() -> None:
    first = square("a", title="Hafen")
    again = json.dumps(dict(reversed(json.loads(first).items())), indent=2).replace("Hafen", "\\u0048afen")
    assert again != first
    assert published_fences(rows(first, again)).features == published_fences(rows(first)).features


def usage_zones(fences: tuple[str, ...]) -> set[str]:
    """The zones of a drive through the square at the origin, as the job has them."""
    return {row["zone"] for row in metered_rows((fix._asdict() for fix in THROUGH), fences)} - {WHOLE_DEVICE}


@pytest.mark.parametrize("bad", [square("flat").replace("0.01", "0.0"), "half a fe", "[]", square("")])
def test_with_a_fence_that_cannot_be_used_nothing_is_computed(bad: str) -> None:
    centre = GeofenceCentre(rules(dwell_s=None))
    centre.take(THROUGH)
    assert centre.in_force()
    with pytest.raises(CloudError, match="cannot be used"):
        EventRules.of([square("square"), bad], TrackSettings(), centre.rules.events)
    with pytest.raises(CloudError, match="cannot be used"):
        usage_zones((square("square"), bad))


spaces = st.sampled_from([" ", "\n", "\r\n", "\t", "\n\n "])
names = st.text('ab\u2028\n\r\x85\\"', min_size=1, max_size=4)


@given(st.lists(st.tuples(names, st.integers(0, 5), spaces), max_size=5))
def test_a_feature_on_a_line_is_the_feature_that_was_published(written: list[tuple[str, int, str]]) -> None:
    bodies = [
        json.dumps(json.loads(square(f"f{at}", lon, note=name)), ensure_ascii=False, indent=1).replace("\n", space)
        for at, (name, lon, space) in enumerate(written)
    ]
    found = published_fences(rows(*bodies))
    assert [json.loads(one) for one in found.features] == [json.loads(body) for body in bodies]
    assert all("\n" not in one for one in found.features)
    assert changes_between(found.features, tuple(bodies), 0) == []
    assert len(parse_fences(found.features).fences) == len(bodies)
