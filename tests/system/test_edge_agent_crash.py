"""The agent is killed at random moments under load; nothing that it acknowledged is lost or stored under two ids."""

import random
import sys
import time
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker
from tests.edge_agent.process import DEVICE, AgentProcess, VehicleSensors, number_of
from tests.edge_agent.region import MqttRegion
from tests.waiting import deadline_s
from waybill.record import IntervalSet

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
MESSAGES_A_SECOND = 800


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_no_record_is_lost_or_named_twice_by_kills_at_random_moments(tmp_path: Path, kills: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    sys.stdout.write(f"seed {seed}\n")
    draw = random.Random(seed)
    local, regional = MosquittoBroker("car", tmp_path / "car"), MosquittoBroker("eu", tmp_path / "eu")
    for broker in (local, regional):
        broker.start()
    for broker in (local, regional):
        broker.wait()
    agent = AgentProcess(tmp_path, local.port, {"eu": regional.port})
    region = MqttRegion(regional.port)
    vehicle = VehicleSensors(local.port)
    try:
        agent.start()
        _wait_for_agent(agent)
        for _ in range(kills):
            _drive(vehicle, draw.uniform(0.05, 0.7))
            agent.kill()
            agent.start()
        _drive(vehicle, 1.0)
        complete = region.wait_for(lambda it: len(it.records) >= vehicle.sent, 60)
        _check(region, vehicle, complete)
    finally:
        agent.stop()
        vehicle.close()
        region.close()
        for broker in (local, regional):
            broker.stop()


def _check(region: MqttRegion, vehicle: VehicleSensors, complete: bool) -> None:
    assert not region.errors
    assert not region.conflicts, "a name never has two contents"
    numbers = [number_of(record.device_time_us) for record in region.records.values()]
    assert complete, f"lost: {sorted(set(range(vehicle.sent)) - set(numbers))[:10]}"
    assert len(numbers) == len(set(numbers)), "a record has exactly one name"
    assert set(numbers) == set(range(vehicle.sent))
    (epoch,) = {epoch for _, epoch, _ in region.records}
    assert region.accounted(DEVICE, epoch) == IntervalSet([(1, vehicle.sent)]), "names have no hole"
    in_order = [number_of(record.device_time_us) for _, record in sorted(region.records.items())]
    assert in_order == sorted(in_order), "records are named in the order in which they came"


def _drive(vehicle: VehicleSensors, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(MESSAGES_A_SECOND // 50):
            vehicle.position()
        time.sleep(1 / 50)


def _wait_for_agent(agent: AgentProcess) -> None:
    deadline = deadline_s(30)
    while "listening" not in agent.log.read_text():
        assert time.monotonic() < deadline, agent.log.read_text()
        time.sleep(0.02)
