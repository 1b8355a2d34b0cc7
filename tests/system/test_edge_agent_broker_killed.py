"""The vehicle's broker is killed and comes back from its last save: what it delivers again is stored once."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker, MosquittoSettings
from tests.edge_agent.process import AgentProcess, VehicleSensors, number_of
from tests.edge_agent.region import MqttRegion
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
MESSAGES = 300
NO_SAVE_OF_ITS_OWN_S = 3_600


def save(broker: MosquittoBroker) -> None:
    """Makes the broker write its queues, and waits until they are written."""
    database = broker.folder / "mosquitto.db"
    before = database.stat().st_mtime_ns if database.exists() else 0
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGUSR1)
    wait_until(lambda: database.exists() and database.stat().st_mtime_ns > before)


def test_every_message_is_stored_once_though_the_broker_forgot_its_acknowledgement(tmp_path: Path) -> None:
    settings = MosquittoSettings(autosave_s=NO_SAVE_OF_ITS_OWN_S)
    local, regional = (
        MosquittoBroker("car", tmp_path / "car", settings=settings),
        MosquittoBroker("eu", tmp_path / "eu"),
    )
    with ExitStack() as ending:
        for broker in (local, regional):
            ending.callback(broker.stop)
            broker.start()
        for broker in (local, regional):
            broker.wait()
        region, vehicle = MqttRegion(regional.port), VehicleSensors(local.port)
        ending.callback(region.close)
        ending.callback(vehicle.close)
        agent = AgentProcess(tmp_path, local.port, {"eu": regional.port})
        ending.callback(agent.stop)
        agent.start()
        wait_until(lambda: agent.log.exists() and "listening" in agent.log.read_text())
        agent.stop()
        for _ in range(MESSAGES):
            vehicle.position()
        wait_until(lambda: len(vehicle.taken) == MESSAGES)
        save(local)
        agent.start()
        assert region.wait_for(lambda it: len(it.records) == MESSAGES, 30)

        local.kill()
        local.start()
        local.wait()
        wait_until(vehicle.client.is_connected)
        vehicle.position()
        assert region.wait_for(lambda it: len(it.records) > MESSAGES, 30)
        wait_until(lambda: agent.status()["acknowledged"] == MESSAGES + 1)
        numbers = [number_of(record.device_time_us) for record in region.records.values()]
        assert sorted(numbers) == list(range(MESSAGES + 1)), "every message has one name"
        assert agent.status()["duplicates"] == MESSAGES, "the broker did deliver them again"
