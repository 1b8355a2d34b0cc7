"""Mapped messages in the agent's intake: stored once, in the class of their kind, also without a message."""

import json
from pathlib import Path

import pytest

from edge_agent.config import DEFAULT_CLASSES, ClassSettings
from edge_agent.intake.intake_loop import widest_filters
from edge_agent.intake.record_intake import classifier
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.mapping.parsers import gives, parser_of
from tests.edge_agent.mapping.test_join import CAR
from tests.edge_agent.mapping.test_reading import FIX, PHONES, T
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Body, Event, Position, Raw, Signal

TWO_KINDS = "".join(
    f'''[[mappings]]
name = "{kind}"
topic = "a/b"
when = [{{ path = "_type", is = "{kind}" }}]
time = {{ path = "t", unit = "s" }}
position = {{ latitude = {{ path = "lat", unit = "deg" }}, longitude = {{ path = "lon", unit = "deg" }} }}
'''
    for kind in ("fix", "visit")
)


def message(mid: int, topic: str, payload: str) -> MqttMessage:
    return MqttMessage(mid, 1, False, topic, payload.encode())


def test_one_message_becomes_records_of_three_classes_and_is_acknowledged_once(tmp_path: Path) -> None:
    intake = IntakeHarness(tmp_path, parser=parser_of(PHONES))
    one = json.dumps(FIX | {"odo": 1500, "event": "enter"})
    assert intake.deliver([message(1, "owntracks/a/b", one), message(2, "owntracks/a/b", "{")]) == [1, 2]
    bodies = [type(record.body) for record in intake.records()]
    assert sorted(bodies, key=str) == sorted([Event, Position, Signal, Raw], key=str)
    assert {record.mapping.partition("@")[0] for record in intake.records()} == {"phones"}
    assert {record.device_time_us for record in intake.records()} >= {T * 1_000_000}
    assert [depth.records for depth in intake.buffer.depth().values()] == [1, 1, 1, 1]


def test_a_held_position_is_stored_without_a_message_at_the_time_of_its_half(tmp_path: Path) -> None:
    intake = IntakeHarness(tmp_path, parser=parser_of(CAR))
    intake.deliver([message(1, "cars/1/latitude", "53.5"), message(2, "cars/1/longitude", "9.9")])
    assert intake.record_intake.add_late_records(0.0) == pytest.approx(0.5)
    intake.clocks.now_us += 10_000_000
    assert intake.record_intake.add_late_records(0.0) is None
    assert intake.deliver([message(3, "cars/1/longitude", "9.8")]) == [3]
    half = intake.records()[-1]
    intake.clocks.now_us += 10_000_000
    assert intake.deliver([message(4, "cars/1/longitude", "9.7")]) == [4]
    intake.record_intake.add_late_records(0.0)
    assert intake.commit() == []
    whole, held = (one for one in intake.records() if isinstance(one.body, Position))
    assert (whole.body, whole.mapping) == (Position(latitude=53.5, longitude=9.9), half.mapping)
    assert held.body == Position(latitude=53.5, longitude=9.8)
    assert held.device_time_us == half.device_time_us
    assert held.mapping == f"{half.mapping}+held"


def test_a_half_that_is_delivered_again_makes_no_second_position(tmp_path: Path) -> None:
    intake = IntakeHarness(tmp_path, parser=parser_of(CAR))
    halves = [message(1, "cars/1/latitude", "53.5"), message(2, "cars/1/longitude", "9.9")]
    intake.connect(resumed=False)
    intake.deliver(halves)
    intake.connect(resumed=True)
    assert intake.deliver([one._replace(dup=True) for one in halves]) == [1, 2]
    intake.clocks.now_us += 1_000_000
    intake.record_intake.add_late_records(0.0)
    assert intake.commit() == []
    assert [type(one.body) for one in intake.records()].count(Position) == 1
    assert intake.record_intake.add_late_records(0.0) is None


