"""The agent's life on real brokers: another region and back, settings reloaded and pushed, health, bad input."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from deploy.local import LocalAuthority, MosquittoBroker, MosquittoSecurity, MosquittoSettings, TlsFiles, free_port
from tests.edge_agent.process import DEVICE, TENANT, AgentProcess, VehicleSensors
from tests.edge_agent.region import MqttRegion
from tests.identity.operators import operator, operators_file
from tests.waiting import wait_until
from waybill.identity.broker_conf import broker_rules
from waybill.identity.signatures import sign_push
from waybill.record import Event

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


@pytest.mark.nightly
def test_ten_megabytes_and_odd_topics_are_refused_or_carried_and_the_agent_lives(agent, vehicle, regions):
    vehicle.publish("vehicle/position", b"x" * (7 << 20))
    vehicle.publish("vehicle/a/../b", b"{")
    vehicle.publish("vehicle/event", b'{"time": 0, "name": "old"}')
    assert regions["eu"].wait_for(lambda it: len(it.records) == 3)
    bodies = [record.body for _, record in sorted(regions["eu"].records.items())]
    assert sorted(type(body).__name__ for body in bodies) == ["Event", "Event", "Raw"]


@pytest.mark.nightly
def test_without_a_gateway_health_says_so_and_a_message_above_the_limit_becomes_an_event(tmp_path, brokers, vehicle):
    port = free_port()
    agent = AgentProcess(tmp_path, brokers["car"].port, {"eu": brokers["eu"].port}, f"[status]\nport = {port}\n")
    text = agent.config.read_text()
    agent.config.write_text(text.replace("[intake]\n", "[intake]\nmax_packet_bytes = 1024\n"))

    def uplink() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return str(json.load(answer)["uplink"])
        except urllib.error.HTTPError as error:
            return str(json.load(error)["uplink"])
        except OSError:
            return "no answer"

    agent.start()
    try:
        assert wait_until(lambda: "listening" in agent.log.read_text())
        vehicle.publish("vehicle/signal", b"x" * 2000)
        assert wait_until(lambda: uplink() == "no gateway")
        region = MqttRegion(brokers["eu"].port, "eu")
        try:
            assert region.wait_for(lambda it: len(it.records) == 1)
            (record,) = region.records.values()
            assert isinstance(record.body, Event)
            assert json.loads(record.body.attributes)["bytes"] == 2000
            assert wait_until(lambda: uplink() == "acknowledges")
        finally:
            region.close()
    finally:
        agent.stop()


@pytest.mark.nightly
def test_a_push_that_holds_back_what_flowed_is_taken_back(agent, vehicle, regions):
    held = "".join(
        f'[[classes]]\nname = "{name}"\ntopics = ["{topics}"]\n{extra}\n'
        for name, topics, extra in (
            ("urgent", "vehicle/event", "urgent = true"),
            ("position", "vehicle/position", 'links = ["satellite"]'),
            ("signal", "vehicle/signal", ""),
            ("other", "#", ""),
        )
    )
    regions["eu"].push(TENANT, DEVICE, signed(5, held))
    vehicle.publish("vehicle/event", b'{"time": 0, "name": "now"}')
    vehicle.position()
    assert regions["eu"].wait_for(lambda it: any(b"vehicle/position" in one for one in it.reports), 30)
    assert regions["eu"].wait_for(lambda it: len(it.records) == 2), "what was held back goes with the former settings"


@pytest.mark.nightly
def test_a_gateway_that_asks_for_a_pause_gets_it(agent, vehicle, regions):
    eu = regions["eu"]
    eu.pause_s = 1.5
    vehicle.position()
    assert eu.wait_for(lambda it: len(it.records) == 1)
    time.sleep(0.3)
    vehicle.position()
    assert eu.wait_for(lambda it: len(it.records) == 2)
    first, second = (at for at, _, _ in eu.batches)
    assert second - first >= 1.4


def uplink_tls(authority: Path, own: TlsFiles | None) -> str:
    lines = ["[uplinks.tls]", f'ca = "{authority}"']
    return "\n".join(lines if own is None else [*lines, f'certificate = "{own.certificate}"', f'key = "{own.key}"'])


def test_over_mutual_tls_the_agent_delivers_and_with_wrong_certificates_it_keeps_what_it_has(tmp_path):
    authority, stranger = LocalAuthority(tmp_path / "authority"), LocalAuthority(tmp_path / "stranger")
    car = MosquittoBroker("car", tmp_path / "car")
    security = MosquittoSecurity(tls=authority.server("broker@eu"), rules=broker_rules(0, "eu", ["eu-1"], ()))
    eu = MosquittoBroker("eu", tmp_path / "eu", security=security)
    for broker in (car, eu):
        broker.start()
    for broker in (car, eu):
        broker.wait()
    vehicle, region = VehicleSensors(car.port), MqttRegion(eu.port, tls=authority.client("gateway@eu-1"))
    wrong = {
        "none": uplink_tls(authority.file, None),
        "of a stranger": uplink_tls(authority.file, stranger.client(f"{TENANT}/{DEVICE}")),
        "trusts a stranger": uplink_tls(stranger.file, authority.client(f"{TENANT}/{DEVICE}")),
    }
    try:
        for why, tls in wrong.items():
            log = run_until(tmp_path, vehicle, eu, tls, "uplink not reached")
            assert "uplink connected" not in log, why
        assert not region.records
        right = uplink_tls(authority.file, authority.client(f"{TENANT}/{DEVICE}"))
        run_until(tmp_path, vehicle, eu, right, "uplink connected")
        assert region.wait_for(lambda it: len(it.records) == 50), region.errors
    finally:
        vehicle.close()
        region.close()
        car.stop()
        eu.stop()


def run_until(folder: Path, vehicle: VehicleSensors, eu: MosquittoBroker, tls: str, said: str) -> str:
    """Runs an agent until it says something and keeps, or has delivered, its 50 records; all that it said."""
    agent = AgentProcess(folder, vehicle.port, {"eu": eu.port}, tls=tls)
    agent.log.unlink(missing_ok=True)
    agent.start()
    try:
        assert wait_until(lambda: all(word in agent.log.read_text() for word in (said, "listening")))
        while vehicle.sent < 50:
            vehicle.position()
        expected = 0 if said == "uplink connected" else 50
        assert wait_until(lambda: agent.status()["head"] == 50 and agent.status()["depth_records"] == expected)
    finally:
        agent.stop()
    return agent.log.read_text()


@pytest.mark.nightly
def test_of_a_commit_that_the_broker_would_hang_up_for_only_the_record_that_never_fits_is_a_dead_letter(tmp_path):
    car = MosquittoBroker("car", tmp_path / "car")
    eu = MosquittoBroker("eu", tmp_path / "eu", settings=MosquittoSettings(max_packet_mb=1))
    for broker in (car, eu):
        broker.start()
    for broker in (car, eu):
        broker.wait()
    vehicle, region = VehicleSensors(car.port), MqttRegion(eu.port)
    agent = AgentProcess(tmp_path, car.port, {"eu": eu.port})
    text = agent.config.read_text()
    agent.config.write_text(
        text.replace("[drain]\n", "commit_bytes = 4000000\n[drain]\nmax_refusals = 2\nrefusal_backoff_s = 0.2\n")
    )
    agent.start()
    try:
        assert wait_until(lambda: "listening" in agent.log.read_text())
        for size in (900_000, 1_048_500, 900_000):
            vehicle.client.publish("vehicle/odd", os.urandom(size), qos=1)
        # a slow machine may deliver some of them before the last one is taken in
        assert wait_until(lambda: agent.status()["head"] == 3)
        for _ in range(100):
            vehicle.position()
            time.sleep(0.005)
        assert wait_until(lambda: agent.status()["dead_letter_records"] == 1), agent.log.read_text()
        assert region.wait_for(lambda it: len(it.records) == 102)
        assert wait_until(lambda: agent.status()["depth_records"] == 1), "it alone is left"
        assert agent.status()["gaps"] == 0
        assert "uplink lost" not in agent.log.read_text()
    finally:
        agent.stop()
        vehicle.close()
        region.close()
        car.stop()
        eu.stop()
