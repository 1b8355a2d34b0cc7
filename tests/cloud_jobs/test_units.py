"""The units that run the jobs of the centre under systemd."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cloud_jobs.__main__ import app

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
# of the gateway, with tests of its own
NOTIFIER = FOLDER / "waybill-notifier.service"
# no job either: tests/deploy/canary has its test
CANARY = FOLDER / "waybill-canary.service"
UNITS = sorted(unit for unit in FOLDER.glob("waybill-*.service") if unit not in {NOTIFIER, CANARY})
PAGE = (FOLDER.parents[1] / "docs/centre.md").read_text(encoding="utf-8")
PROGRAM = "/opt/waybill/bin/cloud-jobs"


def commands(unit: Path) -> list[list[str]]:
    lines = [line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines()]
    return [shlex.split(value) for name, _, value in lines if name == "ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    program = tmp_path / "cloud-jobs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    written = []
    for unit in [*UNITS, FOLDER / "waybill-status.timer"]:
        written.append(tmp_path / unit.name)
        written[-1].write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, str(program)))
    judged = subprocess.run(["systemd-analyze", "verify", *written], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_unit_calls_a_command_with_options_that_it_has(unit: Path) -> None:
    found = typer.main.get_command(app)
    for program, name, *arguments in commands(unit):
        assert program == PROGRAM
        own = {option for parameter in found.commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]
        assert {one for one in arguments if one.startswith("-")} <= own
        assert "/etc/waybill/cloud.toml" in arguments
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_what_always_runs_is_started_again_whatever_ended_it_but_wrong_settings() -> None:
    always = [unit.read_text(encoding="utf-8") for unit in UNITS if unit.stem != "waybill-status"]
    assert len(always) == 7
    for text in always:
        assert all(word in text for word in ("Restart=always", "StartLimitIntervalSec=0", "PreventExitStatus=2 78"))
        # systemd starts a unit again whose first command fails, whatever its exit status
        assert "ExecStartPre" not in text


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_page_says_how_much_memory_each_unit_allows(unit: Path) -> None:
    bounds = re.search(r"a `MemoryMax`.*?\. A job", PAGE, re.DOTALL)
    allowed = re.search(r"^MemoryMax=(\S+)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert bounds is not None
    assert allowed is not None
    name = unit.stem.removeprefix("waybill-")
    (phrase,) = [part for part in re.split(r",\s+(?=\d)|: ", bounds[0]) if f"`{name}`" in part]
    assert phrase.startswith(f"{allowed[1]} for ")
