"""Enrolment on real brokers, with real agents: a claim is good once, renewal loses nothing, and intake never waits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker, free_port
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import CertificateFolder, certificate_folder
from tests.edge_agent.process import DEVICE, FIRST_MS, TENANT, AgentProcess, VehicleSensors
from tests.edge_agent.region import MqttRegion
from tests.system.enrolment_region import EnrolmentRegion
from tests.waiting import PATIENCE, wait_until
from waybill.identity.claims import token_user
from waybill.identity.registry import DeviceState
from waybill.record import Position
from waybill.settings import parse

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[EnrolmentRegion]:
    region = EnrolmentRegion(tmp_path / "region")
    assert wait_until(lambda: not region.service.problems)
    yield region
    region.close()


def device_file(region: EnrolmentRegion, folder: Path, claim: str, *, device: str = DEVICE, port: int = 0) -> Path:
    """Settings of a device, with a buffer of its own; `claim`: the lines of [enrolment] that say which."""
    folder.mkdir(exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(
        f'[device]\nid = "{device}"\ntenant = "{TENANT}"\n[buffer]\npath = "{folder}/buffer"\n[status]\nport = 0\n'
        f'[enrolment]\nhost = "127.0.0.1"\nport = {port or region.broker.port}\nca = "{region.root}"\n'
        f"answer_timeout_s = 3.0\n{claim}\n"
        f'[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\nport = {region.data.port}\n'
        f'[uplinks.tls]\nca = "{region.root}"\n'
    )
    return config


def token_line(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(text)
    return f'token_file = "{folder}/token"'


def enrol(config: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "edge_agent", "enrol", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    return done.returncode, done.stdout + done.stderr


def kept(config: Path) -> CertificateFolder:
    folder = certificate_folder(parse(AgentSettings, config.read_text(), str(config)))
    assert folder is not None
    return folder


def test_a_token_and_a_factory_certificate_enrol_their_devices_once(region: EnrolmentRegion, tmp_path: Path) -> None:
    token = region.expect_token(DEVICE)
    one, two = (device_file(region, tmp_path / name, token_line(tmp_path / name, token)) for name in ("one", "two"))
    code, said = enrol(one)
    assert code == 0, said
    assert "is enrolled: serial" in said
    assert region.published[f"{TENANT}/{DEVICE}"].state is DeviceState.ACTIVE
    code, said = enrol(two)  # the same token, and so the same claim, with another key
    assert code == 1
    assert "claim-used" in said
    assert kept(two).newest() is None
    factory = region.expect_factory("bus-2", "SN-0002")
    lines = f'certificate = "{factory.certificate}"\nkey = "{factory.key}"'
    three = device_file(region, tmp_path / "three", lines, device="bus-2", port=region.broker.factory_port)
    code, said = enrol(three)
    assert code == 0, said
    stranger = region.files("claim@SN-9999", authority=region.factory)
    lines = f'certificate = "{stranger.certificate}"\nkey = "{stranger.key}"'
    four = device_file(region, tmp_path / "four", lines, device="bus-3", port=region.broker.factory_port)
    code, said = enrol(four)
    assert (code, "unknown-claim" in said) == (1, True)
    assert region.desk.outcomes == {"enrolled": 2, "claim-used": 1, "unknown-claim": 1}


def test_a_factory_certificate_with_a_tokens_name_is_no_token(region: EnrolmentRegion, tmp_path: Path) -> None:
    token = region.expect_token(DEVICE)
    forged = region.files(token_user(token), authority=region.factory)
    lines = f'certificate = "{forged.certificate}"\nkey = "{forged.key}"'
    thief = device_file(region, tmp_path / "thief", lines, port=region.broker.factory_port)
    code, said = enrol(thief)
    assert (code, "unknown-claim" in said) == (1, True), said
    assert region.published[f"{TENANT}/{DEVICE}"].state is DeviceState.EXPECTED
    code, said = enrol(device_file(region, tmp_path / "mine", token_line(tmp_path / "mine", token)))
    assert code == 0, said


@pytest.mark.nightly
def test_a_lost_answer_is_asked_for_again_and_an_expired_token_is_turned_away(
    region: EnrolmentRegion, tmp_path: Path
) -> None:
    config = device_file(region, tmp_path / "one", token_line(tmp_path / "one", region.expect_token(DEVICE)))
    region.may_publish.clear()
    code, said = enrol(config)
    assert (code, "no answer" in said) == (1, True), said
    region.service.close()  # killed while the registry was away: nothing was given, nothing is known
    region.may_publish.set()
    region.start_service()
    assert wait_until(lambda: not region.service.problems)
    assert enrol(config)[0] == 0
    (kept(config).newest() or pytest.fail("no certificate")).path.unlink()
    late = device_file(region, tmp_path / "two", token_line(tmp_path / "two", "x"), device="bus-9")
    token_line(tmp_path / "two", region.expect_token("bus-9", timedelta(seconds=-1)))
    code, said = enrol(late)
    assert (code, "not authorised" in said, "device expect --again" in said) == (1, True, True), said
    assert len(region.history) == 1


def test_an_agent_stores_while_it_has_no_certificate_then_enrols_renews_and_loses_nothing(tmp_path: Path) -> None:
    """Certificates of 40 s: they are renewed after 6 to 23 s, while batches are on their way."""
    region = EnrolmentRegion(tmp_path / "region", lifetime=timedelta(seconds=40))
    car = MosquittoBroker("car", tmp_path / "car")
    car.start()
    car.wait()
    own = region.files("gateway@eu-1")
    gateway = MqttRegion(region.data.port, "eu", tls=own)
    folder = tmp_path / "agent"
    folder.mkdir()
    extra = (
        f"[status]\nport = {free_port()}\n[enrolment]\nhost = '127.0.0.1'\nport = {region.broker.port}\n"
        f"ca = '{region.root}'\ntoken_file = '{folder}/token'\n"
        "backoff_first_s = 0.2\nbackoff_max_s = 1.0\nanswer_timeout_s = 3.0\n"
    )
    agent = AgentProcess(folder, car.port, {"eu": region.data.port}, extra, tls=f"[uplinks.tls]\nca = '{region.root}'")
    try:
        agent.start()
        assert wait_until(lambda: "listening" in agent.log.read_text())
        vehicle = VehicleSensors(car.port)
        for _ in range(50):
            vehicle.position()
        assert wait_until(lambda: len(vehicle.taken) == 50)
        assert wait_until(lambda: agent.status()["depth_records"] == 50), "intake does not wait for a certificate"
        (folder / "token").write_text(region.expect_token(DEVICE))
        assert gateway.wait_for(lambda it: len(it.records) == 50, 30)
        while len(region.history) < 2 and vehicle.sent < 4000:
            vehicle.position()
            time.sleep(0.02)
        assert wait_until(lambda: kept(agent.config).next() is not None)
        region.data.stop()
        for _ in range(50):
            vehicle.position()
        region.data.start()
        region.data.wait()
        assert wait_until(lambda: "the new certificate is in use" in agent.log.read_text(), 30)
        assert wait_until(lambda: len(vehicle.taken) == vehicle.sent)
        assert gateway.wait_for(lambda it: len(it.records) == vehicle.sent, 30)
        assert sorted(seq for _, _, seq in gateway.records) == list(range(1, vehicle.sent + 1))
        vehicle.close()
    finally:
        agent.stop()
        gateway.close()
        car.stop()
        region.close()
    assert region.desk.outcomes["enrolled"] == 1
    assert region.desk.outcomes["renewed"] >= 1
    assert not gateway.conflicts
    assert not gateway.errors
    assert [len(entry.certificates) for entry in region.history[:2]] == [1, 2], "the old serial stays listed"


def test_trackers_behind_one_agent_are_streams_of_their_own_and_a_wrong_token_stops_only_its_own(
    region: EnrolmentRegion, tmp_path: Path
) -> None:
    car = MosquittoBroker("car", tmp_path / "car")
    car.start()
    car.wait()
    gateway = MqttRegion(region.data.port, "eu", tls=region.files("gateway@eu-1"))
    trackers = ("tracker-1", "tracker-2", "tracker-3")
    for one in trackers:
        (tmp_path / one).write_text(region.expect_token(one) if one != "tracker-3" else "not-its-token")
    extra = (
        f"[status]\nport = 0\n[enrolment]\nhost = '127.0.0.1'\nport = {region.broker.port}\nca = '{region.root}'\n"
        f"token_file = '{tmp_path}/{{device}}'\nbackoff_first_s = 0.2\nbackoff_max_s = 1.0\nanswer_timeout_s = 3.0\n"
        '[[mappings]]\nname = "trackers"\npreset = "nested-json"\n'
    )
    tls = f"[uplinks.tls]\nca = '{region.root}'"
    agent = AgentProcess(tmp_path, car.port, {"eu": region.data.port}, extra, tls=tls, devices=trackers)
    vehicle = VehicleSensors(car.port)

    def drive() -> None:
        for number in range(10):
            for place, one in enumerate(trackers):
                fix = {"latitude": place, "longitude": number}
                payload = json.dumps({"timestamp": FIRST_MS + number, "coords": fix})
                vehicle.publish(f"devices/{one}/location", payload.encode())

    def seqs(device: str) -> list[int]:
        return sorted(seq for its, _, seq in gateway.records if its.endswith(device))

    try:
        agent.start()
        assert wait_until(lambda: agent.log.read_text().count('"listening"') == 3)
        drive()
        assert gateway.wait_for(lambda _: [*map(seqs, trackers)] == [[*range(1, 11)]] * 2 + [[]], 30)
        assert agent.stop(10) == 0
        drive()
        (tmp_path / "tracker-3").write_text(region.expect_token("tracker-3"))
        agent.start()
        assert gateway.wait_for(lambda _: [*map(seqs, trackers)] == [[*range(1, 21)]] * 3, 60)
    finally:
        vehicle.close()
        agent.stop()
        gateway.close()
        car.stop()
    bodies = [(device.rpartition("-")[2], record.body) for (device, _, _), record in gateway.records.items()]
    assert {(device, body.latitude) for device, body in bodies if isinstance(body, Position)} == {
        ("1", 0.0),
        ("2", 1.0),
        ("3", 2.0),
    }
    assert not gateway.conflicts
    assert not gateway.errors
