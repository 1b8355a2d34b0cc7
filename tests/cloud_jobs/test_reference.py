"""What the topics of the reference data hold becomes versions, whatever else is in them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st

from cloud_jobs.geofence.fence_changes import changes_between
from cloud_jobs.lake.schemas import REFERENCE
from cloud_jobs.lake.tables import Lake
from cloud_jobs.published_fences import PublishedFences, parse_fences, published_fences
from cloud_jobs.reference import Kind, changing, collect, fences_in, versions_in
from cloud_jobs.reference_files import make_version

AT = datetime(2026, 1, 5, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "key": "fence-1@",
    "value": b'{"type": "Feature", "id": "fence-1"}',
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
        {"value": b'{"type": "Feature"}'},
        {"value": b'{"type": "Feature", "id": null, "properties": [1]}'},
        {"key": "fence-1"},
        {"key": "FENCE-1@"},
        {"key": "fence-1@2026-01-01T00:00:00Z"},
        {"key": "x" * 100_000},
        {"publish_time": None, "malformed": "publish_time not a time of the years 1970 to 9999: 0 ms"},
    ],
)
def test_a_message_that_is_no_version_is_left_out_and_stops_no_other(wrong: dict[str, Any]) -> None:
    found = versions_in("fence", [GOOD | wrong, GOOD])
    body, place = GOOD["value"].decode(), "0000000000000000001:0000000000000000002:0000000000"
    assert found.rows == [{"kind": "fence", "id": "fence-1", "body": body, "published_at": AT, "place": place}]
    (refused,) = found.refused
    assert "fence 1:2:-1: " in refused


def feature(width: float = 1.0, **properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [width, 0], [width, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def row(id_: str, body: Any, minute: int = 0) -> dict[str, Any]:
    text = body if isinstance(body, str) else json.dumps(body)
    return {"kind": "fence", "id": id_, "body": text, "published_at": AT + timedelta(minutes=minute), "place": None}


def widths_of(found: PublishedFences) -> list[float]:
    return [json.loads(one)["geometry"]["coordinates"][0][1][0] for one in found.features]


def test_a_correction_of_a_version_replaces_it_however_its_instant_is_written() -> None:
    rows = [
        row("a", feature(2.0, id="a", effective_from="2026-01-05T01:00:00+01:00"), minute=1),
        row("a", feature(1.0, id="a", effective_from="2026-01-05T00:00:00Z")),
        row("a", feature(3.0, id="a", effective_from="2026-01-06T00:00:00Z")),
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
    found = published_fences([row("bad", body), row("good", feature(id="good"))])
    (refused,) = found.refused
    assert "fence" in refused
    assert [fence.id for fence in parse_fences(found.features).fences] == ["good"]
    assert changes_between((), found.features, 0)


def test_a_fence_named_by_the_feature_itself_is_a_fence_like_others() -> None:
    lone = {key: value for key, value in feature().items() if key != "properties"} | {"id": "b"}
    for body in (lone, lone | {"properties": None}, lone | {"properties": {}}):
        found = published_fences([row("b", body)])
        assert found.refused == ()
        assert [fence.id for fence in parse_fences(found.features).fences] == ["b"]
        assert changes_between((), found.features, 0)


def test_of_two_rows_of_one_version_the_newest_holds_whatever_their_keys_are() -> None:
    absent, null = feature(1.0, id="a"), feature(2.0, id="a", effective_from=None)
    for first, second, width in ((absent, null, 2.0), (null, absent, 1.0)):
        for keys in (("a", "zzz"), ("zzz", "a")):
            found = published_fences([row(keys[0], first), row(keys[1], second, minute=1)])
            assert found.refused == ()
            (fence,) = parse_fences(found.features).fences
            assert fence.shape.bounds[2] == width


def test_a_correction_that_cannot_be_used_is_named_and_the_version_stays_as_it_was() -> None:
    found = published_fences([row("a", feature(id="a")), row("a", feature(0.0, id="a"), minute=1)])
    assert [fence.id for fence in parse_fences(found.features).fences] == ["a"]
    assert len(found.refused) == 1
    assert "a" in found.refused[0]


def test_an_id_of_a_fence_and_a_gate_is_one_of_them_and_the_other_is_named() -> None:
    line = {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}
    gate = feature(id="a", gate=True, effective_from="2026-01-05T00:00:00Z") | {"geometry": line}
    found = published_fences([row("a", feature(id="a")), row("a", gate, minute=1)])
    assert len(parse_fences(found.features).fences) == len(found.refused) == 1


def at(minute: int, body: Any, kind: str = "fence", id_: str = "a") -> dict[str, Any]:
    return row(id_, body, minute) | {"kind": kind}


OTHER = feature(2.0, id="a")
SAME = feature(1.0, id="a")


class Topics:
    """What `collect` reads: the compacted topics, of which each holds the newest message of each key."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, dict[str, Any]]] = {topic: {} for topic in ("fences", "tariffs", "accounts")}
        self.sent: list[tuple[str, str]] = []
        self._topic = ""

    def publish(self, topic: str, key: str, body: Any, minute: int) -> None:
        value, place = json.dumps(body).encode(), f"3:{9 + len(self.sent)}:-1"
        message = {"key": key, "value": value, "publish_time": AT + timedelta(minutes=minute), "message_id": place}
        self.sent.append((topic, key))
        self.held[topic][key] = GOOD | message

    @property
    def read(self) -> "Topics":
        return self

    def format(self, _name: str) -> "Topics":
        return self

    def options(self, **_options: str) -> "Topics":
        return self

    def option(self, name: str, value: str) -> "Topics":
        self._topic = value.rpartition("/")[2] if name == "topics" else self._topic
        return self

    def load(self) -> "Topics":
        return self

    def select(self, *_columns: str) -> "Topics":
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.Table.from_pylist([*self.held[self._topic].values()], schema=MESSAGES)


