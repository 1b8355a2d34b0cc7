"""The demo in small, as a user runs it: vehicles to a checked bill, with a cut uplink and a killed agent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(600)]


def test_a_small_fleet_ends_in_bills_that_equal_the_truth_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "waybill", "demo", "--vehicles", "4", "--drive-s", "15", "--json"]
    done = subprocess.run([*command, "--folder", str(folder)], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["equal"]
    records = found["records"]
    assert records["made"] == records["stored"] == records["forwarded"] == records["ingested"] > 1000
    assert records["lost"] == records["unexpected"] == 0
    assert set(found["devices"]) == {"eu-0001", "eu-0002", "us-0001", "us-0002"}
    assert {bill["currency"] for bill in found["bills"].values()} == {"EUR", "JPY"}
    assert all(bill["total_minor"] == bill["truth_minor"] > 0 for bill in found["bills"].values())
    accounts = json.loads((folder / "scenario" / "accounts.json").read_text())
    owned = {(one["tenant"], one["device"]) for account in accounts for one in account["vehicles"]}
    assert owned == {(tenant, device) for tenant in ("fleet", "kaze") for device in ("eu-0001", "us-0001")}
    left = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or [])]
    assert left == []


def test_a_replay_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waybill", "demo", "--replay", "nowhere.csv", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "nowhere.csv" in done.stderr
