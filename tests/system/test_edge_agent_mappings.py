"""A real agent with presets at a real vehicle's broker, and `edge-agent map listen` beside it."""

import json
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.local import MosquittoBroker
from tests.edge_agent.mapping.connect_page import COMMANDS, SETTINGS
from tests.edge_agent.process import AgentProcess, VehicleSensors, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

PRESETS = ("owntracks", "hsl-hfp", "nmea", "teslamate", "thingsboard")
MAPPINGS = "".join(f'[[mappings]]\nname = "{preset}"\npreset = "{preset}"\n' for preset in PRESETS)
NMEA = b"$GNRMC,145104.626,A,5333.00000,N,00959.40000,E,5.4,84.4,221126,,,A*4D\r\n"
BUS = "/hfp/v2/journey/ongoing/vp/bus/0018/00423/2159/2/Matinkyla/09:32/2442201/3/60;24/16/58/67"
MESSAGES = [
    ("owntracks/ada/phone", b'{"_type":"location","lat":53.55,"lon":9.99,"tst":1795359064,"vel":54}'),
    ("owntracks/ada/phone", b'{"_type":"location","lat":53.55,"lon":9.99}'),
    (BUS, b'{"VP":{"tst":"2026-11-22T14:51:04.626Z","lat":60.1,"long":24.6,"spd":10,"odo":4559,"loc":"GPS"}}'),
    ("nmea/roof", NMEA),
    ("nmea/roof", NMEA.replace(b"5333", b"5334")),
    ("v1/devices/me/telemetry", b'[{"ts":1795359064626,"values":{"latitude":1,"longitude":2}},{"ts":1795359064626}]'),
    ("teslamate/cars/1/latitude", b"53.55"),
    ("teslamate/cars/1/longitude", b"9.99"),
    ("vehicle/position", b'{"time":1795359064626,"latitude":-1,"longitude":-2}'),
]
EXPECTED = [
    ("position", "owntracks", (53.55, 9.99, 1_795_359_064_000_000)),
    ("raw", "owntracks", "mapping:time:missing"),
    ("position", "hsl-hfp", (60.1, 24.6, 1_795_359_064_626_000)),
    ("signal", "hsl-hfp", ("Vehicle.TraveledDistanceSinceStart", 4.559)),
    ("position", "nmea", (53.55, 9.99, 1_795_359_064_626_000)),
    ("raw", "nmea", "mapping:format:checksum"),
    ("position", "thingsboard", (1.0, 2.0, 1_795_359_064_626_000)),
    ("raw", "thingsboard", "mapping:latitude:missing"),
    ("signal", "teslamate", ("Vehicle.CurrentLocation.Latitude", 53.55)),
    ("signal", "teslamate", ("Vehicle.CurrentLocation.Longitude", 9.99)),
    ("position", "teslamate", (53.55, 9.99, None)),
    ("position", "", (-1.0, -2.0, 1_795_359_064_626_000)),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MosquittoBroker]:
    broker = MosquittoBroker("car", tmp_path / "car")
    with started(broker):
        yield broker


@pytest.fixture
def agent(tmp_path: Path, broker: MosquittoBroker) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path, broker.port, {"eu": 1}, MAPPINGS).running() as agent:
        yield agent


