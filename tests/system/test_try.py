"""`waybill try` as a person runs it: from nothing to a draft line with a copied line, a phone or a track."""

from __future__ import annotations

import base64
import json
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from cloud_jobs.lake.tables import Lake
from deploy.trial.errors import TrialError
from deploy.trial.ladder import Rung
from deploy.trial.phone import lan_address
from tests.edge_agent.mapping.connect_page import TRIES
from tests.system.test_demo import processes_of
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.whole_stack, pytest.mark.timeout(600)]


class Try:
    """A running `waybill try --json`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log, self.began_s = folder.with_suffix(".log"), time.monotonic()
        command = [sys.executable, "-m", "waybill", "try", "--json", "--folder", str(folder), *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder.parent, start_new_session=True)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def said(self, event: str) -> dict[str, Any]:
        """The first event of this name; empty before it."""
        return next((one for one in self.events() if one["event"] == event), {})

    def line(self) -> str:
        """The command to copy, or ""."""
        return str(self.said("line").get("command", ""))

    def reached(self) -> dict[str, dict[str, Any]]:
        return {one["rung"]: one for one in self.events() if one["event"] == "rung" and one["reached"]}

    def stuck(self) -> list[str]:
        return [one["why"] for one in self.events() if one["event"] == "rung" and one["is_stuck"]]

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120 * PATIENCE)


@contextmanager
def trial(folder: Path, *options: str) -> Iterator[Try]:
    one = Try(folder, *options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.interrupt()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the stack that the first trial starts; it is kept for the others."""
    return tmp_path_factory.mktemp("try") / "stack"


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Path]:
    """That stack, started by `waybill up`."""
    up = [sys.executable, "-m", "waybill", "up", "--detach", "--folder", str(folder)]
    subprocess.run([*up, "--topology", str(folder / "try" / "topology.toml")], check=True, timeout=300 * PATIENCE)
    yield folder
    subprocess.run([sys.executable, "-m", "waybill", "down", "--folder", str(folder)], check=True, timeout=120)


def ports_of(one: Try, device: str) -> list[int]:
    """The ports of the device's broker and agent."""
    book = json.loads((one.log.with_suffix("") / "try" / f"{device}.ports.json").read_text())
    return [book["broker"], book["agent"]]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def reached_all(one: Try) -> bool:
    assert one.process.poll() is None, one.log.read_text()
    return bool(one.said("complete"))


def test_two_commands_lead_to_a_draft_line_of_an_own_device(folder: Path) -> None:
    with trial(folder, "--until-draft", "--keep", "--device", "Own-1") as running:
        line = wait_until(running.line, 120, said=running.log.read_text)
        # by mistake another topic, then bad JSON, then as it is
        subprocess.run(["bash", "-c", line.replace("vehicle/position", "vehicel/position")], check=True, timeout=30)
        wait_until(lambda: any("did you mean vehicle/position?" in one for one in running.stuck()), 30)
        subprocess.run(["bash", "-c", line.replace('-m "[', '-m "{[')], check=True, timeout=30)
        wait_until(lambda: any("bad JSON" in one for one in running.stuck()), 30)
        subprocess.run(["bash", "-c", line], check=True, timeout=30)
        assert running.process.wait(480 * PATIENCE) == 0, running.log.read_text()
        seconds = time.monotonic() - running.began_s
    found, total = running.reached(), running.said("complete")
    assert {*found} == {*Rung}, running.log.read_text()
    way = [found[one]["after_s"] for one in (Rung.HEARD, Rung.MAPPED, Rung.STORED, Rung.ACKNOWLEDGED)]
    assert way == sorted(way), running.log.read_text()
    assert found[Rung.TABLE]["after_s"] <= found[Rung.DRAFT]["after_s"] <= total["after_s"]
    assert "entry zone own-1: 1 each at 2.50 EUR/each = 2.50 EUR" in found[Rung.DRAFT]["text"]
    assert "computed twice, equal" in found[Rung.DRAFT]["text"]
    since_s = total["since_start_s"]
    sys.stdout.write(
        f"from the first command to the last rung: {since_s:.1f} s; until all was stopped: {seconds:.1f} s\n"
    )
    assert processes_of(folder) == []
    kept = folder / "try" / "Own-1"
    assert {"agent.toml", "token", "reference"} <= {one.name for one in kept.iterdir()}


def test_ctrl_c_while_the_stack_starts_leaves_nothing(tmp_path: Path) -> None:
    with trial(tmp_path / "stack") as one:
        wait_until(lambda: len(processes_of(tmp_path / "stack")) > 3, 60, said=one.log.read_text)
        assert one.interrupt() == 0, one.log.read_text()
    assert processes_of(tmp_path / "stack") == []


