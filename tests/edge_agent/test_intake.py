"""What comes in: what it becomes, when it is committed, and what is known again."""

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import DEFAULT_CLASSES
from edge_agent.intake.messages import Parsed, parse_message
from edge_agent.intake.record_intake import GATHER_S, Classifier, CommitBudget, GroupCommit
from edge_agent.store.batch_rows import Arrival, RecentArrivals, arrival_of, pack_arrivals, unpack_arrivals
from waybill.record import TOO_LARGE_EVENT, Canary, Event, Position, Raw, Signal

BUDGET = CommitBudget(delay_s=0.2, records=100, size=10_000)


@pytest.mark.parametrize(
    ("topic", "message", "body"),
    [
        ("vehicle/position", {"latitude": 53.4, "longitude": -2.9}, Position(latitude=53.4, longitude=-2.9)),
        ("vehicle/signal", {"path": "Vehicle.Speed", "value": 3}, Signal(path="Vehicle.Speed", value=3.0)),
        ("vehicle/signal", {"path": "Vehicle.IsMoving", "value": True}, Signal(path="Vehicle.IsMoving", value=True)),
        ("vehicle/event", {"name": "trip_end", "attributes": {"a": 1}}, Event(name="trip_end", attributes='{"a":1}')),
        ("vehicle/canary", {"id": "c1"}, Canary(id="c1")),
    ],
)
def test_a_message_of_the_contract_becomes_its_kind_with_its_time(topic, message, body):
    payload = json.dumps({"time": 1_767_603_422_000, **message}).encode()
    assert parse_message(topic, payload) == (Parsed(body, 1_767_603_422_000_000, "", payload),)


@pytest.mark.parametrize("text", ["2026-01-05T08:57:02+00:00", "2026-01-05T09:57:02+01:00", "2026-01-05T08:57:02Z"])
def test_a_time_may_be_iso_8601_with_an_offset(text):
    (parsed,) = parse_message("vehicle/canary", json.dumps({"time": text, "id": "c"}).encode())
    assert parsed.device_time_us == 1_767_603_422_000_000


@pytest.mark.parametrize(
    ("topic", "payload", "malformed"),
    [
        ("vehicle/position", b"\xff\x00", "no-json"),
        ("vehicle/position", b"[" * 100_000, "too-many-values"),
        ("vehicle/position", b"[1, 2]", "no-object"),
        ("vehicle/position", b'{"latitude": 1, "longitude": 2}', "no-time"),
        ("vehicle/position", b'{"time": true, "latitude": 1, "longitude": 2}', "time-not-read"),
        ("vehicle/position", b'{"time": "2026-01-05T08:57:02", "latitude": 1, "longitude": 2}', "time-without-offset"),
        ("vehicle/position", b'{"time": -1, "latitude": 1, "longitude": 2}', "impossible-time"),
        ("vehicle/position", b'{"time": 1e400, "latitude": 1, "longitude": 2}', "number-out-of-range"),
        ("vehicle/position", b'{"time": 1, "latitude": 91, "longitude": 2}', "impossible-position"),
        ("vehicle/position", b'{"time": 1, "latitude": NaN, "longitude": 2}', "no-fix"),
        ("vehicle/position", b'{"time": 1, "longitude": 2}', "wrong-fields"),
        ("vehicle/signal", b'{"time": 1, "path": "", "value": 1}', "wrong-fields"),
        ("vehicle/signal", b'{"time": 1, "path": "a", "value": 9007199254740993}', "number-too-large"),
        ("vehicle/signal", b'{"time": 1, "path": "a", "value": {"b": 1}}', "wrong-fields"),
        ("vehicle/signal", b'{"time": 1, "path": "a"}', "wrong-fields"),
        ("vehicle/signal", rb'{"time": 1, "path": "a", "value": "\ud83d"}', "lone-surrogate"),
        ("vehicle/signal", b'{"time": 1, "time": 2, "path": "a", "value": 1}', "duplicate-name"),
        ("vehicle/event", b'{"time": 1, "name": "n", "attributes": ' + b'{"a":' * 40 + b"1" + b"}" * 41, "too-deep"),
        ("vehicle/../../etc/passwd", b"x", "unknown-topic"),
        ("vehicle/a/../b", b"x", "unknown-topic"),
    ],
)
def test_what_does_not_follow_the_contract_is_carried_as_it_is_and_counted(topic, payload, malformed):
    (parsed,) = parse_message(topic, payload)
    raw = Raw(topic=topic, payload=payload, reason=malformed)
    assert parsed._replace(detail="") == Parsed(raw, None, malformed, payload)