def test_what_may_have_waited_stays_raw_and_belongs_to_no_position_of_what_comes_after_it(tmp_path: Path) -> None:
    intake = IntakeHarness(tmp_path, parser=parser_of(CAR))
    intake.deliver([message(1, "cars/1/latitude", "53.5")])
    waited = [message(2, "cars/1/longitude", "9.9"), message(3, "cars/1/latitude", "53.6")]
    assert intake.deliver([*waited, message(4, "cars/1/soc", "7")], waited=True) == [2, 3, 4]
    intake.deliver([message(5, "cars/1/longitude", "9.8"), message(6, "cars/1/longitude", "9.7")])
    intake.clocks.now_us += 60_000_000
    intake.record_intake.add_late_records(0.0)
    intake.commit()
    raw = [one.body for one in intake.records() if isinstance(one.body, Raw)]
    assert [(one.payload, one.reason) for one in raw] == [
        (b"9.9", "mapping:time:queued"),
        (b"53.6", "mapping:time:queued"),
        (b"7", "mapping:when:no-match"),
    ]
    assert [type(one.body) for one in intake.records()].count(Position) == 0
    assert intake.record_intake.counters.malformed["mapping:time:queued"] == 2


def test_of_a_message_that_may_have_waited_the_elements_with_a_time_of_their_own_are_read(tmp_path: Path) -> None:
    mapping = PHONES.replace('unit = "s" }', 'unit = "s", else = "arrival" }', 1)
    intake = IntakeHarness(tmp_path, parser=parser_of(mapping))
    assert intake.record_intake.arrivals.is_needed
    assert not parser_of(PHONES).needs_arrivals
    untimed = {name: value for name, value in FIX.items() if name != "tst"}
    both = message(1, "owntracks/a/b", json.dumps([FIX, untimed | {"odo": 1500}]))
    intake.deliver([both, message(2, "owntracks/a/b", json.dumps([untimed, untimed]))], waited=True)
    raw = [one.body.payload for one in intake.records() if isinstance(one.body, Raw)]
    assert [json.loads(one) for one in raw] == [untimed | {"odo": 1500}, [untimed, untimed]]
    assert [one.device_time_us for one in intake.records() if isinstance(one.body, Position)] == [T * 1_000_000]


def test_a_mapping_that_makes_no_record_of_its_messages_is_shown_after_ten_minutes() -> None:
    parser = parser_of(TWO_KINDS)
    fix, odd = ('{"_type": "fix", "lat": 1, "lon": 2, "t": 1795359064}', '{"_type": "encrypted"}')

    def silent(payload: str, at_s: int) -> list[float]:
        gives(parser, "a/b", payload, at_s * 1_000_000)
        return [row["silent_s"] for row in parser.rows()]

    assert silent(odd, 0) == [0.0, 0.0]
    assert silent(odd, 700) == [700.0, 700.0], "what none of several mappings reads is refused by each"
    assert [row["refused"] for row in parser.rows()] == [2, 2]
    assert silent(fix, 800) == [0.0, 0.0], "one of them reads the topic"
    assert silent(odd, 900) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("topic", "mapped", "name"),
    [
        ("owntracks/a/b", Position, "position"),
        ("owntracks/a/b", Event, "urgent"),
        ("owntracks/a/b", Raw, "other"),
        ("vehicle/position", Signal, "position"),
        ("trucks/7", Signal, "trucks"),
        ("trucks/7", None, "trucks"),
        ("vehicle/event", None, "urgent"),
        ("vehicle/signal", None, "signal"),
        ("$odd", None, "other"),
    ],
)
def test_a_mapped_record_has_the_class_of_its_kind_unless_a_class_names_its_topic(
    topic: str, mapped: type[Body] | None, name: str
) -> None:
    classes = (*DEFAULT_CLASSES[:3], ClassSettings(name="trucks", topics=("trucks/#",)), DEFAULT_CLASSES[3])
    assert classes[classifier(classes)(topic, mapped)].name == name


def test_no_subscription_has_the_topics_of_another_one() -> None:
    assert widest_filters(["vehicle/#", "gw/+", "vehicle/+/position", "gw/7", "gw/+"]) == ["vehicle/#", "gw/+"]
    assert widest_filters(["a/+", "a/#", "+/#"]) == ["+/#"]
    assert widest_filters(["a/+", "+/b"]) == ["a/+", "+/b"]
