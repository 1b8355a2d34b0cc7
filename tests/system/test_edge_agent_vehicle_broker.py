"""A real agent at a real vehicle's broker: what it retains, and what sensors send that is not quite the contract."""

import getpass
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from deploy.local import MosquittoBroker, MosquittoSettings, free_port
from deploy.local.mosquitto import mosquitto_program
from edge_agent.config import AgentSettings
from edge_agent.inspection import exported_lines
from edge_agent.vehicle_broker import DROPPED_TOPIC
from tests.edge_agent.process import AgentProcess, VehicleSensors
from tests.waiting import wait_until
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
EVENT = b'{"time": 1795359064626, "name": "delivery"}'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    broker = MosquittoBroker("car", tmp_path / "car")
    broker.start()
    broker.wait()
    yield broker
    broker.stop()


@contextmanager
def running(agent: AgentProcess) -> Iterator[AgentProcess]:
    agent.start()
    try:
        wait_until(lambda: "listening" in agent.log.read_text(encoding="utf-8"), 20)
        yield agent
    finally:
        agent.stop()


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
    with running(agent):
        pass
    vehicle = sensors(broker)  # what waits for an agent that is away is not old, though its publisher retains it
    vehicle.client.publish("vehicle/7/event", EVENT, qos=1, retain=True).wait_for_publish(10)
    vehicle.close()
    with running(agent):
        wait_until(lambda: agent.status()["head"] == 2)
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
        ("event", "delivery"),
        ("canary", "last"),
    ]


def test_what_a_broker_with_a_small_queue_dropped_is_seen_by_the_agent_that_was_away(tmp_path):
    port = free_port()
    broker = MosquittoBroker("car", tmp_path / "car", settings=MosquittoSettings(max_queued_messages=1000))
    with ExitStack() as ending:
        ending.callback(broker.stop)
        broker.start()
        broker.wait()
        agent = AgentProcess(tmp_path, broker.port, {"eu": 1}, f"[status]\nport = {port}\n")
        with running(agent):
            assert health(port)["vehicle_broker"] == "keeps"
        publish_positions(broker.port, 3000)
        wait_until(lambda: dropped_by(broker) == 2000, 30)
        agent.log.write_text("")
        with running(agent):
            wait_until(lambda: health(port)["vehicle_broker"] == "dropped messages", 30)
            assert health(port)["healthy"] is False
            text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        (line,) = [one for one in text.splitlines() if one.startswith("waybill_agent_vehicle_broker_dropped_messages ")]
        assert float(line.split()[1]) == 2000
        # what was dropped is declared to the centre, and that once, also where agent and broker start again
        agent.log.write_text("")
        with running(agent):
            assert health(port)["vehicle_broker"] == "keeps"
        broker.stop()
        broker.start()
        broker.wait()
        agent.log.write_text("")
        with running(agent):
            wait_until(lambda: dropped_by(broker) == 0, 30)
        assert "broker dropped" not in agent.log.read_text()
        kinds = Counter(one["kind"] for one in exported(agent))
        (declared,) = [one for one in exported(agent) if one["kind"] == "event"]
        assert (kinds["position"], declared["name"]) == (1000, "waybill.broker_dropped")
        assert json.loads(str(declared["attributes"]))["messages"] == 2000


def test_with_the_printed_configuration_nothing_is_dropped(tmp_path):
    port = free_port()
    agent = AgentProcess(tmp_path, port, {"eu": 1})
    printed = subprocess.run(
        [sys.executable, "-m", "edge_agent", "broker-conf", "-c", str(agent.config)],
        check=True,
        capture_output=True,
        text=True,
    )
    conf = tmp_path / "vehicle.conf"
    conf.write_text(printed.stdout.replace("/var/lib/mosquitto", str(tmp_path)) + f"user {getpass.getuser()}\n")
    with subprocess.Popen([mosquitto_program(), "-c", str(conf)], stderr=subprocess.DEVNULL) as broker:
        try:
            with running(agent):
                pass
            publish_positions(port, 3000)
            with running(agent):
                wait_until(lambda: agent.status()["head"] == 3000, 30)
        finally:
            broker.terminate()


def dropped_by(broker: MosquittoBroker) -> int | None:
    """What the broker says that it dropped, if it says it within a moment."""
    client = VehicleSensors(broker.port).client
    found: list[int] = []
    client.on_message = lambda _client, _data, message: found.append(int(message.payload))
    client.subscribe(DROPPED_TOPIC)
    try:
        wait_until(lambda: bool(found), 2)
    except AssertionError:
        return None
    finally:
        client.disconnect()
        client.loop_stop()
    return found[0]


def health(port: int) -> dict[str, object]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return dict(json.load(answer))
    except HTTPError as error:
        return dict(json.load(error))


def publish_positions(port: int, count: int) -> None:
    """All of them have a PUBACK."""
    vehicle = VehicleSensors(port)
    for _ in range(count):
        vehicle.position()
    wait_until(lambda: len(vehicle.taken) == count)
    vehicle.close()