def test_ten_megabytes_are_refused_with_an_event_that_says_so():
    (parsed,) = parse_message("vehicle/position", b"x" * (10 << 20))
    assert isinstance(parsed.body, Event)
    assert parsed.body.name == TOO_LARGE_EVENT
    assert json.loads(parsed.body.attributes) == {"topic": "vehicle/position", "bytes": 10 << 20, "reason": "too-large"}
    assert parsed.malformed == "too-large"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["time", "latitude", "longitude", "path", "value", "name", "attributes", "id", "speed_mps"])


@given(
    st.dictionaries(FIELDS, json_values),
    st.sampled_from(["vehicle/position", "vehicle/signal", "vehicle/event", "vehicle/canary"]),
)
def test_no_json_object_breaks_the_intake(message, topic):
    payload = json.dumps(message).encode()
    (parsed,) = parse_message(topic, payload)
    if parsed.malformed:
        assert parsed.body == Raw(topic=topic, payload=payload, reason=parsed.malformed)


@pytest.mark.parametrize(
    ("topic", "name"),
    [("vehicle/event", "urgent"), ("vehicle/position", "position"), ("vehicle/signal", "signal"), ("$odd", "other")],
)
def test_the_first_class_that_fits_takes_the_record(topic, name):
    classify = Classifier(DEFAULT_CLASSES)
    assert [DEFAULT_CLASSES[classify(topic)].name for _ in range(2)] == [name, name]


def test_a_commit_is_due_after_its_delay_and_at_once_when_it_is_full_or_urgent():
    group = GroupCommit(BUDGET)
    assert group.due_in(0.0) is None
    group.add(1.0, 10, urgent=False)
    group.on_committed(1.0)
    group.add(1.0, 10, urgent=False)
    assert group.due_in(1.05) == pytest.approx(0.15)
    assert group.due_in(1.3) == 0
    group.add(1.06, 10, urgent=True)
    assert group.due_in(1.06) == 0
    group.on_committed(1.07)
    assert group.due_in(1.07) is None
    for _ in range(BUDGET.records):
        group.add(2.0, 1, urgent=False)
    assert group.due_in(2.0) == 0
    group.on_committed(2.0)
    group.add(3.0, BUDGET.size, urgent=False)
    assert group.due_in(3.0) == 0


def test_what_comes_after_a_silence_is_committed_once_what_comes_with_it_is_there():
    group = GroupCommit(BUDGET)
    group.add(1.0, 10, urgent=False)
    group.add(1.005, 10, urgent=False)
    assert group.due_in(1.005) == pytest.approx(GATHER_S - 0.005)
    group.on_committed(1.02)
    group.add(1.1, 10, urgent=False)
    assert group.due_in(1.1) == pytest.approx(0.12), "the last commit was a moment ago"
    group.on_committed(1.22)
    group.add(2.22, 10, urgent=False)
    assert group.due_in(2.22) == pytest.approx(GATHER_S)


@given(st.lists(st.floats(0.15, 3), min_size=1, max_size=60), st.floats(0.001, 2))
def test_commits_that_time_makes_due_are_apart_and_nothing_waits_longer_than_the_delay(pauses, delay_s):
    group = GroupCommit(CommitBudget(delay_s=delay_s, records=10_000, size=10_000))
    commits, oldest_s = [], None
    # so far apart that they are never taken for a broker's window
    for now_s in accumulate(pause * delay_s for pause in pauses):
        # due before the next one came
        if oldest_s is not None and (due_s := oldest_s + group.due_in(oldest_s)) <= now_s:
            assert min(GATHER_S, delay_s) - 1e-9 <= due_s - oldest_s <= delay_s + 1e-9
            group.on_committed(due_s)
            commits.append(due_s)
            oldest_s = None
        oldest_s = now_s if oldest_s is None else oldest_s
        group.add(now_s, 1, urgent=False)
    assert all(later - earlier >= delay_s - 1e-9 for earlier, later in pairwise(commits))


arrivals = st.builds(Arrival, st.integers(0, 65_535), st.binary(min_size=8, max_size=8))


@given(st.lists(arrivals, max_size=50), st.integers(1, 20))
def test_a_ring_knows_the_last_arrivals_and_no_older_ones(came, size):
    ring = RecentArrivals(size, came)
    assert len(ring) == min(size, len(came))
    assert all(arrival in ring for arrival in came[-size:])
    older = set(came[:-size]) - set(came[-size:])
    assert not any(arrival in ring for arrival in older)
    assert unpack_arrivals(pack_arrivals(came)) == came


def test_the_same_id_with_another_topic_or_payload_is_another_arrival():
    assert (
        len({arrival_of(1, "a", b"b"), arrival_of(1, "a", b"c"), arrival_of(1, "ab", b""), arrival_of(2, "a", b"b")})
        == 4
    )
