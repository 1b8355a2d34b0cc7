"""The agent's life on real brokers: another region and back, settings reloaded and pushed, health, bad input."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from deploy.local import MosquittoBroker, MosquittoSettings, free_port
from tests.edge_agent.process import DEVICE, TENANT, AgentProcess, VehicleSensors
from tests.edge_agent.region import MqttRegion
from tests.identity.operators import operator, operators_file
from tests.waiting import wait_until
from waybill.identity.signatures import sign_push

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, MosquittoBroker]]:
    brokers = {name: MosquittoBroker(name, tmp_path / name) for name in ("eu", "us")}
    # The sensors' own broker takes what no record may have: the agent refuses it.
    brokers["car"] = MosquittoBroker("car", tmp_path / "car", settings=MosquittoSettings(max_packet_mb=8))
    for broker in brokers.values():
        broker.start()
    for broker in brokers.values():
        broker.wait()
    yield brokers
    for broker in brokers.values():
        broker.stop()


@pytest.fixture
def regions(brokers: dict[str, MosquittoBroker]) -> Iterator[dict[str, MqttRegion]]:
    regions = {name: MqttRegion(brokers[name].port, name) for name in ("eu", "us")}
    yield regions
    for region in regions.values():
        region.close()


ANNA = operator("anna")


def signed(version: int, text: str) -> str:
    return sign_push(ANNA.key, f"{TENANT}/{DEVICE}", version, text.encode()).decode()


@pytest.fixture
def agent(tmp_path: Path, brokers: dict[str, MosquittoBroker]) -> Iterator[AgentProcess]:
    extra = (
        f"[failover]\nafter_s = 1.0\nreturn_after_s = 2.0\nhold_s = 1.0\njitter = 0.1\n"
        f'[push]\nconfirm_s = 4.0\noperators = "{operators_file(tmp_path / "operators.toml", ANNA)}"\n'
        f"[status]\nport = {free_port()}\n"
    )
    ports = {name: brokers[name].port for name in ("eu", "us")}
    agent = AgentProcess(tmp_path, brokers["car"].port, ports, extra)
    agent.start()
    assert wait_until(lambda: "listening" in agent.log.read_text() and "uplink connected" in agent.log.read_text())
    yield agent
    agent.stop()


@pytest.fixture
def vehicle(brokers: dict[str, MosquittoBroker]) -> Iterator[VehicleSensors]:
    vehicle = VehicleSensors(brokers["car"].port)
    yield vehicle
    vehicle.close()


def test_a_lost_region_is_replaced_and_returned_to_and_no_record_changes_its_name(agent, vehicle, regions, brokers):
    for _ in range(100):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) == 100)
    brokers["eu"].stop()
    for _ in range(100):
        vehicle.position()
    assert regions["us"].wait_for(lambda it: len(it.records) >= 100, 20)
    brokers["eu"].start()
    brokers["eu"].wait()
    assert wait_until(lambda: "back to the preferred region" in agent.log.read_text(), 30)
    for _ in range(100):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) >= 200, 20)
    both = {**regions["eu"].records, **regions["us"].records}
    assert sorted(seq for _, _, seq in both) == list(range(1, 301))
    assert len({record.device_time_us for record in both.values()}) == 300
    twice = regions["eu"].records.keys() & regions["us"].records.keys()
    assert all(regions["eu"].records[name] == regions["us"].records[name] for name in twice)


def test_settings_are_reloaded_on_sighup_and_wrong_ones_change_nothing(agent, vehicle, regions):
    text = agent.config.read_text()
    agent.config.write_text(text + "nonsense = 1\n")
    agent.signal(signal.SIGHUP)
    assert wait_until(lambda: "the present ones stay" in agent.log.read_text())
    agent.config.write_text(text.replace("ack_timeout_s = 3.0", "ack_timeout_s = 4.0"))
    agent.signal(signal.SIGHUP)
    assert wait_until(lambda: "settings loaded" in agent.log.read_text())
    for _ in range(50):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) == 50)


def test_pushed_settings_are_applied_when_the_uplink_is_well_with_them_and_taken_back_when_not(agent, vehicle, regions):
    eu = regions["eu"]
    eu.push(TENANT, DEVICE, "[drain]\nwindow = 9\n")
    assert eu.wait_for(lambda it: any(b"unsigned" in report for report in it.reports))
    eu.push(TENANT, DEVICE, signed(5, "[drain]\nwindow = 7\n"))
    for _ in range(20):
        vehicle.position()
        time.sleep(0.1)
    assert eu.wait_for(lambda it: any(b"applied" in report for report in it.reports))
    eu.push(TENANT, DEVICE, signed(4, "[drain]\nwindow = 6\n"))
    assert eu.wait_for(lambda it: any(b"older" in report for report in it.reports))
    eu.push(TENANT, DEVICE, signed(6, "[drain]\nwindow = 0\n"))
    assert eu.wait_for(lambda it: any(b"window" in report for report in it.reports))
    nowhere = f'[[uplinks]]\nregion = "nowhere"\nhost = "127.0.0.1"\nport = {free_port()}\n'
    eu.push(TENANT, DEVICE, signed(7, nowhere))
    for _ in range(50):
        vehicle.position()
    assert eu.wait_for(lambda it: any(b"taken back" in report for report in it.reports), 30)
    assert eu.wait_for(lambda it: len(it.records) == 70)
    assert (agent.config.parent / "buffer/pushed.toml").read_text().endswith("\n[drain]\nwindow = 7\n")


@pytest.mark.nightly
def test_hostile_retained_messages_neither_stop_nor_empty_nor_disconnect_the_agent(agent, vehicle, regions):
    """A retained push and a retained acknowledgement of QoS 0 and 1, that come again with every connection."""
    eu, base = regions["eu"], f"waybill/1/{TENANT}/{DEVICE}"
    hostile = [
        ("ack", msgpack.packb({"epoch": float("inf")})),
        ("ack", msgpack.packb({"epoch": agent.status()["epoch"], "ranges": [[1, 2**64 - 1]]})),
        ("ack", msgpack.packb({"epoch": agent.status()["epoch"], "ranges": [[1, 10**12]], "pause_s": 3600.0})),
        ("config", b"a=" + b"[" * 60_000),
        ("config", signed(5, '[[uplinks]]\nregion = "eu"\npassword_file = "/etc/shadow"\n').encode()),
    ]
    eu.answers = False
    for _ in range(50):
        vehicle.position()
    vehicle.publish("vehicle/event", b'{"time": 1767603422000, "name": "crash"}')
    for qos in (0, 1):
        for kind, payload in hostile:
            eu.client.publish(f"{base}/{kind}", payload, qos=qos, retain=True).wait_for_publish(5)
    assert eu.wait_for(lambda it: any(b"cannot be pushed" in r or b"refused" in r for r in it.reports))
    eu.client.publish(f"{base}/config", b"a=" + b"[" * 60_000, qos=0, retain=True).wait_for_publish(5)
    agent.kill()
    agent.start()
    eu.answers = True
    assert wait_until(lambda: agent.status()["depth_records"] == 0), agent.log.read_text()
    assert eu.wait_for(lambda it: len(it.records) == 51)
    log = agent.log.read_text()
    assert log.count("uplink lost") <= 1, "QoS 0 has no packet id to acknowledge"
    assert agent.status()["gaps"] == 0


def test_the_endpoint_on_loopback_serves_metrics_health_and_status(agent, vehicle, regions, brokers):
    for _ in range(10):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) == 10)
    port = int(agent.config.read_text().rpartition("[status]\nport = ")[2].split()[0])

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            body: bytes = answer.read()
            return body

    assert json.loads(get("/health")) == {
        "healthy": True,
        "buffer": "stores",
        "threads": True,
        "local_broker": True,
        "vehicle_broker": "keeps",
        "messages": "readable",
        "uplink": "acknowledges",
        "certificate": "not used",
        "held_back": {},
    }
    assert b"waybill_agent_messages_total 10.0" in get("/metrics")
    status = json.loads(get("/status"))
    assert (status["region"], status["messages"], status["head"]) == ("eu", 10, 10)
    brokers["eu"].stop()
    brokers["us"].stop()
    with pytest.raises(urllib.error.HTTPError, match="503") as caught:
        wait_until(lambda: get("/health") and False)
    assert json.loads(caught.value.read())["uplink"] == "not connected"
