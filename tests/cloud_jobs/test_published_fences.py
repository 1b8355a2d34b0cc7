"""However many fences are published, none is refused for the others, and none is left out unsaid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud_jobs.errors import CloudError
from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.lake.schemas import WHOLE_DEVICE
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
