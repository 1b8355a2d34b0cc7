"""What cannot be read is seen at the vehicle: in the status, in its health and in the log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edge_agent.intake.messages import (
    FOREIGN_MESSAGES,
    MAX_KINDS,
    NONE,
    NOTHING,
    OTHER_TOPICS,
    READABLE,
    SAMPLE_CHARACTERS,
    SHOWN_S,
    SOME,
    UnreadableMessages,
    looks_like,
)
from tests.edge_agent.intake_parts import IntakeHarness
from tests.examples import examples
from waybill.mqtt.mqtt_client import MqttMessage

OWNTRACKS = b'{"_type":"location","tid":"x","lat":53.55,"lon":9.99,"tst":1795359064,"acc":12}'
FIX = b'{"time":1795359064626,"latitude":53.55,"longitude":9.99}'


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (OWNTRACKS, "OwnTracks: lat, lon, tst"),
        (b"[" + OWNTRACKS + b"]", "OwnTracks: lat, lon, tst"),
        (OWNTRACKS[:-1], "OwnTracks: lat, lon, tst"),
        (b"id=7&lat=53.55&lon=9.99&timestamp=1795359064&speed=3", "Traccar (OsmAnd): lat, lon, timestamp"),
        (b"/?id=7&lat=53.55&lon=9.99&timestamp=1795359064", "Traccar (OsmAnd): lat, lon, timestamp"),
        (b'{"deviceId":7,"fixTime":"x","latitude":1,"longitude":2}', "Traccar: latitude, longitude, fixTime"),
        (b'{"class":"TPV","mode":3,"time":"x","lat":53.5,"lon":9.9}', "GPSd TPV: class, lat, lon"),
        (b"$GPRMC,145104.626,A,5333.0,N,00959.4,E,0.0,0.0,221126,,*1C\r\n", "NMEA 0183: $GPRMC"),
        (b"\xff\xfe\x00", ""),
        (b"", ""),
        (FIX, ""),
    ],
)
def test_the_formats_of_others_are_named(payload, found):
    assert looks_like(payload) == found


def test_a_day_in_a_format_of_another_product_is_seen_in_status_health_and_log(tmp_path):
    intake = IntakeHarness(tmp_path)
    with capture_logs() as lines:
        for number in range(200):
            message = MqttMessage(number + 1, 1, False, "vehicle/position", OWNTRACKS)
            intake.record_intake.receive(message, float(number))
    seen = intake.record_intake.unreadable
    (row,) = seen.rows()
    assert (row["topic"], row["reason"], row["messages"]) == ("vehicle/position", "wrong-fields", 200)
    assert (row["looks_like"], row["sample"][:18]) == ("OwnTracks: lat, lon, tst", '{"_type":"location')
    assert seen.state(199.0) == NONE
    logged = [line for line in lines if "carried raw" in line["event"]]
    assert [line["messages"] for line in logged] == [1, 61, 121, 181], "one a minute"
    intake.record_intake.receive(MqttMessage(300, 1, False, "vehicle/position", FIX), 200.0)
    assert (seen.state(200.0), seen.state(199.0 + SHOWN_S)) == (SOME, READABLE)


@pytest.mark.parametrize("topic", ["vehicle/gps", "vehicle/a/b/position"])
def test_that_nothing_of_the_contract_comes_is_said_until_something_can_be_read(tmp_path, topic):
    intake = IntakeHarness(tmp_path)
    seen = intake.record_intake.unreadable
    states = {}
    with capture_logs() as lines:
        for number in range(1, FOREIGN_MESSAGES + 61):
            intake.record_intake.receive(MqttMessage(number, 1, False, topic, FIX), float(number))
            states[number] = seen.state(float(number))
    assert {number for number, state in states.items() if state == NOTHING} == {*range(FOREIGN_MESSAGES, 161)}
    assert [line["messages"] for line in lines if "none on a topic" in line["event"]] == [100, 160], "one a minute"
    intake.record_intake.receive(MqttMessage(300, 1, False, "vehicle/position", FIX), 200.0)
    assert seen.state(200.0) == READABLE


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
