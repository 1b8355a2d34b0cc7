"""A real agent at a real vehicle's broker: what it retains, and what sensors send that is not quite the contract."""

import getpass
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from deploy.local import MosquittoBroker, MosquittoSettings, free_port
from deploy.local.mosquitto import mosquitto_program
from edge_agent.vehicle_broker import DROPPED_TOPIC
from tests.edge_agent.process import AgentProcess, VehicleSensors, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
EVENT = b'{"time": 1795359064626, "name": "delivery"}'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    broker = MosquittoBroker("car", tmp_path / "car")
    with started(broker):
        yield broker


def test_an_event_that_is_retained_is_recorded_once_however_often_agent_and_broker_start(tmp_path, broker):
    agent = AgentProcess(tmp_path, broker.port, {"eu": 1})
    with agent.running():
        vehicle = VehicleSensors(broker.port)
        vehicle.client.publish("vehicle/event", EVENT, qos=1, retain=True).wait_for_publish(10)
        vehicle.close()
    with agent.running():
        pass
    # What waits for an agent that is away is not old, though its publisher retains it.
    vehicle = VehicleSensors(broker.port)
    vehicle.client.publish("vehicle/7/event", EVENT, qos=1, retain=True).wait_for_publish(10)
    vehicle.close()
    with agent.running():
        wait_until(lambda: agent.status()["head"] == 2)
    broker.stop()
    broker.start()
    broker.wait()
    with agent.running():
        vehicle = VehicleSensors(broker.port)
        vehicle.client.publish("vehicle/event", b"", qos=1, retain=True).wait_for_publish(10)
        vehicle.publish("vehicle/canary", b'{"time": 1795359064627, "id": "last"}')
        vehicle.close()
    assert [(one["kind"], one.get("name") or one["id"]) for one in agent.exported()] == [
        ("event", "delivery"),
        ("event", "delivery"),
        ("canary", "last"),
    ]


def test_what_a_broker_with_a_small_queue_dropped_is_seen_by_the_agent_that_was_away(tmp_path):
    port = free_port()
    broker = MosquittoBroker("car", tmp_path / "car", settings=MosquittoSettings(max_queued_messages=1000))
    with started(broker):
        agent = AgentProcess(tmp_path, broker.port, {"eu": 1}, f"[status]\nport = {port}\n")
        with agent.running():
            assert health(port)["vehicle_broker"] == "keeps"
        publish_positions(broker.port, 3000)
        wait_until(lambda: dropped_by(broker) == 2000, 30)
        with agent.running():
            wait_until(lambda: health(port)["vehicle_broker"] == "dropped messages", 30)
            assert health(port)["healthy"] is False
            text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        (line,) = [one for one in text.splitlines() if one.startswith("waybill_agent_vehicle_broker_dropped_messages ")]
        assert float(line.split()[1]) == 2000
        # what was dropped is declared to the centre, and that once, also where agent and broker start again
        with agent.running():
            assert health(port)["vehicle_broker"] == "keeps"
        broker.stop()
        broker.start()
        broker.wait()
        with agent.running():
            wait_until(lambda: dropped_by(broker) == 0, 30)
        assert "broker dropped" not in agent.log.read_text()
        kinds = Counter(one["kind"] for one in agent.exported())
        (declared,) = [one for one in agent.exported() if one["kind"] == "event"]
        assert (kinds["position"], declared["name"]) == (1000, "waybill.broker_dropped")
        assert json.loads(str(declared["attributes"]))["messages"] == 2000


def test_with_the_printed_configuration_nothing_is_dropped(tmp_path):
    port = free_port()
    agent = AgentProcess(tmp_path, port, {"eu": 1})
    with printed_broker(agent):
        with agent.running():
            pass
        publish_positions(port, 3000)
        with agent.running():
            wait_until(lambda: agent.status()["head"] == 3000, 30)


TESLAMATE = '[[mappings]]\nname = "car"\npreset = "teslamate"\n'


# Mosquitto 2.0.11 keeps back messages of QoS 1 until the next connection if both QoS wait beyond the window.
@pytest.mark.parametrize(("window", "qualities"), [(20, (1, 1, 1, 1)), (1000, (0, 1, 1, 0))])
def test_messages_without_a_time_that_waited_for_the_agent_do_not_get_the_time_of_its_return(
    tmp_path, window, qualities
):
    port, status = free_port(), free_port()
    agent = AgentProcess(tmp_path, port, {"eu": 1}, f"[status]\nport = {status}\n{TESLAMATE}")
    agent.config.write_text(agent.config.read_text().replace("[intake]\n", f"[intake]\nreceive_maximum = {window}\n"))
    with printed_broker(agent):
        with agent.running():
            pass
        vehicle = VehicleSensors(port)
        for number in range(50):
            for qos, half in zip(qualities, ("latitude", "longitude", "odometer", "speed"), strict=True):
                vehicle.client.publish(f"teslamate/cars/1/{half}", str(number), qos=qos).wait_for_publish(10)
        with agent.running():
            wait_until(lambda: agent.status()["head"] >= 200, 30)
            wait_until(lambda: health(status)["arrivals"] == "known", 30)
            returned_us = time.time_ns() // 1000
            vehicle.publish("teslamate/cars/1/odometer", b"77")
            wait_until(lambda: agent.status()["head"] > 200)
        vehicle.close()
    *waited, live = agent.exported()
    assert Counter(one.get("reason") for one in waited) == {"mapping:time:queued": 200}
    assert (live["kind"], live["value"]) == ("signal", 77.0)
    assert 0 <= int(str(live["device_time_us"])) - returned_us < 30_000_000


def test_a_broker_that_does_not_let_the_agent_find_out_what_waited_is_named(tmp_path):
    port, status = free_port(), free_port()
    agent = AgentProcess(tmp_path, port, {"eu": 1}, f"[status]\nport = {status}\n{TESLAMATE}")
    rules = tmp_path / "rules.acl"
    rules.write_text("topic readwrite teslamate/#\ntopic read $SYS/#\n")
    with printed_broker(agent, f"acl_file {rules}\n"):
        with agent.running():
            wait_until(lambda: health(status)["arrivals"] == "unproven", 30)
            publish(port, "teslamate/cars/1/odometer")
            wait_until(lambda: agent.status()["head"] == 1)
        publish(port, "teslamate/cars/1/odometer")
        with agent.running():
            wait_until(lambda: agent.status()["head"] == 2)
            publish(port, "teslamate/cars/1/odometer")
            wait_until(lambda: agent.status()["head"] == 3)
            assert agent.log.read_text().count("local broker lost") == 1, "Mosquitto closes the connection once"
    assert "waybill/agent/arrived" in agent.log.read_text()
    assert [one["kind"] for one in agent.exported()] == ["raw", "raw", "raw"]


def publish(port: int, topic: str) -> None:
    vehicle = VehicleSensors(port)
    vehicle.publish(topic, b"7")
    vehicle.close()


@contextmanager
def printed_broker(agent: AgentProcess, more: str = "") -> Iterator[None]:
    """A broker with the configuration that the agent prints."""
    folder = agent.config.parent
    command = [sys.executable, "-m", "edge_agent", "broker-conf", "-c", str(agent.config)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    conf = folder / "vehicle.conf"
    own = f"user {getpass.getuser()}\n{more}"
    conf.write_text(printed.stdout.replace("/var/lib/mosquitto", str(folder)) + own)
    with subprocess.Popen([mosquitto_program(), "-c", str(conf)], stderr=subprocess.DEVNULL) as broker:
        try:
            yield
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
