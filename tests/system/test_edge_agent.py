"""The agent on real brokers: what the vehicle's broker was acknowledged arrives, with one id, whatever is killed."""

import json
import os
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from deploy.local import MosquittoBroker, MosquittoSettings, free_port
from tests.edge_agent.process import DEVICE, TENANT, AgentProcess, VehicleSensors, number_of, started
from tests.edge_agent.region import MqttRegion
from tests.identity.makers import operator, operators_file
from tests.waiting import PATIENCE, wait_until
from waybill.identity.signatures import sign_push
from waybill.record import IntervalSet

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

ANNA = operator("anna")
MESSAGES_A_SECOND = 800
NO_SAVE_OF_ITS_OWN_S = 3_600


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, MosquittoBroker]]:
    settings = MosquittoSettings(autosave_s=NO_SAVE_OF_ITS_OWN_S)
    brokers = {name: MosquittoBroker(name, tmp_path / name, settings=settings) for name in ("car", "eu", "us")}
    with started(*brokers.values()):
        yield brokers


@pytest.fixture
def regions(brokers: dict[str, MosquittoBroker]) -> Iterator[dict[str, MqttRegion]]:
    regions = {name: MqttRegion(brokers[name].port, name) for name in ("eu", "us")}
    yield regions
    for region in regions.values():
        region.close()


@pytest.fixture
def region(regions: dict[str, MqttRegion]) -> MqttRegion:
    return regions["eu"]


@pytest.fixture
def vehicle(brokers: dict[str, MosquittoBroker]) -> Iterator[VehicleSensors]:
    vehicle = VehicleSensors(brokers["car"].port)
    yield vehicle
    vehicle.close()


@pytest.fixture
def agent(tmp_path: Path, brokers: dict[str, MosquittoBroker]) -> Iterator[AgentProcess]:
    """An agent of region eu."""
    with AgentProcess(tmp_path, brokers["car"].port, {"eu": brokers["eu"].port}).running() as agent:
        yield agent


@pytest.fixture
def roaming(tmp_path: Path, brokers: dict[str, MosquittoBroker]) -> Iterator[AgentProcess]:
    """An agent of two regions that takes pushed settings and shows its status."""
    extra = (
        "[failover]\nafter_s = 1.0\nreturn_after_s = 2.0\n"
        f'[push]\nconfirm_s = 4.0\noperators = "{operators_file(tmp_path / "operators.toml", ANNA)}"\n'
        f"[status]\nport = {free_port()}\n"
    )
    ports = {name: brokers[name].port for name in ("eu", "us")}
    with AgentProcess(tmp_path, brokers["car"].port, ports, extra).running() as agent:
        wait_until(lambda: "uplink connected" in agent.log.read_text())
        yield agent


def is_settled(agent: AgentProcess, records: int) -> bool:
    state = agent.status()
    return bool(state["acknowledged"] == records and state["depth_records"] == 0)


def test_every_kind_of_message_arrives_once_and_leaves_the_buffer_when_it_is_acknowledged(agent, vehicle, region):
    for _ in range(50):
        vehicle.position()
    vehicle.publish("vehicle/event", json.dumps({"time": 1767603422000, "name": "trip_end"}).encode())
    vehicle.publish("vehicle/signal", b'{"time": "2026-01-05T08:57:02Z", "path": "Vehicle.Speed", "value": 3}')
    vehicle.publish("vehicle/odd/../thing", b"\x00\xff not json")
    assert region.wait_for(lambda it: len(it.records) == 53), region.errors
    kinds = sorted(type(record.body).__name__ for record in region.records.values())
    assert kinds == ["Event"] + ["Position"] * 50 + ["Raw", "Signal"]
    assert sorted(seq for _, _, seq in region.records) == list(range(1, 54))
    wait_until(lambda: is_settled(agent, 53), 15)
    assert agent.status()["device"] == DEVICE


@pytest.mark.nightly
def test_a_region_that_is_silent_for_a_while_gets_everything_when_it_speaks_again(agent, vehicle, region, brokers):
    region.answers = False
    for _ in range(200):
        vehicle.position()
    assert region.wait_for(lambda it: len(it.records) == 200)
    assert agent.status()["depth_records"] == 200, "nothing may be deleted that is not acknowledged"
    brokers["eu"].stop()
    for _ in range(200):
        vehicle.position()
    region.answers = True
    brokers["eu"].start()
    brokers["eu"].wait()
    assert region.wait_for(lambda it: len(it.records) == 400, 30)
    assert not region.conflicts
    assert {number_of(record.device_time_us) for record in region.records.values()} == set(range(400))


def test_sigterm_commits_what_waits_and_leaves_within_two_seconds(agent, vehicle, region):
    for _ in range(300):
        vehicle.position()
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 2 * PATIENCE
    agent.start()
    assert region.wait_for(lambda it: len({r.device_time_us for r in it.records.values()}) == 300)
    assert len(region.records) == 300, "a record has exactly one name"
    wait_until(lambda: is_settled(agent, 300), 15)


