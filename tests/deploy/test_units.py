"""The systemd units: what each service may do to its machine is bounded, as systemd itself judges it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
MAX_EXPOSURE = 2.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_exposure_of_a_service_is_low(unit: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: apt-get install systemd (`make setup` does it)"
    command = [program, "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found is not None, said
    assert float(found[1]) <= MAX_EXPOSURE, "\n".join(line for line in said.splitlines() if "✗" in line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_has_a_bound_of_memory_and_tasks(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert re.search(r"^MemoryMax=\d+[MG]$", text, re.MULTILINE)
    assert re.search(r"^TasksMax=\d+$", text, re.MULTILINE)