def connected(setup: dict[str, Any], password: str) -> tuple[Any, mqtt.Client]:
    """The answer of the phone's broker, and the client."""
    answers: queue.Queue[Any] = queue.Queue()
    phone = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=setup["clientId"])
    phone.username_pw_set(setup["username"], password)
    phone.on_connect = lambda _client, _data, _flags, reason, _properties: answers.put(reason)
    phone.connect(setup["host"], setup["port"])
    phone.loop_start()
    return answers.get(timeout=30 * PATIENCE), phone


def test_a_phone_with_the_printed_credentials_climbs_the_ladder(running: Path) -> None:
    try:
        lan_address()
    except TrialError as error:
        pytest.skip(str(error))
    with trial(running, "--phone", "--yes", "--device", "own-phone") as one:
        url = wait_until(lambda: one.said("phone"), 120, said=one.log.read_text)["setup_url"]
        setup = json.loads(base64.urlsafe_b64decode(url.partition("inline=")[2]))
        refused, guest = connected(setup, "guessed")
        guest.loop_stop()
        is_in, phone = connected(setup, setup["password"])
        assert (refused.is_failure, is_in.is_failure) == (True, False)
        phone.publish("vehicle/position", b"not its own", qos=1)
        topic = setup["pubTopicBase"].replace("%u", setup["username"]).replace("%d", setup["deviceId"])
        for age_s, north in ((80, 0.0), (40, 0.0058), (0, 0.0)):
            fix = {"_type": "location", "tst": int(time.time()) - age_s, "lat": 48.1 + north, "lon": 11.5, "acc": 5}
            phone.publish(topic, json.dumps(fix), qos=setup["pubQos"]).wait_for_publish(30)
        wait_until(lambda: reached_all(one), 240, said=one.log.read_text)
        phone.disconnect()
        phone.loop_stop()
        ports = ports_of(one, "own-phone")
        assert all(map(is_open, ports))
        assert one.interrupt() == 0, one.log.read_text()
    assert one.reached()[Rung.HEARD]["text"] == "owntracks/phone/own-phone"
    assert "not its own" not in one.log.read_text()
    assert not any(map(is_open, [*ports, setup["port"]]))
    assert [one for one in processes_of(running) if "own-phone" in " ".join(one)] == []


def test_a_replayed_ride_is_drafted_and_a_lost_record_makes_the_draft_unequal(running: Path, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    if now.day == 1 and now.hour < 3:
        pytest.skip("the ride begins in another month than it ends")
    # more than two hours: new records of its end change nothing of its beginning
    ride = [f"2026-01-05T{9 + at // 60:02}:{at % 60:02}:00Z,{47.0 + at * 0.002:.4f},8.5" for at in range(140)]
    (tmp_path / "ride.csv").write_text("\n".join(["time,lat,lon", *ride]))
    with trial(running, "--replay", str(tmp_path / "ride.csv"), "--device", "own-ride") as one:
        wait_until(lambda: reached_all(one), 240, said=one.log.read_text)
        assert "computed twice, equal" in one.reached()[Rung.DRAFT]["text"]
        Lake(running / "lake").open("records").delete("device = 'own-ride' and seq = 2")
        port = json.loads((running / "try" / "own-ride.ports.json").read_text())["broker"]
        horn = json.dumps({"time": datetime.now(UTC).isoformat(), "name": "horn"})
        send = ["mosquitto_pub", "-p", str(port), "-q", "1", "-t", "vehicle/event", "-m", horn]
        subprocess.run(send, check=True, timeout=30)
        wait_until(lambda: any("NOT EQUAL" in why for why in one.stuck()), 120, said=one.log.read_text)
        (why,) = [row for row in one.events() if "NOT EQUAL" in row.get("why", "")][-1:]
        assert "give another usage" in why["why"]
        assert why["command"].startswith("waybill reconcile --lake ")
        assert one.interrupt() == 3, one.log.read_text()
    assert [one for one in processes_of(running) if "own-ride" in " ".join(one)] == []


FIX = '<trkpt lat="53.55" lon="9.9{0}"><time>2026-01-05T08:00:{0}0Z</time></trkpt>'


@pytest.mark.nightly
@pytest.mark.parametrize("options", TRIES)
def test_each_way_of_the_page_to_try_a_device_is_heard(tmp_path: Path, options: str) -> None:
    (tmp_path / "ride.gpx").write_text(f"<gpx>{FIX.format(1)}{FIX.format(2)}</gpx>")
    with trial(tmp_path / "stack", "--yes", *options.split()) as running:
        if options == "--phone":
            wait_until(lambda: running.said("phone"), 120, said=running.log.read_text)
        else:
            if options.startswith("--preset"):
                line = wait_until(running.line, 120, said=running.log.read_text)
                subprocess.run(["bash", "-c", line], check=True, timeout=30)
            wait_until(lambda: Rung.STORED in running.reached(), 120, said=running.log.read_text)
    assert running.process.returncode == 0, running.log.read_text()
    assert processes_of(tmp_path / "stack") == []
