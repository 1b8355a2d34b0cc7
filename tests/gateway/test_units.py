"""The units that run a region under systemd: the gateway, and the access daemon beside the broker."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer import main
from typer.testing import CliRunner

from gateway.access.config import AccessSettings
from gateway.cli import app
from gateway.config import GatewaySettings
from settings import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(FOLDER.glob("fleet-*.service"))
BROKER = FOLDER / "mosquitto.service.d/waybill.conf"
PROGRAM = "/opt/waybill/bin/fleet-gateway"
PAGE = (ROOT / "docs/access.md").read_text(encoding="utf-8")


def lines(unit: Path, name: str) -> list[str]:
    found = (line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines())
    return [value for key, _, value in found if key == name]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    program = tmp_path / "fleet-gateway"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    written = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, written, strict=True):
        copy.write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, str(program)))
    # Debian's own unit stands for the broker's, with what is added to it.
    broker = tmp_path / "mosquitto.service"
    broker.write_text(BROKER.read_text(encoding="utf-8") + f"ExecStart={program}\n")
    judged = subprocess.run(
        ["systemd-analyze", "verify", *written, broker], capture_output=True, text=True, check=False
    )
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_unit_calls_a_command_with_options_that_it_has(unit: Path) -> None:
    (command,) = lines(unit, "ExecStart")
    program, *words = shlex.split(command)
    assert program == PROGRAM
    found: Any = main.get_command(app)
    while not words[0].startswith("-"):
        found = found.commands[words.pop(0)]
    own = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= own
    assert words[-1] in PAGE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_is_started_again_whatever_ended_it_but_wrong_settings(unit: Path, tmp_path: Path) -> None:
    assert lines(unit, "Restart") == ["always"]
    assert lines(unit, "StartLimitIntervalSec") == ["0"]
    # systemd starts a unit again whose first command fails, whatever its exit status
    assert lines(unit, "ExecStartPre") == []
    (command,) = lines(unit, "ExecStart")
    words = shlex.split(command)[1:-1]
    ended = CliRunner().invoke(app, [*words, str(tmp_path / "missing.toml")])
    (prevents,) = lines(unit, "RestartPreventExitStatus")
    assert str(ended.exit_code) in prevents.split()


def test_only_the_access_daemon_may_signal_another_user_and_the_broker_cannot_read_the_authority() -> None:
    access, gateway = (FOLDER / f"fleet-{name}.service" for name in ("access", "gateway"))
    assert (lines(access, "CapabilityBoundingSet"), lines(gateway, "CapabilityBoundingSet")) == (["CAP_KILL"], [""])
    assert (lines(access, "User"), lines(access, "Group")) == (["fleet-access"], ["mosquitto"])
    # The group reads its folder and writes nothing there; the socket's folder is the group's own.
    assert (lines(access, "StateDirectoryMode"), lines(access, "RuntimeDirectoryMode")) == (["0750"], ["0770"])
    assert lines(BROKER, "UMask") == ["0007"]


def test_the_settings_of_the_page_are_read_and_stay_in_the_folders_of_the_unit(tmp_path: Path) -> None:
    unit = FOLDER / "fleet-access.service"
    folders = [f"/var/lib/{lines(unit, 'StateDirectory')[0]}/", f"/run/{lines(unit, 'RuntimeDirectory')[0]}/"]
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[broker]" in block]
    file = tmp_path / "access.toml"
    file.write_text(text)
    settings = load(AccessSettings, file)
    broker = settings.broker
    assert broker.pid_file == Path("/run/mosquitto/mosquitto.pid")
    made = [broker.rules_file, broker.revocation_file, broker.password_file, broker.guard_secret_file]
    for place in [*made, broker.guard_socket, settings.authority.folder]:
        assert str(place).startswith(tuple(folders))
    (mosquitto,) = re.findall(r"```\n(listener 0 .*?)```", PAGE, re.DOTALL)
    for place in [broker.rules_file, broker.revocation_file, broker.password_file, broker.guard_socket]:
        assert f" {place}\n" in mosquitto


def test_a_gateway_has_the_time_to_end_that_its_settings_give_it() -> None:
    (stop,) = lines(FOLDER / "fleet-gateway.service", "TimeoutStopSec")
    assert int(stop) > GatewaySettings.model_fields["stop_timeout_s"].default + 1


def test_the_page_names_each_unit_and_where_the_broker_s_is_added_to() -> None:
    assert [
        name for name in (*(unit.name for unit in UNITS), "mosquitto.service.d/waybill.conf") if name not in PAGE
    ] == []
