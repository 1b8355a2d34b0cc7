"""The unit that runs a canary under systemd."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.canary.cli import app
from deploy.canary.config import CanarySettings

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/systemd/waybill-canary.service"
TEXT = UNIT.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    program, unit = tmp_path / "waybill", tmp_path / UNIT.name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit.write_text(TEXT.replace("/opt/waybill/bin/waybill", str(program)))
    judged = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


def test_it_calls_a_command_that_there_is_in_the_folder_of_the_settings() -> None:
    (line,) = [one for one in TEXT.splitlines() if one.startswith("ExecStart=")]
    program, name, command, *arguments = shlex.split(line.removeprefix("ExecStart="))
    assert (program, name, arguments) == (
        "/opt/waybill/bin/waybill",
        "canary",
        ["--config", "/etc/waybill/canary.toml"],
    )
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert f"WorkingDirectory={CanarySettings.model_fields['folder'].default}" in TEXT
