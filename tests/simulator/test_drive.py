"""What a fleet does is decided by its scenario alone."""

import json
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Faults, Scenario, VehicleMessage, drive, generated_scenario
from simulator.messages import TOPIC_KINDS
from tests.examples import examples
from tests.simulator.runs import write_journal
from waybill.record import VEHICLE_POSITION


def fleet(seed: int = 7, faults: Faults | None = None) -> Scenario:
    return generated_scenario(
        seed=seed, vehicles=4, regions=("eu", "us"), duration_s=1800, interval_s=10, faults=faults
    )


def positions(messages: list[VehicleMessage], device: str) -> list[dict[str, float]]:
    said = [m.payload for m in messages if m.device == device and m.topic == "vehicle/position"]
    return [json.loads(payload) for payload in said if payload.endswith(b"}")]


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_messages(seed: int) -> None:
    scenario = generated_scenario(seed=seed, vehicles=2, regions=("eu", "us"), duration_s=300)
    assert list(drive(scenario)) == list(drive(scenario))


def test_a_vehicle_does_the_same_however_many_others_drive() -> None:
    few = generated_scenario(seed=3, vehicles=2, regions=("eu",), duration_s=600)
    many = generated_scenario(seed=3, vehicles=9, regions=("eu",), duration_s=600)
    assert [m for m in drive(few) if m.device == "eu-0001"] == [m for m in drive(many) if m.device == "eu-0001"]


def test_messages_come_in_the_order_of_the_wall_clock_and_within_the_run() -> None:
    offsets = [message.offset_s for message in drive(fleet())]
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert offsets[-1] <= 1801


def test_every_kind_is_there_and_every_vehicle_speaks() -> None:
    messages = list(drive(generated_scenario(seed=7, vehicles=20, regions=("eu", "us"))))
    topics = Counter(message.topic for message in messages)
    assert set(TOPIC_KINDS) <= set(topics)
    assert set(topics) - set(TOPIC_KINDS), "an unknown payload is sent now and then"
    assert len({message.device for message in messages}) == 20


def test_a_fix_is_on_the_grid_of_the_wire() -> None:
    messages = list(drive(fleet()))
    for fix in positions(messages, "eu-0001"):
        assert fix["latitude"] == round(fix["latitude"], 7)
        assert fix["longitude"] == round(fix["longitude"], 7)
        assert 0 <= fix.get("heading_deg", 0.0) < 360


def test_the_journal_is_what_the_generator_says(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    with path.open("w") as lines:
        count = write_journal(drive(fleet()), lines)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    messages = list(drive(fleet()))
    assert count == len(written) == len(messages)
    for entry, message in zip(written, messages, strict=True):
        assert entry["device"] == message.device
        if entry["kind"] == "raw":
            assert entry["content"]["topic"] == message.topic
        else:
            said = json.loads(message.payload)
            assert TOPIC_KINDS[message.topic] == entry["kind"]
            assert said.pop("time") == entry["time"]
            assert said == entry["content"]


def test_duplicates_are_sent_one_after_the_other() -> None:
    clean, struck = list(drive(fleet())), list(drive(fleet(faults=Faults(duplicates=0.1))))
    assert Counter(struck) - Counter(clean)
    assert set(struck) == set(clean)
    assert 0.05 < (len(struck) - len(clean)) / len(clean) < 0.15


def test_a_dirty_position_says_the_same_in_another_form() -> None:
    clean, struck = list(drive(fleet())), list(drive(fleet(faults=Faults(dirty=0.5))))
    assert [message._replace(written=b"") for message in struck] == clean
    written = [message for message in struck if message.written]
    assert {message.topic for message in written} == {VEHICLE_POSITION}
    assert all(message.sent == message.written != message.payload for message in written)
    positions = sum(message.topic == VEHICLE_POSITION for message in clean)
    assert 0.4 < len(written) / positions < 0.6


def test_a_late_vehicle_says_the_same_but_only_at_the_end() -> None:
    clean, struck = list(drive(fleet())), list(drive(fleet(faults=Faults(late=1))))
    late = {message.device for message in struck if message.offset_s >= 1802}
    assert len(late) == 1
    for device in {message.device for message in clean}:
        assert [m[2:] for m in struck if m.device == device] == [m[2:] for m in clean if m.device == device]


def test_a_wrong_clock_is_set_right_and_touches_nobody_else() -> None:
    clean, struck = list(drive(fleet())), list(drive(fleet(faults=Faults(wrong_clocks=1))))
    assert len(clean) == len(struck)
    differing = [(one, other) for one, other in zip(clean, struck, strict=True) if one != other]
    assert len({one.device for one, _ in differing}) == 1
    assert max(one.offset_s for one, _ in differing) < 0.4 * 1800
    assert [one[:3] for one in clean] == [other[:3] for other in struck]
