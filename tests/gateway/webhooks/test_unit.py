"""The unit that delivers alerts under systemd."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/systemd/waybill-notifier.service"
TEXT = UNIT.read_text(encoding="utf-8")
PROGRAM = "/opt/waybill/bin/waybill"


def value(name: str) -> str:
    (found,) = [line.partition("=")[2] for line in TEXT.splitlines() if line.startswith(f"{name}=")]
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    program, unit = tmp_path / "waybill", tmp_path / UNIT.name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit.write_text(TEXT.replace(PROGRAM, str(program)))
    judged = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")


def test_it_is_started_again_whatever_ended_it_but_wrong_settings() -> None:
    # systemd starts a unit again whose first command fails, whatever its exit status
    assert "ExecStartPre" not in TEXT
    assert (value("Restart"), value("StartLimitIntervalSec")) == ("always", "0")
    assert value("RestartPreventExitStatus").split() == ["2", "78"]


def test_what_it_may_do_is_what_the_other_units_of_the_centre_may() -> None:
    other = (UNIT.parent / "waybill-verdicts.service").read_text(encoding="utf-8")
    guards = other.split("NoNewPrivileges")[1].split("[Install]")[0]
    assert guards in TEXT
    assert value("UMask") == "0077", "what was held back is of customers"


def test_the_page_names_it_and_how_much_memory_it_allows() -> None:
    page = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    assert UNIT.name in page
    assert f"`MemoryMax={value('MemoryMax')}`" in page
