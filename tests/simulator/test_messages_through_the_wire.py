"""What vehicles say, read by the agent and carried by the wire, is what the truth says that they made."""

from collections import Counter
from pathlib import Path

from edge_agent.intake.messages import parse_message
from simulator import Faults, VehicleMessage, drive, generated_scenario
from simulator.truth import Made, made_canary, made_event, made_position, made_raw, made_signal
from tests.simulator.runs import run_in
from waybill.record import Batch, Canary, Event, Position, Raw, Record, Signal, decode, encode


def made(record: Record) -> Made:
    time_us, body = record.device_time_us, record.body
    match body:
        case Position():
            return made_position(time_us, **body.model_dump())
        case Signal(path=path, value=value):
            return made_signal(time_us, path, value)
        case Event(name=name, attributes=attributes):
            return made_event(time_us, name, attributes)
        case Canary(id=name):
            return made_canary(time_us, name)
        case Raw(topic=topic, payload=payload):
            return made_raw(topic, payload)


def carried(messages: list[VehicleMessage]) -> list[Record]:
    parsed = [one for message in messages for one in parse_message(message.topic, message.sent)]
    records = tuple(Record(seq, one.device_time_us or 0, one.body) for seq, one in enumerate(parsed, start=1))
    return list(decode(encode(Batch("eu-0001", 1, len(records), records))).records)


def check(messages: list[VehicleMessage], expected: Counter[Made]) -> None:
    assert Counter(made(record) for record in carried(messages)) == expected


def test_a_generated_vehicle_arrives_as_it_was_made(tmp_path: Path) -> None:
    faults = Faults(duplicates=0.02, wrong_clocks=1, dirty=0.5)
    scenario = generated_scenario(seed=7, vehicles=6, regions=("eu", "us"), faults=faults)
    truth = run_in(tmp_path, scenario)
    for device in truth.devices:
        check([message for message in drive(scenario) if message.device == device], truth.records(device))
