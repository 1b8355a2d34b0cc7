"""What the topics of the reference data hold becomes publications, whatever else is in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloud_jobs.reference.files import make_version
from geo.reference.messages import ANYBODY, MAX_BYTES, Kind, named_message, read_messages
from tests.cloud_jobs.publications import AT, message_of, publication_id
from waybill.identity.publication_id import PROPERTY

GOOD = message_of("fence", {"type": "Feature", "id": "fence-1"})


def feature(**properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"key": None}, "a key and a value"),
        ({"key": None, "malformed": "key not UTF-8: ff"}, "key not UTF-8: ff"),
        ({"value": None}, "a key and a value"),
        ({"value": b""}, "Expecting value"),
        ({"value": b"\xff"}, ""),
        ({"value": b"no JSON"}, "Expecting"),
        ({"value": b"[]"}, "is a JSON object"),
        ({"value": b"[" * 100_000}, ""),
        ({"value": b'"' + b"x" * MAX_BYTES + b'"'}, ""),
        ({"value": b'{"type": "Feature"}'}, "is not that of its content"),
        ({"value": b'{"type": "Feature", "id": null, "properties": [1]}'}, "is not that of its content"),
        ({"key": "fence-1"}, "is not that of its content"),
        ({"key": "FENCE-1@"}, "is not that of its content"),
        ({"key": "fence-1@2026-01-01T00:00:00Z"}, "is not that of its content"),
        ({"key": "x" * 100_000}, "is not that of its content"),
        ({"publish_time": None, "malformed": "publish_time not a time"}, "publish_time"),
        ({"properties": None}, "its property publication_id is to be a UUID of version 7, and is none"),
        ({"properties": [(PROPERTY, "7")]}, "and is '7'"),
    ],
)
def test_a_message_that_is_no_publication_is_quarantined_with_its_place_and_stops_no_other(
    wrong: dict[str, Any], reason: str
) -> None:
    message = GOOD | wrong
    read = read_messages("fence", [message | {"message_id": "9:9:-1"}, GOOD], ANYBODY)
    (row,) = read.publications
    assert (row["id"], row["published_at"], row["place"]) == ("fence-1", AT, f"{named_topic()} 3:0:-1")
    (refused,) = map(named_message, read.quarantined)
    assert (refused.topic, refused.message_id, refused.key) == (named_topic(), "9:9:-1", message["key"] or "")
    assert reason in refused.reason
    assert len(str(refused)) < 500
    assert read.quarantined[0]["payload"] == (
        message["value"] if message["value"] is None else message["value"][:MAX_BYTES]
    )


def named_topic() -> str:
    return "persistent://fleet/reference/fences"


def test_of_two_contents_with_one_id_the_second_is_quarantined() -> None:
    other = message_of("fence", {"type": "Feature", "id": "fence-2"})
    read = read_messages("fence", [GOOD, other, GOOD], ANYBODY)
    assert [row["id"] for row in read.publications] == ["fence-1", "fence-1"]
    (row,) = read.quarantined
    assert row["reason"] == f"its publication id {publication_id(0)} is that of another content"


NAMES = st.one_of(
    st.text(min_size=1, max_size=5),
    st.sampled_from(["@", "a@b", "a@2026-01-05", "\ud800"]),
    st.integers(-(2**64), 2**64),
    st.just(0.5),
)
BEGINS = st.sampled_from([None, "", "2026-01-05T01:00:00+01:00", "2026-01-05", "soon", 7, "a@b"])


@given(NAMES, BEGINS, BEGINS)
@example(2**63, None, None)
@example("\ud800", None, None)
def test_what_is_published_is_taken_and_what_would_be_refused_is_not_published(
    name: Any, begin: Any, other: Any
) -> None:
    bodies: tuple[tuple[Kind, dict[str, Any]], ...] = (
        ("fence", feature(id=name, effective_from=begin)),
        ("tariff", {"id": name, "effective_from": begin}),
        ("account", {"id": name, "effective_from": other}),
    )
    for kind, body in bodies:
        if name == "\ud800" or (isinstance(name, int) and not -(2**63) <= name < 2**63):
            with pytest.raises(ValueError, match="cannot be published"):
                make_version(kind, body)
            continue
        version = make_version(kind, body)
        found = read_messages(kind, [GOOD | {"key": version.key, "value": version.body.encode()}], ANYBODY)
        assert found.quarantined == []
        assert [row["id"] for row in found.publications] == [str(name)]