MESSAGES = pa.schema(
    [
        *(("key", pa.string()), ("value", pa.binary()), ("publish_time", pa.timestamp("us", "UTC"))),
        *(("message_id", pa.string()), ("malformed", pa.string())),
    ]
)


def widths(lake: Lake) -> list[float]:
    return widths_of(fences_in(lake))


def test_a_correction_that_is_taken_back_holds_no_more_and_what_held_before_can_be_published_again(
    tmp_path: Path,
) -> None:
    lake, topics = Lake(tmp_path), Topics()
    lake.create()
    for minute, body in enumerate([SAME, OTHER, SAME, SAME, OTHER, SAME]):
        topics.publish("fences", "a@", body, minute)
        for kind in ("tariff", "account"):
            topics.publish(f"{kind}s", "t@", {"id": "t", "width": body["geometry"]["coordinates"][0][1][0]}, minute)
        for _ in range(2):
            collect(topics, lake, {})
        assert widths(lake) == [1.0 if body is SAME else 2.0]
    rows = sorted(lake.rows("reference").to_pylist(), key=lambda row: row["published_at"])
    for kind in ("fence", "tariff", "account"):
        minutes = [(row["published_at"] - AT) // timedelta(minutes=1) for row in rows if row["kind"] == kind]
        assert minutes == [0, 1, 2, 4, 5]


def test_versions_that_are_published_again_each_night_make_no_rows() -> None:
    later = feature(3.0, id="a", effective_from="2026-02-01T00:00:00Z")
    old = [at(0, SAME), at(0, later)]
    assert changing(old, [at(1440, SAME), at(1440, later)]) == []
    again = feature(2.0, id="a", effective_from="2026-02-01T01:00:00+01:00")
    new = [at(1440, again), at(2880, later)]
    assert changing(old, new) == new
    prices = [at(0, {"effective_from": f"2026-0{month}-01"}, "tariff") for month in (1, 2)]
    assert changing(prices, [one | {"published_at": AT + timedelta(1)} for one in prices]) == []


def test_of_accounts_the_one_published_last_holds_whatever_it_says_of_its_beginning() -> None:
    old = [at(minute, {"effective_from": f"2026-0{minute + 1}-01"}, "account") for minute in range(2)]
    again = old[0] | {"published_at": AT + timedelta(1)}
    assert changing(old, [again]) == [again]


@pytest.mark.parametrize("body", ["[]", "{}", '"a"', '{"properties": 1}', '{"properties": {"effective_from": 7}}', "x"])
def test_a_publication_whose_beginning_is_not_known_is_kept_if_it_changes_anything(body: str) -> None:
    assert len(changing([at(0, body), at(1, "{}")], [at(2, body)])) == (body != "{}")


def test_a_fence_that_stands_stays_when_a_gate_of_its_id_is_published_later_from_an_earlier_time() -> None:
    line = {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}
    gate = feature(id="a", gate=True) | {"geometry": line}
    standing = row("a", feature(id="a", effective_from="2026-01-05T00:00:00Z"))
    found = published_fences([standing, row("a", gate, minute=1), row("a", feature(2.0, id="a"), minute=2)])
    (refused,) = found.refused
    assert "gate" in refused
    assert [fence.shape.bounds[2] for fence in parse_fences(found.features).fences] == [2.0, 1.0]
    mistaken = published_fences([row("a", gate), row("a", feature(id="a"), minute=1)])
    assert mistaken.refused == ()
    assert len(parse_fences(mistaken.features).fences) == 1


def test_of_publications_of_one_millisecond_the_one_later_in_the_topic_holds(tmp_path: Path) -> None:
    # the body of the one published last would come first, and so would its entry, as text
    for number, (first, last) in enumerate([(SAME, OTHER), (OTHER, SAME)]):
        lake, topics = Lake(tmp_path / str(number)), Topics()
        lake.create()
        for body in (first, last, first, last):
            topics.publish("fences", "a@", body, 0)
            topics.publish("tariffs", "t@", {"id": "t", "width": body["geometry"]["coordinates"][0][1][0]}, 0)
            collect(topics, lake, {})
        assert widths(lake) == [2.0 if last is OTHER else 1.0]
        assert lake.open("reference").count() == 8


def test_the_messages_of_one_batch_are_in_the_order_of_their_indexes() -> None:
    ids = ["9:99:-1", "10:2:-1", "10:10:-1:0", "10:10:-1:9", "10:10:-1:10", "10:11:3"]
    places = [versions_in("fence", [GOOD | {"message_id": one}]).rows[0]["place"] for one in ids]
    assert places == sorted(set(places))


def test_read_again_in_another_cluster_nothing_changes(tmp_path: Path) -> None:
    lake, topics = Lake(tmp_path), Topics()
    lake.create()
    for minute, body in enumerate([SAME, OTHER]):
        topics.publish("fences", "a@", body, minute)
        collect(topics, lake, {})
    # the place of one means nothing in the other: it may come to stand twice, and no more often
    for place, rows in (("9:9:-1", 2), ("1:1:-1", 3), ("1:1:-1", 3)):
        topics.held["fences"]["a@"]["message_id"] = place
        collect(topics, lake, {})
        assert (widths(lake), lake.open("reference").count()) == ([2.0], rows)


def test_a_table_without_places_gets_them_and_what_stood_in_it_holds_until_something_else_is_published(
    tmp_path: Path,
) -> None:
    lake, topics = Lake(tmp_path), Topics()
    without = REFERENCE.remove(REFERENCE.get_field_index("place"))
    topics.publish("fences", "a@", SAME, 0)
    DeltaTable.create(lake.path("reference"), schema=without)
    (old,) = [
        {name: row[name] for name in without.names} for row in versions_in("fence", topics.held["fences"].values()).rows
    ]
    write_deltalake(lake.path("reference"), pa.Table.from_pylist([old], schema=without), mode="append")
    for _ in range(2):
        lake.create()
        collect(topics, lake, {})
    assert (widths(lake), lake.open("reference").count()) == ([1.0], 1)
    topics.publish("fences", "a@", OTHER, 0)
    collect(topics, lake, {})
    assert (widths(lake), lake.open("reference").count()) == ([2.0], 2)


def test_a_publication_whose_key_is_not_that_of_its_content_is_refused_and_counted(tmp_path: Path) -> None:
    lake, topics = Lake(tmp_path), Topics()
    lake.create()
    topics.publish("fences", "a@", SAME, 0)
    topics.publish("fences", "A@", OTHER, 1)
    topics.publish("accounts", "acme@", {"id": "acne"}, 1)
    found = collect(topics, lake, {})
    assert (widths(lake), found.rows, found.refused_messages) == ([1.0], 1, 2)
    # however its instant is written; an account has one version
    begin = feature(3.0, id="a", effective_from="2026-01-05T01:00:00+01:00")
    topics.publish("fences", "a@2026-01-05T00:00:00Z", begin, 2)
    topics.publish("accounts", "acme@2026-01-05", {"id": "acme"}, 2)
    found = collect(topics, lake, {})
    assert (widths(lake), found.rows, found.refused_messages) == ([1.0, 3.0], 3, 2)


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
        message = GOOD | {"key": version.key, "value": version.body.encode()}
        found = versions_in(kind, [message])
        assert found.refused == []
        assert [row["id"] for row in found.rows] == [str(name)]
