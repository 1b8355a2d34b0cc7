"""What comes in: what it becomes, when it is committed, and what is known again."""

import json
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.agent import Agent, buffer_state, current_state, health_state
from edge_agent.config import AgentSettings
from edge_agent.intake.messages import (
    MAX_KINDS,
    NONE,
    OTHER_TOPICS,
    READABLE,
    SAMPLE_CHARACTERS,
    SHOWN_S,
    SOME,
    UnreadableMessages,
    parse_message,
)
from edge_agent.intake.record_intake import GATHER_S, GroupCommit
from edge_agent.store.batch_rows import (
    BATCH_CONTENT_BYTES,
    Arrival,
    BatchOwner,
    RecentArrivals,
    arrival_of,
    pack_arrivals,
    pack_commit,
    unpack_arrivals,
)
from edge_agent.text_tables import print_status
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.makers import DEVICE, missing_in, open_buffer, pending_record, stored_bytes
from tests.examples import examples
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import TOO_LARGE_EVENT, Event, Raw, decode

RECORDS, SIZE = 100, 10_000


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


def test_a_commit_is_due_after_its_delay_and_at_once_when_it_is_full_or_urgent():
    group = GroupCommit(delay_s=0.2, records=RECORDS, size=SIZE)
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
    for _ in range(RECORDS):
        group.add(2.0, 1, urgent=False)
    assert group.due_in(2.0) == 0
    group.on_committed(2.0)
    group.add(3.0, SIZE, urgent=False)
    assert group.due_in(3.0) == 0


@given(st.lists(st.floats(0.15, 3), min_size=1, max_size=60), st.floats(0.001, 2))
def test_commits_that_time_makes_due_are_apart_and_nothing_waits_longer_than_the_delay(pauses, delay_s):
    group = GroupCommit(delay_s=delay_s, records=10_000, size=10_000)
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


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.dictionaries(FIELDS, json_values), st.sampled_from(["signal", "event", "position"]))))
def test_whatever_parse_accepts_can_be_written_and_read_again(messages):
    waiting = []
    for number, (message, topic) in enumerate(messages, 1):
        (parsed,) = parse_message(f"vehicle/{topic}", json.dumps(message).encode())
        waiting.append(pending_record(number)._replace(body=parsed.body, device_time_us=parsed.device_time_us or 0))
    found = pack_commit(waiting, BatchOwner("eu-0001", 7, 0), 1, 0)
    assert found.unencodable == 0
    assert sum(len(decode(block.data).records) for block in found.batches) == len(messages)


def test_what_no_batch_can_hold_is_carried_raw_beside_its_neighbours(tmp_path):
    buffer = open_buffer(tmp_path)
    spoiled = pending_record(2)._replace(
        body=Raw.model_construct(topic="\ud83d", payload=b"bytes"), topic="\ud83d", payload=b"bytes"
    )
    buffer.commit([pending_record(1), spoiled, pending_record(3)], 1_767_603_422_000)
    assert buffer.head == 3
    records = [
        record for block in buffer.read_after(0, 1, 9) for record in decode(stored_bytes(buffer, block.id)).records
    ]
    raw = next(record.body for record in records if isinstance(record.body, Raw))
    assert (raw.topic, raw.payload, raw.reason) == ("\\ud83d", b"bytes", "unencodable")
    assert len(records) == 3
    assert buffer.counters.value("unencodable") == 1
    assert missing_in(buffer) == 0


def test_a_hundred_megabytes_that_compress_well_become_blocks_that_can_be_read(tmp_path):
    intake = IntakeHarness(tmp_path)
    payload = b'{"x": "' + b"a" * 999_000 + b'"}'
    messages = [MqttMessage(mid, 1, False, "vehicle/odd", payload) for mid in range(1, 101)]
    assert sorted(intake.deliver(messages)) == list(range(1, 101))
    assert [record.seq for record in intake.records()] == list(range(1, 101))
    largest = max(block.records for block in intake.buffer.read_after(0, 3, 1_000))
    assert largest * len(payload) <= BATCH_CONTENT_BYTES


OWNTRACKS = b'{"_type":"location","tid":"x","lat":53.55,"lon":9.99,"tst":1795359064,"acc":12}'
FIX = b'{"time":1795359064626,"latitude":53.55,"longitude":9.99}'


def test_a_day_in_a_format_of_another_product_is_seen_in_status_and_health(tmp_path):
    intake = IntakeHarness(tmp_path)
    for number in range(200):
        message = MqttMessage(number + 1, 1, False, "vehicle/position", OWNTRACKS)
        intake.record_intake.receive(message, float(number))
    seen = intake.record_intake.unreadable
    (row,) = seen.rows()
    assert (row["topic"], row["reason"], row["messages"]) == ("vehicle/position", "wrong-fields", 200)
    assert (row["detail"], row["sample"][:18]) == ("`latitude` is missing", '{"_type":"location')
    assert seen.state(199.0) == NONE
    intake.record_intake.receive(MqttMessage(300, 1, False, "vehicle/position", FIX), 200.0)
    assert (seen.state(200.0), seen.state(199.0 + SHOWN_S)) == (SOME, READABLE)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.text(max_size=200), st.sampled_from(["no-json", "no-time"]), st.binary(max_size=300))))
