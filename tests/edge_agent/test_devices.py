"""Several devices behind one agent: each is a stream of its own, and one that fails leaves the others alone."""

import json
import os
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.local import free_port
from edge_agent.cli import app
from edge_agent.config import AgentSettings
from edge_agent.daemon import Daemon
from edge_agent.devices import MAX_DEVICES, expand, load_devices
from edge_agent.mapping.parser import compile_mappings
from tests.edge_agent.process import AgentProcess
from tests.waiting import wait_until
from waybill.daemon.status_reader import fetch_status
from waybill.settings import SettingsError, parse, parse_tables

PAGE = Path(__file__).parents[2] / "docs" / "mappings.md"
UPLINK = '[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\n'
TWO = '[[devices]]\nid = "one"\n[[devices]]\nid = "two"\n'
CARS = '[[mappings]]\nname = "cars"\npreset = "teslamate"\n'
PHONES = '[[mappings]]\nname = "phones"\npreset = "owntracks"\n'
MANY_TOPICS = f"[intake]\ntopics = {[f'x/{{device}}/{number}' for number in range(64)]}\n"
FIX = b'{"_type":"location","lat":53.55,"lon":9.99,"tst":1795359064}'


def expanded(text: str) -> list[AgentSettings]:
    return [one.settings for one in expand(parse_tables(text, "agent.toml"), "agent.toml")]


def test_a_device_has_the_settings_of_an_agent_of_its_own() -> None:
    rest = (
        '[buffer]\npath = "buffer"\n'
        '[enrolment]\nhost = "127.0.0.1"\nca = "ca.pem"\ntoken_file = "tokens/{device}"\n'
        f'{UPLINK}[uplinks.tls]\nca = "ca.pem"\n{PHONES}'
    )
    ada = 'id = "ada"\ntenant = "acme"\nlevels = { user = "ada", device = "phone" }\n'
    first, second = expanded(f'[[devices]]\n{ada}[[devices]]\nid = "ben"\n{rest}')
    of_ada = rest.replace('"buffer"', '"buffer/ada"').replace("{device}", "ada")
    intake = '[intake]\nclient_id = "edge-agent-ada"\ntopics = ["vehicle/ada/#"]\n'
    assert first == parse(AgentSettings, f"[device]\n{ada}{intake}{of_ada}", "ada.toml")
    assert (second.device.tenant, second.device.levels) == ("default", {"device": "ben"})
    assert second.mappings[0] is first.mappings[0]


def test_a_file_of_one_device_is_read_as_it_is() -> None:
    text = f'[device]\nid = "one"\n[buffer]\npath = "{{device}}"\n{UPLINK}'
    assert expanded(text) == [parse(AgentSettings, text, "agent.toml")]


def test_the_example_of_the_page_has_two_streams() -> None:
    (text,) = [text for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "[[devices]]" in text]
    assert [one.device.id for one in expanded(text)] == ["van-1", "ada"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO + '[device]\nid = "three"\n', "device: leave it out"),
        (TWO + TWO, "devices: two devices have the id 'one'"),
        ('[devices]\nid = "one"\n', "write [[devices]]"),
        ("devices = []\n", "devices: "),
        ("".join(f'[[devices]]\nid = "d-{n}"\n' for n in range(MAX_DEVICES + 1)), f"at most {MAX_DEVICES}"),
        ('[[devices]]\nid = "a b"\n', "devices.0.id: "),
        ('[[devices]]\nid = "one"\nlevels = { car = "1/2" }\n', "devices.0.levels.car: "),
        ('[[devices]]\nid = "one"\nlevels = { caar = "1" }\n' + CARS, "has a level 'caar'; did you mean 'car'?"),
        (TWO + CARS, "a message can be of both one and two: teslamate/cars/{car}/{name}"),
        (TWO + '[intake]\ntopics = ["vehicle/#"]\n', "a message can be of both one and two: vehicle/#"),
        (TWO + '[intake]\ntopics = ["a/#/b"]\n', "intake.topics: "),
        (TWO + '[intake]\nclient_id = "agent"\n', "intake.client_id: agent is of one device: name that of each with {"),
        (TWO + '[[mappings]]\nname = "tb"\npreset = "thingsboard-gateway"\n', "v1/gateway/telemetry"),
        ("".join(f'[[devices]]\nid = "d-{n}"\n' for n in range(20)) + MANY_TOPICS, "they have 1280 topics together"),
    ],
)
def test_devices_that_cannot_be_streams_of_their_own_are_refused(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        expanded(text + UPLINK)
    assert said in str(refused.value)


def test_devices_do_not_share_what_says_who_they_are() -> None:
    tls = '[uplinks.tls]\nca = "ca.pem"\n'
    enrolment = '[enrolment]\nhost = "127.0.0.1"\nca = "ca.pem"\ntoken_file = "token"\n'
    for text in (f"{enrolment}{UPLINK}{tls}", f'{UPLINK}{tls}certificate = "a.pem"\nkey = "a.key"\n'):
        with pytest.raises(SettingsError, match=r"is of one device: name that of each with \{device\}"):
            expanded(TWO + text)


def test_a_message_is_of_the_device_whose_level_it_has() -> None:
    settings = expanded(TWO + UPLINK + PHONES.replace("owntracks", 'owntracks"\ntopic = "owntracks/{user}/{device}'))
    parsers = [compile_mappings(one.mappings, one.device.levels) for one in settings]
    assert [one.filters for one in parsers] == [("owntracks/+/one",), ("owntracks/+/two",)]
    read = [[one.malformed for one in parser.parse("owntracks/x/two", FIX)] for parser in parsers]
    assert read == [["unknown-topic"], [""]]


def run(config: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words, "--config", str(config)])
    return done.exit_code, done.output


