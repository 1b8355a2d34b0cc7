"""Faults of the demo's drive happen at their place however late it is, a cut lasts, and a drive without them fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from deploy.demo.audit import Audit
from deploy.demo.cli import ProgressLine, as_json, verdict_table
from deploy.demo.plan import DemoSettings, plan_demo
from deploy.demo.scenario import DemoDrive, Standstill
from deploy.demo.watching import FaultFindings
from simulator import Progress, Scenario, Summary, VehicleMessage

HAPPENED = FaultFindings(
    region="eu", killed="us-0002", silent="us-0001", cut_at_least_s=4.0, cut_s=25.0, stored_while_cut=812,
    dead_s=4.1, is_silenced=True,
)  # fmt: skip
RIGHT: Any = SimpleNamespace(equal=True, stations_agree=True, line_agrees=True)


class Log(list[str]):
    """What happened in the drive, in order: messages and faults."""


class Link:
    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name

    def cut(self) -> None:
        self._log.append(f"cut {self._name}")

    def heal(self) -> None:
        self._log.append(f"heal {self._name}")


class Agent:
    def __init__(self, log: Log) -> None:
        self._log = log

    def kill(self) -> None:
        self._log.append("kill")

    def start(self) -> None:
        self._log.append("start")

    def check(self) -> bool:
        return True


def vehicle(log: Log, device: str, waiting: int) -> Any:
    return SimpleNamespace(
        device=device, region=device[:2], broker=SimpleNamespace(port=1), agent=Agent(log), link=Link(log, device),
        drained=True, status=lambda: {"acknowledged": 1, "depth_records": waiting},
    )  # fmt: skip


def driven(
    log: Log, monkeypatch: pytest.MonkeyPatch, folder: Path, *, waiting: int = 7, cut_at_least_s: float = 0.3
) -> FaultFindings:
    """A drive on a machine so slow that no message waits for its time: all of them are late."""

    def at_once(messages: Iterator[VehicleMessage], *_: object, on_progress: Any, **__: object) -> Summary:
        made = 0
        for made, message in enumerate(messages, 1):
            on_progress(Progress(message.offset_s, made, made))
            log.append(f"{message.offset_s:.0f}")
        return Summary(made, made, 0, 0, 0, 200.0, {})

    monkeypatch.setattr("deploy.demo.scenario.publish", at_once)
    monkeypatch.setattr("deploy.demo.scenario.read_folder", lambda _: (None, None))
    monkeypatch.setattr(
        "deploy.demo.scenario.drive",
        lambda *_: (VehicleMessage(float(at), "eu-0001", "t", b"") for at in range(0, 100, 5)),
    )
    plan = plan_demo(DemoSettings(vehicles=4, restart_after_s=0.05, cut_at_least_s=cut_at_least_s))
    scenario: Scenario = plan.scenario.model_copy(update={"duration_s": 100.0})
    drive = DemoDrive(
        stack=SimpleNamespace(links={"eu": Link(log, "region")}),  # type: ignore[arg-type]
        plan=plan,
        folder=folder,
        vehicles=[vehicle(log, one.device, waiting) for one in plan.scenario.vehicles],
        say=lambda _: None,
        poll=lambda *_: time.sleep(0.01),
    )
    summary, found = drive.run(scenario)
    assert summary.made == 20
    return found


def test_each_fault_is_between_the_messages_of_its_place_in_a_drive_that_is_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = Log()
    found = driven(log, monkeypatch, tmp_path)
    at = {what: int(next(one for one in log[log.index(what) :] if one.isdigit())) for what in log if what[0] in "kch"}
    assert at == {"kill": 10, "cut region": 20, "cut us-0001": 50, "heal region": 75}
    assert found.holds
    assert found.cut_s is not None
    assert found.cut_s >= 0.3
    assert found.dead_s is not None
    assert found.dead_s >= 0.05
    assert found.stored_while_cut > 0
    assert "cut for 0." in found.found


def test_a_cut_that_kept_nothing_back_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not driven(Log(), monkeypatch, tmp_path, waiting=0, cut_at_least_s=0.0).holds


@pytest.mark.parametrize(
    "wrong",
    [
        {"cut_s": None},
        {"cut_s": 0.0},
        {"cut_s": 3.9},
        {"stored_while_cut": 0},
        {"dead_s": None},
        {"is_silenced": False},
    ],
)
def test_an_audit_without_a_fault_is_not_equal_and_says_which(wrong: dict[str, Any]) -> None:
    right = Audit(
        devices=(RIGHT,), reason="a vehicle was silent", documents=(RIGHT,), posted=(RIGHT,), proof=RIGHT,
        duplicates_removed=0, conflicts=0, malformed=0, usage_quarters=1, usage_differing=0, faults=HAPPENED,
    )  # fmt: skip
    assert right.equal
    assert not replace(right, faults=None).equal
    less = replace(right, faults=replace(HAPPENED, **wrong))
    assert not less.equal
    shown = replace(less, devices=(), documents=(), posted=(), proof=None)
    out = StringIO()
    Console(file=out, width=200).print(verdict_table(shown))
    (row,) = [line for line in out.getvalue().splitlines() if "each fault" in line]
    assert "NO" in row
    assert as_json(shown)["faults"]["holds"] is False


def test_what_makes_progress_is_not_ended_and_what_stands_still_is() -> None:
    clock = itertools.count(0.0, 100.0)
    still = Standstill(250.0, lambda: next(clock))
    assert [still.is_over(number) for number in range(20)] == [False] * 20
    assert [still.is_over("same") for _ in range(3)][-1]


def shown(line: ProgressLine) -> str:
    (task,) = line._progress.tasks
    return str(line._progress.columns[-1].render(task))  # type: ignore[union-attr]