def test_whatever_comes_what_is_kept_is_bounded_printable_and_complete(messages):
    seen = UnreadableMessages()
    for number, (topic, reason, payload) in enumerate([*messages, *((f"t{n}", "no-json", b"") for n in range(99))]):
        seen.add(topic, reason, payload, float(number))
    rows = seen.rows()
    assert sum(row["messages"] for row in rows) == len(messages) + 99
    assert len(rows) <= MAX_KINDS + 2
    assert any(row["topic"] == OTHER_TOPICS for row in rows)
    for row in rows:
        assert row["sample"].isprintable()
        assert row["topic"].isprintable()
        assert max(len(row["sample"]), len(row["topic"])) <= SAMPLE_CHARACTERS


def agent(folder: Path, floor_bytes: int = 0) -> Agent:
    buffer = {"path": str(folder), "free_space_floor_bytes": floor_bytes}
    return Agent(
        AgentSettings.model_validate(
            {"device": {"id": DEVICE}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}], "buffer": buffer}
        )
    )


def take(it: Agent) -> None:
    it.intake.receive(MqttMessage(1, 1, False, "vehicle/other", b"x"), 0.0)
    it.intake.commit(0.0)


def test_records_that_are_dropped_for_want_of_space_are_said_for_a_minute(tmp_path, monkeypatch):
    it = agent(tmp_path, floor_bytes=1 << 60)
    assert buffer_state(it) == "stores"
    take(it)
    assert it.buffer.counters.value("lost_space") == 1
    assert buffer_state(it) == "drops records"
    assert it.retention.dropped_at_s is not None
    it.retention.dropped_at_s -= 61
    assert buffer_state(it) == "stores"
    it.buffer.close()


@pytest.mark.parametrize("state", ["drops records", "cannot commit"])
@pytest.mark.parametrize("uplink", ["acknowledges", "unknown"])
def test_an_agent_that_does_not_store_is_not_healthy_whatever_the_uplink_says(tmp_path, monkeypatch, state, uplink):
    it = agent(tmp_path)
    it.intake_loop.connected = True
    monkeypatch.setattr("edge_agent.agent.is_alive", lambda _: True)
    monkeypatch.setattr("edge_agent.agent.uplink_state", lambda _: uplink)
    assert health_state(it)["healthy"] is (True if uplink == "acknowledges" else None)
    monkeypatch.setattr("edge_agent.agent.buffer_state", lambda _: state)
    assert health_state(it)["healthy"] is False
    it.buffer.close()


def test_an_agent_that_cannot_time_messages_is_not_healthy_and_names_the_way_out(tmp_path, monkeypatch, capsys):
    it = agent(tmp_path)
    it.intake_loop.connected = True
    monkeypatch.setattr("edge_agent.agent.is_alive", lambda _: True)
    monkeypatch.setattr("edge_agent.agent.uplink_state", lambda _: "acknowledges")
    it.intake.arrivals.on_refused(0)
    assert (health_state(it)["arrivals"], health_state(it)["healthy"]) == ("unproven", False)
    silent = {"mapping": "phones", "silent_s": 700.0, "messages": 9, "records": 0, "refused": 9}
    state = current_state(it) | {"mappings": [silent | {"last_refusal": "", "sample": ""}], "uptime_s": 0}
    known = {"tenant": "acme", "device": "bus", "running": True, "epoch": 1, "head": 2, "classes": {}, "counters": {}}
    print_status(state | known | {"acknowledged": 0, "dead_letter_records": 0, "gaps": 0})
    printed = "".join(capsys.readouterr().out.split())
    assert "waybill/agent/arrived" in printed.replace("│", "")
    assert "phones(11min)" in printed
    it.buffer.close()


def test_status_names_members_that_are_nearly_ours_and_shows_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A vehicle that says `accuracy` loses it silently otherwise, and its noise is billed."""
    left_out = {"accuracy": 120, "speed_mps": 2, "hdop": 3, "\x1b[2J": 1}
    print_status(
        {"tenant": "acme", "device": "bus", "running": False, "epoch": 1, "head": 2, "classes": {}, "counters": {}}
        | {"acknowledged": 0, "dead_letter_records": 0, "gaps": 0, "left_out_members": left_out}
    )
    printed = capsys.readouterr().out
    assert "did you mean 'accuracy_m'?" in printed
    assert "its value cannot be used" in printed
    assert "\x1b[2J" not in printed
