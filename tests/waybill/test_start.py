"""What a clerk's command imports before it answers: nothing that it does not use and that takes long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud_jobs.billing.register.metered_lake import JANUARY, metered_lake

SLOW = {"pandas", "pyspark", "reportlab", "jinja2"}
SPATIAL = {"shapely", "pyproj"}
LIST = """
import sys
from waybill.commands import waybill
try:
    waybill()
except SystemExit:
    pass
sys.stderr.write(" ".join(sys.modules))
"""


@pytest.mark.parametrize("command", ["bill explain", "bill list", "bill show", "reconcile", "decisions list"])
def test_a_clerks_command_starts_without_what_takes_long_to_import(command: str) -> None:
    # an error of the lake: all that reads one is imported by then
    number = ["WB-EU-00000001"] if command in {"bill explain", "bill show"} else []
    arguments = [*command.split(), *number, "--lake", "/nowhere"]
    arguments += ["1"] if "explain" in command else ["--period", "2026-03"] if command == "reconcile" else []
    done = subprocess.run([sys.executable, "-c", LIST, *arguments], capture_output=True, check=True, text=True)
    assert "no lake /nowhere" in done.stderr
    # who explains measures again
    slow = SLOW if command == "bill explain" else SLOW | SPATIAL
    assert slow & {*done.stderr.split()} == set()


def test_what_is_counted_is_counted_without_geometry(tmp_path: Path) -> None:
    billed = metered_lake(tmp_path / "lake")
    billed.close("one", days=JANUARY)
    billed.issue("clerk", JANUARY)
    arguments = ["reconcile", "--lake", "lake", "--period", "2026-01"]
    listing = [sys.executable, "-c", LIST, *arguments]
    done = subprocess.run(listing, capture_output=True, check=True, text=True, cwd=tmp_path)
    assert "equal" in done.stdout
    assert (SLOW | SPATIAL) & {*done.stderr.split()} == set()
