"""The systemd units: systemd finds nothing wrong with them, and each calls a command that the project has."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.canary.config import CanarySettings
from tests.structure.test_documented import APPS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
UNITS = {unit.stem: unit.read_text(encoding="utf-8") for unit in sorted(FOLDER.glob("*.service"))}
BROKER, ACCESS = UNITS["fleet-broker@"], UNITS["fleet-access"]
OURS = sorted(name for name in UNITS if name != "fleet-broker@")
# The agent ends its process at once; tests/edge_agent/test_commands.py starts it without its file.
DAEMONS = [name for name in OURS if name not in {"edge-agent", "fleet-renew", "fleet-token@", "waybill-status"}]
JOBS = sorted(name for name in OURS if "/cloud-jobs " in UNITS[name])
PROGRAMS = ("edge-agent", "fleet-gateway", "cloud-jobs", "python", "waybill", "mosquitto", "hand-out")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
REGION = PAGES["secured-region.md"] + PAGES["alerts.md"]
MAX_EXPOSURE = 2.0


def lines(unit: str, name: str) -> list[str]:
    return [value for key, _, value in (line.partition("=") for line in unit.splitlines()) if key == name]


def called(unit: str) -> tuple[Any, list[str], list[str]]:
    """The app that a unit starts, the words up to its command, and its arguments."""
    (line,) = lines(unit, "ExecStart")
    program, *words = shlex.split(line)
    assert str(Path(program).parent) in {"/opt/waybill/bin", "/usr/bin"}
    name = Path(program).name
    app = APPS[f"waybill {words[0]}" if name == "waybill" else name]
    found: Any = typer.main.get_command(app)
    path: list[str] = []
    while hasattr(found, "commands"):
        path.append(words.pop(0))
        found = found.commands[path[-1]]
    own = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= own
    return app, path, words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for name in PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    programs = r"/opt/waybill/bin|/usr/sbin|/usr/bin(?=/edge-agent)|/etc/waybill(?=/hand-out)"
    for unit in [*FOLDER.glob("*.service"), *FOLDER.glob("*.timer")]:
        (tmp_path / unit.name).write_text(re.sub(programs, str(tmp_path), unit.read_text(encoding="utf-8")))
    # Of a template an instance is judged.
    instances = [tmp_path / unit.name.replace("@.", "@eu-1.") for unit in FOLDER.glob("*.service")]
    judged = subprocess.run(["systemd-analyze", "verify", *instances], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_the_exposure_of_a_service_is_low(name: str) -> None:
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: apt-get install systemd (`make setup` does it)"
    command = [program, "security", "--offline=true", "--no-pager", str(FOLDER / f"{name}.service")]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found is not None, said
    assert float(found[1]) <= MAX_EXPOSURE, "\n".join(line for line in said.splitlines() if "✗" in line)


@pytest.mark.parametrize("name", UNITS)
def test_a_service_has_a_bound_of_memory_and_tasks(name: str) -> None:
    assert re.search(r"^MemoryMax=\d+[MG]$", UNITS[name], re.MULTILINE)
    assert re.search(r"^TasksMax=\d+$", UNITS[name], re.MULTILINE)


@pytest.mark.parametrize("name", OURS)
def test_each_unit_calls_a_command_with_options_that_it_has(name: str) -> None:
    app, path, words = called(UNITS[name])
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0
    if name in JOBS:
        assert "/etc/waybill/cloud.toml" in words
    elif name.startswith("fleet-") and name in DAEMONS:
        assert words[-1].replace("%i", "eu-1") in REGION


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_is_started_again_whatever_ended_it_but_wrong_settings(name: str, tmp_path: Path) -> None:
    unit = UNITS[name]
    assert (lines(unit, "Restart"), lines(unit, "StartLimitIntervalSec")) == (["always"], ["0"])
    # systemd starts a unit again whose first command fails, whatever its exit status
    assert lines(unit, "ExecStartPre") == []
    (prevents,) = lines(unit, "RestartPreventExitStatus")
    app, path, _ = called(unit)
    ended = CliRunner().invoke(app, [*path, "--config", str(tmp_path / "missing.toml")])
    assert str(ended.exit_code) in prevents.split()


def test_a_broker_resumes_no_tls_session_and_has_room_for_a_region() -> None:
    (environment,) = lines(BROKER, "Environment")
    file = environment.removeprefix("OPENSSL_CONF=")
    assert f"/usr/bin/test -r {file}" in lines(BROKER, "ExecStartPre"), "OpenSSL says nothing of a file that is missing"
    assert f"cp deploy/systemd/mosquitto-openssl.cnf {file}" in REGION
    (files,) = lines(BROKER, "LimitNOFILE")
    assert int(files) >= 65_536


def test_only_who_must_has_a_capability_and_the_broker_cannot_read_the_authority() -> None:
    has = {name: lines(unit, "CapabilityBoundingSet") for name, unit in UNITS.items() if name.startswith("fleet-")}
    assert {name: found for name, found in has.items() if found != [""]} == {
        "fleet-access": ["CAP_KILL"],
        "fleet-renew": ["CAP_DAC_OVERRIDE"],
    }
    assert (lines(ACCESS, "User"), lines(ACCESS, "Group")) == (["fleet-access"], ["mosquitto"])
    # The group reads its folder and writes nothing there; the socket's folder is the group's own.
    assert (lines(ACCESS, "StateDirectoryMode"), lines(ACCESS, "RuntimeDirectoryMode")) == (["0750"], ["0770"])
    assert (lines(BROKER, "User"), lines(BROKER, "UMask")) == (["mosquitto"], ["0007"])


def test_a_renewal_reaches_every_certificate_of_the_page_and_the_brokers_read_it() -> None:
    # Not ExecStartPost: one folder that could not be renewed would keep the brokers from reading the others.
    (command,), (after,) = (lines(UNITS["fleet-renew"], name) for name in ("ExecStart", "ExecStopPost"))
    assert command.endswith("waybill pki renew --folder /var/lib/fleet-access/pki /etc/waybill/tls")
    assert {"fleet-broker@devices.service", "fleet-broker@enrolment.service"} <= set(after.split())
    files = re.findall(r'^(?:certificate|key) = "(.+)"$', REGION, re.MULTILINE)
    assert [file for file in files if not file.startswith("/etc/waybill/") or "/tls/" not in file] == [
        "/etc/waybill/access@eu.key"
    ]
    assert {str(Path(file).parent.parent) for file in files if "/tls/" in file} == {"/etc/waybill/tls"}


@pytest.mark.parametrize("name", JOBS)
def test_the_page_says_how_much_memory_each_job_may_use(name: str) -> None:
    bounds = re.search(r"a `MemoryMax`.*?\. A job", PAGES["centre.md"], re.DOTALL)
    assert bounds is not None
    parts = re.split(r",\s+(?=\d)|: ", bounds[0])
    (phrase,) = [part for part in parts if f"`{name.removeprefix('waybill-')}`" in part]
    assert phrase.startswith(f"{lines(UNITS[name], 'MemoryMax')[0]} for ")


def test_the_notifier_and_the_canary_run_in_their_folders_and_no_further() -> None:
    notifier, canary = UNITS["waybill-notifier"], UNITS["waybill-canary"]
    assert UNITS["waybill-verdicts"].split("NoNewPrivileges")[1].split("[Install]")[0] in notifier
    assert lines(notifier, "UMask") == ["0077"], "what was held back is of customers"
    assert f"`MemoryMax={lines(notifier, 'MemoryMax')[0]}`" in PAGES["alerts.md"]
    assert "waybill-notifier.service" in PAGES["alerts.md"]
    assert lines(canary, "WorkingDirectory") == [str(CanarySettings.model_fields["folder"].default)]
