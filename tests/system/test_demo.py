"""The demo in small, as a user runs it: vehicles to checked invoices, with cut links and a killed agent."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.whole_stack, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
EXIT_INTERRUPTED = 130
VARYING = re.compile(
    # how long it took, when, what the silent vehicle had sent by then, and what of the sum that leaves for the note
    r"[\d.]+ s\b|[\d.]+ GiB|\d{4}-\d\d-\d\d(T[\d:.]+Z)?|\d+ records of the period|-?[\d.]+ EUR|\d+ records that nobody"
)


def processes_of(folder: Path) -> list[list[str]]:
    """Command lines of the processes that name the folder."""
    commands = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(folder) in " ".join(command)]


def test_a_small_fleet_drives_with_faults_and_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    """The demo up to its last fault on the road; the nightly test below goes on to the invoices."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "waybill", "demo", "--vehicles", "4", "--drive-s", "15", "--json"]
    log = tmp_path / "demo.log"
    with log.open("w") as output:
        demo = subprocess.Popen([*command, "--folder", str(folder)], stdout=output, stderr=output, text=True)
    try:
        wait_until(lambda: "lost its link" in log.read_text() or demo.poll() is not None, 240, said=log.read_text)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(90 * PATIENCE) == EXIT_INTERRUPTED, log.read_text()
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
    printed = log.read_text()
    assert "4 vehicles exchanged their tokens for certificates" in printed
    assert "killed the agent of us-0002" in printed
    assert "cut the uplink of region eu" in printed
    assert processes_of(folder) == []


@pytest.mark.nightly  # minutes: what is ingested and billed in make test, test_month.py holds against the truth
def test_a_small_fleet_ends_in_invoices_that_equal_the_truth_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "waybill", "demo", "--vehicles", "4", "--drive-s", "15", "--json"]
    done = subprocess.run(
        [*command, "--folder", str(folder)], capture_output=True, text=True, timeout=540 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["equal"]
    records = found["records"]
    assert records["made"] == records["stored"] == records["forwarded"] == records["ingested"] > 1000
    assert records["lost"] == records["unexpected"] == 0
    assert set(found["devices"]) == {"eu-0001", "eu-0002", "us-0001", "us-0002"}
    # a silent vehicle, of which an operator decided, and which came back after the invoices were issued
    assert "fleet/us-0001: " in found["not_final_at_first"]
    assert {one["state"] for one in found["devices"].values()} == {"complete"}
    invoices = {one["payer"]: one for one in found["documents"] if one["type"] == "invoice"}
    notes = [one for one in found["documents"] if one["type"] != "invoice"]
    assert {payer: one["number"] for payer, one in invoices.items()} == {"acme": "WE-00000001", "kaze": "WJ-00000001"}
    assert [(one["payer"], one["number"]) for one in notes] == [("acme", "WE-00000002")]
    assert all(one["gross_minor"] == one["truth_minor"] and not one["differing_charges"] for one in found["documents"])
    assert {one["currency"] for one in found["posted"].values()} == {"EUR", "JPY"}
    assert all(one["gross_minor"] == one["truth_minor"] > 0 for one in found["posted"].values())
    assert (found["reconciled"], found["explained"]) == ("equal", True)
    # the canary drove beside them, and none of what was counted above is its own
    hops = {one["hop"]: one for one in found["canary"]["status"]["hops"]}
    assert {name for name, one in hops.items() if one["colour"] != "green"} == {"event"}
    assert found["canary"]["green"]
    assert hops["rated"]["consumed"] > 0
    accounts = tomllib.loads((folder / "scenario" / "contracts.toml").read_text())["account"]
    owned = {(one["tenant"], one["device"]) for account in accounts for one in account["devices"]}
    assert owned == {(tenant, device) for tenant in ("fleet", "kaze") for device in ("eu-0001", "us-0001")}
    assert processes_of(folder) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(["--vehicles", "4", "--lake", "s3"], id="s3"),
        pytest.param(["--vehicles", "4", "--spark-cluster"], id="spark-cluster"),
    ],
)
def test_each_other_form_of_the_demo_ends_as_well(tmp_path: Path, form: list[str]) -> None:
    command = [sys.executable, "-m", "waybill", "demo", *form, "--drive-s", "15", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.nightly
def test_the_pages_show_what_the_demo_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waybill", "demo", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not_printed("README.md", done.stdout) == not_printed("docs/local-stack.md", done.stdout) == []


def not_printed(page: str, output: str) -> list[str]:
    """The lines of what a page shows of the demo that are not in its output, but for what differs from run to run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = [
        one for one in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "lost its link:" in one
    ]
    printed = fixed(output)
    lines = [line for line in fixed(block) if line != "…"]
    return [line for line in lines if not any(re.fullmatch(pattern_of(line), one) for one in printed)]


def fixed(text: str) -> list[str]:
    """Lines without what differs from run to run, whatever the width of the terminal."""
    return [" ".join(VARYING.sub("#", line).split()) for line in text.splitlines()]


def pattern_of(line: str) -> str:
    # a page may leave out at what second something happened
    return "(# )?" + ".*".join(re.escape(part) for part in line.split("…"))
