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

from gateway.cli import app
from waybill.identity.pki_folder import RenewalList
from waybill.settings import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(FOLDER.glob("fleet-*.service"))
DAEMONS = [FOLDER / f"fleet-{name}.service" for name in ("access", "alerts", "gateway@")]
BROKER = FOLDER / "fleet-broker@.service"
PROGRAM = "/opt/waybill/bin/"
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("secured-region.md", "alerts.md"))


def lines(unit: Path, name: str) -> list[str]:
    found = (line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines())
    return [value for key, _, value in found if key == name]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for name in ("fleet-gateway", "python", "waybill", "mosquitto", "hand-out"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for unit in [*UNITS, *FOLDER.glob("fleet-*.timer")]:
        text = re.sub(r"/opt/waybill/bin|/usr/sbin|/etc/waybill(?=/hand-out)", str(tmp_path), unit.read_text())
        (tmp_path / unit.name).write_text(text)
    # Of a template an instance is judged.
    instances = [tmp_path / unit.name.replace("@.", "@eu-1.") for unit in UNITS]
    judged = subprocess.run(["systemd-analyze", "verify", *instances], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


def test_a_broker_resumes_no_tls_session_and_has_room_for_a_region() -> None:
    (environment,) = lines(BROKER, "Environment")
    file = environment.removeprefix("OPENSSL_CONF=")
    assert f"/usr/bin/test -r {file}" in lines(BROKER, "ExecStartPre"), "OpenSSL says nothing of a file that is missing"
    assert f"cp deploy/systemd/mosquitto-openssl.cnf {file}" in PAGE
    (files,) = lines(BROKER, "LimitNOFILE")
    assert int(files) >= 65_536


@pytest.mark.parametrize("unit", DAEMONS, ids=lambda unit: unit.stem)
def test_each_unit_calls_a_command_with_options_that_it_has(unit: Path) -> None:
    (command,) = lines(unit, "ExecStart")
    program, *words = shlex.split(command)
    assert program == f"{PROGRAM}fleet-gateway"
    found: Any = main.get_command(app)
    while not words[0].startswith("-"):
        found = found.commands[words.pop(0)]
    own = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= own
    assert words[-1].replace("%i", "eu-1") in PAGE


@pytest.mark.parametrize("unit", DAEMONS, ids=lambda unit: unit.stem)
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


def test_only_who_must_has_a_capability_and_the_broker_cannot_read_the_authority() -> None:
    has = {unit.stem: lines(unit, "CapabilityBoundingSet") for unit in UNITS}
    assert {name: found for name, found in has.items() if found != [""]} == {
        "fleet-access": ["CAP_KILL"],
        "fleet-renew": ["CAP_DAC_OVERRIDE"],
    }
    access = FOLDER / "fleet-access.service"
    assert (lines(access, "User"), lines(access, "Group")) == (["fleet-access"], ["mosquitto"])
    # The group reads its folder and writes nothing there; the socket's folder is the group's own.
    assert (lines(access, "StateDirectoryMode"), lines(access, "RuntimeDirectoryMode")) == (["0750"], ["0770"])
    assert (lines(BROKER, "User"), lines(BROKER, "UMask")) == (["mosquitto"], ["0007"])


def test_a_renewal_reaches_every_certificate_of_the_page_and_the_brokers_read_it() -> None:
    unit = FOLDER / "fleet-renew.service"
    # Not ExecStartPost: one folder that could not be renewed would keep the brokers from reading the others.
    (command,), (after,) = lines(unit, "ExecStart"), lines(unit, "ExecStopPost")
    assert command == f"{PROGRAM}waybill pki renew --folder /var/lib/fleet-access/pki --list /etc/waybill/renew.toml"
    assert {"fleet-broker@devices.service", "fleet-broker@enrolment.service"} <= set(after.split())
    files = re.findall(r'^(?:certificate|key) = "(.+)"$', PAGE, re.MULTILINE)
    assert [file for file in files if not file.startswith("/etc/waybill/") or "/tls/" not in file] == [
        "/etc/waybill/access@eu.key"
    ]
    # Every folder of the page's settings is in the list of its timer.
    (listing,) = re.findall(r"`/etc/waybill/renew\.toml`[^\n]*:\n\n```toml\n(.*?)```", PAGE, re.DOTALL)
    listed = {str(folder) for folder in parse(RenewalList, listing, "secured-region.md").folders}
    assert {str(Path(file).parent) for file in files if "/tls/" in file} <= listed
