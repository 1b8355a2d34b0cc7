"""The agent on real brokers: what was acknowledged to the vehicle's broker arrives, with one id."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker
from tests.edge_agent.process import DEVICE, AgentProcess, VehicleSensors, number_of
from tests.edge_agent.region import MqttRegion
from tests.waiting import PATIENCE, deadline_s

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[MosquittoBroker, MosquittoBroker]]:
    local, regional = MosquittoBroker("car", tmp_path / "car"), MosquittoBroker("eu", tmp_path / "eu")
    for broker in (local, regional):
        broker.start()
    for broker in (local, regional):
        broker.wait()
    yield local, regional
    for broker in (local, regional):
        broker.stop()


@pytest.fixture
def region(brokers: tuple[MosquittoBroker, MosquittoBroker]) -> Iterator[MqttRegion]:
    region = MqttRegion(brokers[1].port)
    yield region
    region.close()


@pytest.fixture
def vehicle(brokers: tuple[MosquittoBroker, MosquittoBroker]) -> Iterator[VehicleSensors]:
    vehicle = VehicleSensors(brokers[0].port)
    yield vehicle
    vehicle.close()


@pytest.fixture
def agent(tmp_path: Path, brokers: tuple[MosquittoBroker, MosquittoBroker]) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, brokers[0].port, {"eu": brokers[1].port})
    agent.start()
    yield agent
    agent.stop()


def settled(agent: AgentProcess, records: int, timeout_s: float = 15.0) -> bool:
    deadline = deadline_s(timeout_s)
    while time.monotonic() < deadline:
        state = agent.status() if agent.config.parent.joinpath("buffer/buffer.db").exists() else {}
        if state.get("acknowledged") == records and state["depth_records"] == 0:
            return True
        time.sleep(0.1)
    return False


def test_every_kind_of_message_arrives_once_and_leaves_the_buffer_when_it_is_acknowledged(agent, vehicle, region):
    wait_for_subscription(agent)
    for _ in range(50):
        vehicle.position()
    vehicle.publish("vehicle/event", json.dumps({"time": 1767603422000, "name": "trip_end"}).encode())
    vehicle.publish("vehicle/signal", b'{"time": "2026-01-05T08:57:02Z", "path": "Vehicle.Speed", "value": 3}')
    vehicle.publish("vehicle/odd/../thing", b"\x00\xff not json")
    assert region.wait_for(lambda it: len(it.records) == 53), region.errors
    kinds = sorted(type(record.body).__name__ for record in region.records.values())
    assert kinds == ["Event"] + ["Position"] * 50 + ["Raw", "Signal"]
    assert sorted(seq for _, _, seq in region.records) == list(range(1, 54))
    assert settled(agent, 53)
    assert agent.status()["device"] == DEVICE


@pytest.mark.nightly
def test_a_region_that_is_silent_for_a_while_gets_everything_when_it_speaks_again(agent, vehicle, region, brokers):
    wait_for_subscription(agent)
    region.answers = False
    for _ in range(200):
        vehicle.position()
    assert region.wait_for(lambda it: len(it.records) == 200)
    assert agent.status()["depth_records"] == 200, "nothing may be deleted that is not acknowledged"
    brokers[1].stop()
    for _ in range(200):
        vehicle.position()
    region.answers = True
    brokers[1].start()
    brokers[1].wait()
    assert region.wait_for(lambda it: len(it.records) == 400, 30)
    assert not region.conflicts
    assert {number_of(record.device_time_us) for record in region.records.values()} == set(range(400))


def test_sigterm_commits_what_waits_and_leaves_within_two_seconds(agent, vehicle, region):
    wait_for_subscription(agent)
    for _ in range(300):
        vehicle.position()
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 2 * PATIENCE
    agent.start()
    assert region.wait_for(lambda it: len({r.device_time_us for r in it.records.values()}) == 300)
    assert len(region.records) == 300, "a record has exactly one name"
    assert settled(agent, 300)


def wait_for_subscription(agent: AgentProcess) -> None:
    deadline = deadline_s(30)
    while "listening" not in agent.log.read_text():
        assert time.monotonic() < deadline, agent.log.read_text()
        time.sleep(0.02)
