"""A real agent at a real vehicle's broker: what it retains, and what sensors send that is not quite the contract."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker
from edge_agent.config import AgentSettings
from edge_agent.inspection import exported_lines
from settings import load
from telemetry import Position
from tests.edge_agent.process import AgentProcess, VehicleSensors
from tests.edge_agent.test_payload_variants import VARIANTS
from tests.system.vehicle_agent import running
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
EVENT = b'{"time": 1795359064626, "name": "delivery"}'
SAMPLE = (
    "satellites",
    "speed -1",
    "altitude NaN",
    "heading a rounded circle",
    "accuracy -1",
    "byte order mark",
    "trailing NUL",
    "coordinates as text",
    "milliseconds with an exponent",
    "ISO +0100",
    "an array of three",
    "a sensor of its own",
    "list",
    "ISO without zone",
    "seconds",
    "our event",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    broker = MosquittoBroker("car", tmp_path / "car")
    broker.start()
    broker.wait()
    yield broker
    broker.stop()


def sensors(broker: MosquittoBroker) -> VehicleSensors:
    return VehicleSensors(broker.port)


def exported(agent: AgentProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in exported_lines(load(AgentSettings, agent.config))]


def test_an_event_that_is_retained_is_recorded_once_however_often_agent_and_broker_start(tmp_path, broker):
    agent = AgentProcess(tmp_path, broker.port, {"eu": 1})
    with running(agent):
        vehicle = sensors(broker)
        vehicle.client.publish("vehicle/event", EVENT, qos=1, retain=True).wait_for_publish(10)
        vehicle.close()
    for _ in range(2):
        with running(agent):
            pass
    broker.stop()
    broker.start()
    broker.wait()
    agent.log.write_text("")
    with running(agent):
        vehicle = sensors(broker)
        vehicle.client.publish("vehicle/event", b"", qos=1, retain=True).wait_for_publish(10)
        vehicle.publish("vehicle/canary", b'{"time": 1795359064627, "id": "last"}')
        vehicle.close()
    assert [(one["kind"], one.get("name") or one["id"]) for one in exported(agent)] == [
        ("event", "delivery"),
        ("canary", "last"),
    ]


def test_what_waits_for_an_agent_that_is_away_is_not_taken_for_retained(tmp_path, broker):
    agent = AgentProcess(tmp_path, broker.port, {"eu": 1})
    with running(agent):
        pass
    vehicle = sensors(broker)
    vehicle.client.publish("vehicle/event", EVENT, qos=1, retain=True).wait_for_publish(10)
    vehicle.close()
    with running(agent):
        wait_until(lambda: agent.status()["head"] == 1)
    assert [one["name"] for one in exported(agent)] == ["delivery"]


def test_variants_of_payloads_come_through_a_real_broker_as_they_are_read(tmp_path, broker):
    chosen = [one for one in VARIANTS if one.name in SAMPLE]
    agent = AgentProcess(tmp_path, broker.port, {"eu": 1})
    expected: list[str] = []
    with running(agent):
        vehicle = sensors(broker)
        for one in chosen:
            vehicle.publish(one.topic, one.payload)
            bodies = ["Raw"] if isinstance(one.expected, str) else [type(body).__name__ for body in one.expected]
            expected += [name.lower() for name in bodies]
        vehicle.close()
        wait_until(lambda: agent.status()["head"] == len(expected))
    found = exported(agent)
    assert sorted(str(one["kind"]) for one in found) == sorted(expected)
    assert sum(isinstance(one.expected, list) and isinstance(one.expected[0], Position) for one in chosen) >= 10