SENT_US = {time_us for kind, _, about in EXPECTED if kind == "position" and (time_us := about[2])}


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is compared of a record. A time that no message had is that of an arrival."""
    about = row["kind"], row.get("mapping", "").partition("@")[0]
    match row["kind"]:
        case "position":
            time_us = row["device_time_us"] if row["device_time_us"] in SENT_US else None
            return *about, (round(row["latitude"], 9), round(row["longitude"], 9), time_us)
        case "signal":
            return *about, (row["path"], round(row["value"], 9))
        case _:
            return *about, row["reason"]


def test_presets_at_a_real_broker_make_the_right_records(agent: AgentProcess, broker: MosquittoBroker) -> None:
    publish(broker, MESSAGES)
    wait_until(lambda: agent.status()["head"] >= len(EXPECTED))
    # Classes share the numbers: records of one message need not stand side by side.
    assert Counter(map(content, agent.exported())) == Counter(EXPECTED)


def test_a_changed_topic_delivers_no_message_twice(tmp_path: Path, broker: MosquittoBroker) -> None:
    payload = MESSAGES[0][1]
    owntracks = '[[mappings]]\nname = "owntracks"\npreset = "owntracks"\n'
    # Each differs from the one before: a broker delivers a message for each filter of a session.
    for number, topic in enumerate(["owntracks/+/phone", "owntracks/ada/#", "owntracks/ada/+"], 1):
        agent = AgentProcess(tmp_path, broker.port, {"eu": 1}, f'{owntracks}topic = "{topic}"\n')
        with agent.running():
            publish(broker, [("owntracks/ada/phone", payload), ("vehicle/position", MESSAGES[-1][1])])
            wait_until(partial(lambda it, least: it.status()["head"] >= least, agent, 2 * number))
        names = Counter(row.get("mapping", "").partition("@")[0] for row in agent.exported())
        assert names == {"owntracks": number, "": number}


@contextmanager
def map_command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`edge-agent map`, once it listens at the broker."""
    command = [sys.executable, "-m", "edge_agent", "map", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("listening")
            yield process
        finally:
            process.kill()


def publish(broker: MosquittoBroker, messages: Sequence[tuple[str, bytes]]) -> None:
    sensors = VehicleSensors(broker.port)
    for topic, payload in messages:
        sensors.publish(topic, payload)
    sensors.close()


def test_listening_disturbs_no_running_agent(agent: AgentProcess, broker: MosquittoBroker) -> None:
    words = ["listen", "--config", str(agent.config), "--json", "--messages", str(len(MESSAGES)), "--seconds", "60"]
    with map_command(*words) as listener:
        publish(broker, MESSAGES)
        shown, said = listener.communicate(timeout=60)
    assert listener.returncode == 0
    assert said.splitlines()[-1] == "9 messages, 3 of them not read"
    records = [one for line in shown.splitlines() for one in json.loads(line)["records"]]
    # A joined position follows its halves only after the settle window, when the last message may have been shown.
    joined = ("position", "teslamate")
    made = [(one["kind"], one["mapping"].partition("@")[0]) for one in records]
    expected = [(kind, mapping) for kind, mapping, _ in EXPECTED]
    assert [one for one in made if one != joined] == [one for one in expected if one != joined]
    wait_until(lambda: agent.status()["head"] >= len(EXPECTED))
    assert "local broker lost" not in agent.log.read_text(encoding="utf-8")


def test_an_interrupt_ends_listening_cleanly(agent: AgentProcess) -> None:
    with map_command("listen", "--config", str(agent.config)) as listener:
        listener.send_signal(signal.SIGINT)
        _, said = listener.communicate(timeout=30)
    assert listener.returncode == 0
    assert said.splitlines()[-1] == "0 messages, 0 of them not read"


def test_a_mapping_is_proposed_for_what_the_agent_does_not_read_yet(
    agent: AgentProcess, broker: MosquittoBroker
) -> None:
    foreign = [("fleet/17/gps", b'{"ts":1795359064,"lat":53.55,"lng":9.99}')]
    words = ["suggest", "--config", str(agent.config), "--messages", str(len(MESSAGES) + 1), "--seconds", "60"]
    with map_command(*words) as process:
        publish(broker, [*MESSAGES, *foreign])
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "fleet/17/gps" in [mapping.get("topic") for mapping in tomllib.loads(shown)["mappings"]]


def test_what_the_page_for_new_users_publishes_becomes_positions(tmp_path: Path, broker: MosquittoBroker) -> None:
    mappings = SETTINGS[SETTINGS.index("[[mappings]]") :]
    published = [command for command, _ in COMMANDS if command.startswith("mosquitto_pub ")]
    with AgentProcess(tmp_path, broker.port, {"eu": 1}, mappings).running() as agent:
        for command in published:
            subprocess.run(["bash", "-c", f"{command} -p {broker.port}"], check=True, timeout=30)
        wait_until(lambda: agent.status()["head"] >= len(published))
        rows = agent.exported()
    assert published
    assert [(row["kind"], row["latitude"], row["longitude"]) for row in rows] == [("position", 53.55, 9.99)] * 2
