"""No message stops the intake: what cannot be written is carried raw, or is a dead letter; the others are stored."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.inspection import dead_letters, read_status
from edge_agent.intake import record_intake
from edge_agent.store import batch_rows as bounds
from edge_agent.store.batch_rows import (
    BATCH_CONTENT_BYTES,
    MAX_DEAD_LETTERS,
    BatchOwner,
    DeadLetter,
    add_dead_letters,
    packed,
)
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.makers import missing_in, open_buffer, pending_record
from tests.edge_agent.test_daemon import settings as agent_settings
from tests.edge_agent.test_intake import FIELDS, json_values
from tests.examples import examples
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Raw, Signal, decode

GOOD = b'{"time": 1767603422000, "path": "Vehicle.Speed", "value": 3}'
NASTY = [
    rb'{"time": 1, "path": "a", "value": "\ud83d"}',
    rb'{"time": 1, "path": "\udc00", "value": 1}',
    b'{"time": 1, "path": "a", "value": 1e303}',
    b'{"time": 1, "path": "a", "value": -1.7e308}',
    b'{"time": 253402300799999, "path": "a", "value": 1}',
    b'{"time": 1' + b"0" * 5_000 + b', "path": "a", "value": 1}',
    b"[" * 80_000,
]


@pytest.mark.parametrize("payload", NASTY, ids=range(len(NASTY)))
def test_a_nasty_message_is_stored_among_its_neighbours_and_all_are_acknowledged(tmp_path, payload):
    intake = IntakeHarness(tmp_path)
    payloads = [GOOD, payload, GOOD]
    messages = [MqttMessage(mid, 1, False, "vehicle/signal", one) for mid, one in enumerate(payloads, 1)]
    assert sorted(intake.deliver(messages)) == [1, 2, 3]
    records = intake.records()
    assert [record.seq for record in records] == [1, 2, 3]
    assert sum(isinstance(record.body, Signal) for record in records) >= 2


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.dictionaries(FIELDS, json_values), st.sampled_from(["signal", "event", "position"]))),
)
def test_whatever_parse_accepts_can_be_written_and_read_again(messages):
    waiting = []
    for number, (message, topic) in enumerate(messages, 1):
        (parsed,) = record_intake._parsed_message(
            MqttMessage(number, 1, False, f"vehicle/{topic}", json.dumps(message).encode())
        )
        waiting.append(pending_record(number)._replace(body=parsed.body, device_time_us=parsed.device_time_us or 0))
    found = packed(waiting, BatchOwner("eu-0001", 7, 0), 1, 0)
    assert (found.unencodable, found.dead_letters) == (0, [])
    assert sum(len(decode(block.data).records) for block in found.batches) == len(messages)


def test_what_not_even_a_raw_record_carries_is_a_dead_letter_that_inspection_shows(tmp_path):
    buffer = open_buffer(tmp_path)
    spoiled = pending_record(2)._replace(
        body=Raw.model_construct(topic="\ud83d", payload=b"bytes"), topic="\ud83d", payload=b"bytes"
    )
    blocks = buffer.commit([pending_record(1), spoiled, pending_record(3)], 1_767_603_422_000)
    assert (sum(block.records for block in blocks), buffer.head) == (2, 2)
    assert all(pending_record(n).arrival in buffer.recent for n in (1, 2, 3)), "delivered again, it is known"
    (shown,) = dead_letters(agent_settings(tmp_path), 10)
    assert (shown["topic"], shown["bytes"], shown["reason"]) == ("\\ud83d", 5, "Malformed")
    assert read_status(agent_settings(tmp_path))["messages_dead_lettered"] == 1
    assert missing_in(buffer) == 0


def test_dead_letters_are_bounded_in_count_and_bytes_and_what_goes_is_counted(tmp_path, monkeypatch):
    buffer = open_buffer(tmp_path)

    def add(letters):
        buffer.edit(lambda connection, changes: add_dead_letters(connection, letters, 0, changes))

    add([DeadLetter("t", bytes([n % 256]), "E") for n in range(MAX_DEAD_LETTERS + 10)])
    assert len(dead_letters(agent_settings(tmp_path), 1_000)) == MAX_DEAD_LETTERS
    assert buffer.counters.value("dead_letter_messages_dropped") == 10
    monkeypatch.setattr(bounds, "MAX_DEAD_LETTER_BYTES", 1_000)
    add([DeadLetter("t", bytes(300), "E")] * 5)
    assert [row["bytes"] for row in dead_letters(agent_settings(tmp_path), 1_000)] == [300, 300, 300]


def test_a_hundred_megabytes_that_compress_well_become_blocks_that_can_be_read(tmp_path):
    intake = IntakeHarness(tmp_path)
    payload = b'{"x": "' + b"a" * 999_000 + b'"}'
    messages = [MqttMessage(mid, 1, False, "vehicle/odd", payload) for mid in range(1, 101)]
    assert sorted(intake.deliver(messages)) == list(range(1, 101))
    assert [record.seq for record in intake.records()] == list(range(1, 101))
    largest = max(block.records for block in intake.buffer.read_after(0, 3, 1_000))
    assert largest * len(payload) <= BATCH_CONTENT_BYTES


def test_while_the_buffer_cannot_commit_what_waits_in_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(record_intake, "MAX_WAITING_BYTES", 10_000)
    intake = IntakeHarness(tmp_path)
    mid = 0
    while not intake.record_intake.is_full:
        mid += 1
        intake.record_intake.receive(MqttMessage(mid, 1, False, "vehicle/odd", bytes(1_000)), 0.0)
    assert mid == 10
    assert intake.commit() == list(range(1, 11))
    assert not intake.record_intake.is_full