def drive(vehicle: VehicleSensors, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(MESSAGES_A_SECOND // 50):
            vehicle.position()
        time.sleep(1 / 50)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_no_record_is_lost_or_named_twice_by_kills_at_random_moments(agent, vehicle, region, kills):
    seed = random.SystemRandom().getrandbits(32)
    sys.stdout.write(f"seed {seed}\n")
    draw = random.Random(seed)
    for _ in range(kills):
        drive(vehicle, draw.uniform(0.05, 0.7))
        agent.kill()
        agent.start()
    drive(vehicle, 1.0)
    complete = region.wait_for(lambda it: len(it.records) >= vehicle.sent, 60)
    assert not region.errors
    assert not region.conflicts, "a name never has two contents"
    numbers = [number_of(record.device_time_us) for record in region.records.values()]
    assert complete, f"lost: {sorted(set(range(vehicle.sent)) - set(numbers))[:10]}"
    assert sorted(numbers) == list(range(vehicle.sent)), "a record has exactly one name"
    (epoch,) = {epoch for _, epoch, _ in region.records}
    assert region.accounted(DEVICE, epoch) == IntervalSet([(1, vehicle.sent)]), "names have no hole"
    in_order = [number_of(record.device_time_us) for _, record in sorted(region.records.items())]
    assert in_order == sorted(in_order), "records are named in the order in which they came"


def test_every_message_is_stored_once_though_the_vehicles_broker_was_killed_and_forgot_its_acknowledgement(
    agent, vehicle, region, brokers
):
    car, database = brokers["car"], brokers["car"].folder / "mosquitto.db"
    agent.stop()
    for _ in range(300):
        vehicle.position()
    wait_until(lambda: len(vehicle.taken) == 300)
    before = database.stat().st_mtime_ns if database.exists() else 0
    os.kill(car.pid, signal.SIGUSR1)  # it writes its queues
    wait_until(lambda: database.exists() and database.stat().st_mtime_ns > before)
    agent.start()
    assert region.wait_for(lambda it: len(it.records) == 300, 30)
    car.kill()
    car.start()
    car.wait()
    wait_until(vehicle.client.is_connected)
    vehicle.position()
    assert region.wait_for(lambda it: len(it.records) > 300, 30)
    wait_until(lambda: agent.status()["acknowledged"] == 301)
    numbers = [number_of(record.device_time_us) for record in region.records.values()]
    assert sorted(numbers) == list(range(301)), "every message has one name"
    assert agent.status()["duplicates"] == 300, "the broker did deliver them again"


def test_a_lost_region_is_replaced_and_returned_to_and_no_record_changes_its_name(roaming, vehicle, regions, brokers):
    for _ in range(100):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) == 100)
    brokers["eu"].stop()
    for _ in range(100):
        vehicle.position()
    assert regions["us"].wait_for(lambda it: len(it.records) >= 100, 20)
    brokers["eu"].start()
    brokers["eu"].wait()
    assert wait_until(lambda: "back to the preferred region" in roaming.log.read_text(), 30)
    for _ in range(100):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) >= 200, 20)
    both = {**regions["eu"].records, **regions["us"].records}
    assert sorted(seq for _, _, seq in both) == list(range(1, 301))
    assert len({record.device_time_us for record in both.values()}) == 300
    twice = regions["eu"].records.keys() & regions["us"].records.keys()
    assert all(regions["eu"].records[name] == regions["us"].records[name] for name in twice)


def signed(version: int, text: str) -> str:
    return sign_push(ANNA.key, f"{TENANT}/{DEVICE}", version, text.encode()).decode()


def test_pushed_settings_are_applied_when_the_uplink_is_well_with_them_and_taken_back_when_not(
    roaming, vehicle, regions
):
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
    record = json.loads((roaming.config.parent / "buffer/pushed.json").read_text())
    assert record["in_force"] == "[drain]\nwindow = 7\n"


@pytest.mark.nightly
def test_hostile_retained_messages_neither_stop_nor_empty_nor_disconnect_the_agent(roaming, vehicle, regions):
    """A retained push and a retained acknowledgement of QoS 0 and 1, that come again with every connection."""
    eu, base = regions["eu"], f"waybill/1/{TENANT}/{DEVICE}"
    hostile = [
        ("ack", msgpack.packb({"epoch": float("inf")})),
        ("ack", msgpack.packb({"epoch": roaming.status()["epoch"], "ranges": [[1, 2**64 - 1]]})),
        ("ack", msgpack.packb({"epoch": roaming.status()["epoch"], "ranges": [[1, 10**12]], "pause_s": 3600.0})),
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
    roaming.kill()
    roaming.start()
    eu.answers = True
    assert wait_until(lambda: roaming.status()["depth_records"] == 0), roaming.log.read_text()
    assert eu.wait_for(lambda it: len(it.records) == 51)
    log = roaming.log.read_text()
    assert log.count("uplink lost") <= 1, "QoS 0 has no packet id to acknowledge"
    assert roaming.status()["gaps"] == 0


def test_the_endpoint_on_loopback_serves_metrics_health_and_status(roaming, vehicle, regions, brokers):
    for _ in range(10):
        vehicle.position()
    assert regions["eu"].wait_for(lambda it: len(it.records) == 10)
    assert wait_until(lambda: roaming.status()["depth_records"] == 0), "until then the uplink is unknown"
    port = int(roaming.config.read_text().rpartition("[status]\nport = ")[2].split()[0])

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
        "arrivals": "known",
        "mappings": "read",
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
