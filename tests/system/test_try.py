"""`waybill try` as a person runs it: two commands from nothing to a draft line, and no process is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.trial.ladder import Rung
from tests.edge_agent.mapping.connect_page import TRIES
from tests.system.test_demo import processes_of
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(600)]


class Try:
    """A running `waybill try --json`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log, self.began_s = folder.with_suffix(".log"), time.monotonic()
        command = [sys.executable, "-m", "waybill", "try", "--json", "--folder", str(folder), *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder.parent, stdout=log, stderr=log, start_new_session=True)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def line(self) -> str:
        """The command to copy, or ""."""
        return next((str(one["command"]) for one in self.events() if one["event"] == "line"), "")

    def reached(self) -> dict[str, dict[str, Any]]:
        return {one["rung"]: one for one in self.events() if one["event"] == "rung" and one["reached"]}

    def stuck(self) -> list[str]:
        return [one["why"] for one in self.events() if one["event"] == "rung" and one["is_stuck"]]


@contextmanager
def trial(folder: Path, *options: str) -> Iterator[Try]:
    one = Try(folder, *options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
            one.process.wait(120 * PATIENCE)


def test_two_commands_lead_to_a_draft_line_of_an_own_device(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    with trial(folder, "--until-draft", "--keep", "--device", "Own-1") as running:
        line = wait_until(running.line, 120, said=running.log.read_text)
        # by mistake another topic, then bad JSON, then as it is
        subprocess.run(["bash", "-c", line.replace("vehicle/position", "vehicel/position")], check=True, timeout=30)
        wait_until(lambda: any("did you mean vehicle/position?" in one for one in running.stuck()), 30)
        subprocess.run(["bash", "-c", line.replace('-m "[', '-m "{[')], check=True, timeout=30)
        wait_until(lambda: any("bad JSON" in one for one in running.stuck()), 30)
        subprocess.run(["bash", "-c", line], check=True, timeout=30)
        assert running.process.wait(480 * PATIENCE) == 0, running.log.read_text()
        seconds = time.monotonic() - running.began_s
    found = running.reached()
    assert {*found} == {*Rung}, running.log.read_text()
    assert found[Rung.STORED]["text"].startswith("as seq ")
    assert "entry zone own-1: 1 each at 2.50 EUR/each = 2.50 EUR" in found[Rung.DRAFT]["text"]
    assert "computed twice, equal" in found[Rung.DRAFT]["text"]
    at_s = max(one["since_start_s"] for one in found.values())
    sys.stdout.write(f"from the first command to the last rung: {at_s:.1f} s; until all was stopped: {seconds:.1f} s\n")
    assert processes_of(folder) == []
    kept = folder / "try" / "Own-1"
    assert {"agent.toml", "token", "reference"} <= {one.name for one in kept.iterdir()}


FIX = '<trkpt lat="53.55" lon="9.9{0}"><time>2026-01-05T08:00:{0}0Z</time></trkpt>'


@pytest.mark.nightly
@pytest.mark.parametrize("options", TRIES)
def test_each_way_of_the_page_to_try_a_device_is_heard(tmp_path: Path, options: str) -> None:
    (tmp_path / "ride.gpx").write_text(f"<gpx>{FIX.format(1)}{FIX.format(2)}</gpx>")
    with trial(tmp_path / "stack", "--yes", *options.split()) as running:
        if options == "--phone":
            wait_until(lambda: "Scan with OwnTracks" in running.log.read_text(), 120, said=running.log.read_text)
        else:
            if options.startswith("--preset"):
                line = wait_until(running.line, 120, said=running.log.read_text)
                subprocess.run(["bash", "-c", line], check=True, timeout=30)
            wait_until(lambda: Rung.STORED in running.reached(), 120, said=running.log.read_text)
    assert running.process.returncode == 0, running.log.read_text()
    assert processes_of(tmp_path / "stack") == []
