"""What a clerk's command imports before it answers: nothing that it does not use and that takes long."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
