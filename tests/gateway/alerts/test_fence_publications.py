"""The fences of a region are those of the centre, message by message, in any order in which publications come again."""

import json
import random
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.reference.files import make_version
from gateway.reference_follower import KEPT_OF_A_VERSION, ReferencePublications
from geo.reference.in_force import published_fences, usable_fence
from geo.reference.messages import ANYBODY, read_messages
from geo.spatial import FenceError, Gate
from waybill.identity.signatures import ID_PROPERTY, next_publication_id
from waybill.pulsar.compacted_topic import TopicMessage

NOW_MS = 1_767_603_422_000
RING = [[8.0, 50.0], [8.1, 50.0], [8.1, 50.1], [8.0, 50.0]]
FLAT = [[0, 0], [0, 0], [0, 0], [0, 0]]


def feature(name: str, geometry: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": {"id": name, **more}, "geometry": geometry}


SHAPES = (
    {"type": "Polygon", "coordinates": [RING]},
    {"type": "Polygon", "coordinates": [FLAT]},
    {"type": "LineString", "coordinates": RING[:2]},
)
VERSIONS = st.builds(
    lambda name, shape, since: feature(
        name, SHAPES[shape], **({"gate": True} if shape == 2 else {}), **({"effective_from": since} if since else {})
    ),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00+01:00"]),
)


def message(body: dict[str, Any], number: int, **more: str) -> TopicMessage:
    version = make_version("fence", body)
    properties = {ID_PROPERTY: next_publication_id(None, NOW_MS + number, 0)} | more
    return TopicMessage(version.key, version.body.encode(), properties, NOW_MS + number)


def as_the_centre(messages: list[TopicMessage]) -> Any:
    columns = [
        {
            "key": one.key,
            "value": one.body,
            "properties": [*one.properties.items()],
            "publish_time": datetime.fromtimestamp(one.published_ms / 1000, UTC),
            "message_id": "2026-01-05T08:57:02Z",
            "malformed": None,
        }
        for one in messages
    ]
    return published_fences(read_messages("fence", columns, ANYBODY).publications)


@given(st.lists(VERSIONS, max_size=8), st.randoms(use_true_random=False))
def test_what_is_in_force_is_what_the_centre_has_in_force(versions: list[dict[str, Any]], dice: random.Random) -> None:
    messages = [message(body, number) for number, body in enumerate(versions)]
    known = ReferencePublications("fence", usable_fence, (FenceError,), lambda: ANYBODY)
    for one in [*dice.sample(messages, len(messages)), *dice.sample(messages, len(messages))]:
        assert known.take(one, NOW_MS) is None
    found, centre = known.in_force(), as_the_centre(messages)
    assert found.refused == centre.refused
    features = [json.loads(one) for one in centre.features]
    assert [(one.row["id"], isinstance(one.made, Gate)) for one in found.held] == [
        (one["properties"]["id"], bool(one["properties"].get("gate"))) for one in features
    ]


def test_however_many_publications_cannot_be_used_what_they_were_to_replace_stays_in_force() -> None:
    messages = [message(feature("a", SHAPES[min(number, 1)]), number) for number in range(4 * KEPT_OF_A_VERSION)]
    known = ReferencePublications("fence", usable_fence, (FenceError,), lambda: ANYBODY)
    for one in messages:
        known.take(one, NOW_MS)
    (held,) = known.in_force().held
    assert held.row["publication_id"] == messages[0].properties[ID_PROPERTY]
    assert known.in_force().refused == as_the_centre(messages).refused
    assert len(known) == KEPT_OF_A_VERSION + 1
