"""A message that is delivered again keeps its one name, whatever the broker says; equal messages are all stored."""

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_agent.intake_parts import IntakeHarness
from tests.examples import examples
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Raw

SET_MS = 1_767_603_422_000


def timed(mid: int, number: int, *, dup: bool = False) -> MqttMessage:
    payload = json.dumps({"time": SET_MS + number, "path": "Vehicle.Speed", "value": number}).encode()
    return MqttMessage(mid, 1, dup, "vehicle/signal", payload)


def several(mid: int, number: int, count: int = 3) -> MqttMessage:
    fixes = [{"time": SET_MS + number * 100 + n, "latitude": 53.5, "longitude": 9.9} for n in range(count)]
    return MqttMessage(mid, 1, False, "vehicle/position", json.dumps(fixes).encode())


def untimed(mid: int, text: bytes = b"open", *, dup: bool = False) -> MqttMessage:
    return MqttMessage(mid, 1, dup, "vehicle/door", text)


def taken(
    tmp_path: Path, before: Sequence[MqttMessage], after: Sequence[MqttMessage], *, resumed: bool = True
) -> IntakeHarness:
    """An intake that took the first messages, and after a reconnection the others; all are acknowledged."""
    intake = IntakeHarness(tmp_path)
    intake.connect(resumed=False)
    assert sorted(intake.deliver(before)) == sorted(message.mid for message in before)
    intake.connect(resumed=resumed)
    assert sorted(intake.deliver(after)) == sorted(message.mid for message in after)
    return intake


@pytest.mark.parametrize("resumed", [False, True])
def test_an_equal_message_under_an_id_that_another_had_since_is_new_though_it_is_marked(tmp_path, resumed):
    """A broker that gives the lowest free id again sent it when the connection was cut, and sends it once more."""
    before = [untimed(1, b"open"), untimed(1, b"closed")]
    intake = taken(tmp_path, before, [untimed(1, b"open", dup=True)], resumed=resumed)
    assert [record.body for record in intake.records()] == [
        Raw(topic="vehicle/door", payload=text, reason="unknown-topic") for text in (b"open", b"closed", b"open")
    ]
    intake.connect(resumed=True)
    assert intake.deliver([untimed(1, b"open", dup=True)]) == [1]
    assert len(intake.records()) == 3, "its own redelivery is known"


@pytest.mark.parametrize("make", [lambda mid: timed(mid, 7), untimed], ids=["timed", "untimed"])
def test_a_sensor_that_repeats_a_value_loses_none_of_them(tmp_path, make):
    intake = taken(tmp_path, [make(mid) for mid in range(1, 11)], [make(mid) for mid in range(11, 21)])
    assert len(intake.records()) == 20


def test_the_order_of_what_came_outlives_a_restart_whatever_its_classes(tmp_path):
    draw = random.Random(1)
    messages = [draw.choice([timed(n, n), untimed(n, b"%d" % n)]) for n in range(1, 41)]
    messages.append(timed(41, 41))
    first = IntakeHarness(tmp_path)
    first.deliver(messages, commit_every=9)
    first.buffer.close()
    again = IntakeHarness(tmp_path)
    again.connect(resumed=True)
    again.deliver(messages)
    assert len(again.records()) == 41
    assert again.buffer.counters.value("duplicates") == 41


@settings(max_examples=examples(50))
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 20), st.integers(1, 70), st.randoms())
def test_any_part_of_what_was_stored_may_come_again_before_what_is_new(start, length, new, commit_every, draw):
    before = [several(n, n) if draw.random() < 0.5 else timed(n, n) for n in range(1, 61)]
    stored = sum(3 if message.topic == "vehicle/position" else 1 for message in before)
    again = [message._replace(dup=draw.random() < 0.5) for message in before[start : start + length]]
    after = [*again, *(timed(100 + n, 100 + n) for n in range(new))]
    with tempfile.TemporaryDirectory() as folder:
        intake = IntakeHarness(Path(folder))
        intake.connect(resumed=False)
        intake.deliver(before, commit_every=commit_every)
        intake.connect(resumed=True)
        intake.deliver(after, commit_every=commit_every)
        assert len(intake.records()) == stored + new
        intake.buffer.close()


def test_of_a_message_that_came_before_an_anchor_all_records_are_dropped(tmp_path):
    """Without a set clock's time an array proves nothing by itself: what follows it does."""
    early = MqttMessage(
        1,
        1,
        False,
        "vehicle/position",
        b'[{"time":5,"latitude":1,"longitude":2}]'.replace(b"}]", b'},{"time":6,"latitude":1,"longitude":2}]'),
    )
    intake = taken(tmp_path, [early, timed(2, 2)], [early, timed(2, 2)])
    assert len(intake.records()) == 3
    assert intake.buffer.counters.value("duplicates") == 2


@pytest.mark.parametrize("resumed", [False, True])
def test_what_the_broker_retains_and_what_is_empty_is_acknowledged_and_no_record(tmp_path, resumed):
    event = MqttMessage(1, 1, False, "vehicle/event", b'{"time": 1767603422000, "name": "door"}')
    again = [event._replace(mid=mid, retain=True) for mid in range(2, 7)]
    empty = MqttMessage(7, 1, False, "vehicle/event", b"")
    intake = taken(tmp_path, [event], [*again, empty, empty._replace(mid=8, retain=True), timed(9, 9)], resumed=resumed)
    assert len(intake.records()) == 2
    assert intake.record_intake.counters.not_recorded == 7


def test_members_that_are_left_out_are_counted_by_a_bounded_number_of_names(tmp_path):
    intake = IntakeHarness(tmp_path)
    for number in range(100):
        members = {"time": SET_MS, "latitude": 53.5, "longitude": 9.9, "speed_mps": -1, f"x{number}" * 40: 1, "hdop": 1}
        intake.deliver([MqttMessage(number + 1, 1, False, "vehicle/position", json.dumps(members).encode())])
    counters = intake.record_intake.counters
    assert (counters.left_out_members["speed_mps"], counters.left_out_members["hdop"]) == (100, 100)
    assert sum(counters.left_out_members.values()) == 300
    assert len(counters.left_out_members) <= 65
    assert max(map(len, counters.left_out_members)) <= 40