def test_commands_about_one_device_ask_which_one(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'{TWO}[buffer]\npath = "{tmp_path}"\n[status]\nport = 0\n{UPLINK}{PHONES}'.replace(
            '"phones"', '"phones"\ntopic = "o/{device}"'
        )
    )
    for command in ("export", "enrol"):
        code, said = run(config, command)
        assert (code, "has 2 devices: name one with --device: one, two" in said) == (os.EX_CONFIG, True)
    code, said = run(config, "export", "--device", "tow")
    assert (code, "did you mean 'two'?" in said) == (os.EX_CONFIG, True)
    code, said = run(config, "check-config")
    assert (code, said.count("valid. Device")) == (0, 2)
    code, said = run(config, "status", "--json")
    assert (code, [*json.loads(said)["devices"]]) == (1, ["one", "two"])
    shown = [run(config, "map", "try", "-t", f"o/{level}", "-p", FIX.decode())[1] for level in ("two", "three")]
    assert "o/two  (device two)\n  position" in shown[0]
    assert shown[1].startswith("o/three  (device unlisted")


def health(port: int) -> dict[str, Any]:
    return fetch_status("127.0.0.1", port, "health", timeout_s=10, also_unhealthy=True)


def test_a_device_with_a_broken_buffer_does_not_stop_the_others_and_runs_once_it_is_repaired(tmp_path: Path) -> None:
    port = free_port()
    extra = f"[status]\nport = {port}"
    agent = AgentProcess(tmp_path, free_port(), {"eu": free_port()}, extra, devices=["one", "two"])
    (tmp_path / "buffer").mkdir()
    (tmp_path / "buffer" / "two").touch()
    agent.start()
    try:
        wait_until(lambda: "listening" in agent.log.read_text() or "not reached" in agent.log.read_text(), 30)
        worst = health(port)
        assert (worst["healthy"], worst["device"], worst["devices"]["one"]["threads"]) == (False, "two", True)
        assert "File exists" in worst["problem"]
        devices = fetch_status("127.0.0.1", port, "status", timeout_s=10)["devices"]
        assert [one["running"] for one in devices.values()] == [True, False]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert 'waybill_agent_local_broker_up{device="two"} 0.0' in metrics
        assert re.findall(r"^waybill_agent_head_seq.*", metrics, re.MULTILINE) == [
            'waybill_agent_head_seq{device="one"} 0.0'
        ]
        assert len(re.findall(r"^waybill_agent_resident_bytes [0-9]", metrics, re.MULTILINE)) == 1
        assert re.search(r'"event": "local broker not reached", "device": "one"', agent.log.read_text())
        code, said = run(agent.config, "status")
        assert (code, "acme/one: running" in said) == (1, True)
        (tmp_path / "buffer" / "two").unlink()
        wait_until(lambda: health(port)["devices"]["two"].get("threads"), 30)
        devices = fetch_status("127.0.0.1", port, "status", timeout_s=10)["devices"]
        assert [one["pushed_settings"] for one in devices.values()] == ["none", "none"]
        agent.signal(signal.SIGHUP)
        wait_until(lambda: agent.log.read_text().count('"started"') == 4, 30)
    finally:
        assert agent.stop(10) == 0


def test_a_device_whose_thread_ended_starts_again_after_a_wait(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'{TWO}[buffer]\npath = "{tmp_path}"\n[status]\nport = 0\n{UPLINK}')
    daemon = Daemon(config, load_devices(config))
    one, two = daemon._runners
    for runner in (one, two):
        runner.agent.start()
    one.agent.ask_to_stop()
    wait_until(lambda: not one.is_running)
    daemon._tick(time.monotonic())
    assert (one.is_open, str(one.error), two.is_running) == (False, "a thread ended", True)
    daemon._tick(one.retry_at_s)
    assert (one.is_running, two.is_running) == (True, True)
    for runner in (one, two):
        runner.close(20)
