"""Faults of the demo's drive happen at their place however late it is, a cut lasts, and a drive without them fails."""

from __future__ import annotations

import itertools
import os
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
from deploy.demo.plan import DemoError, DemoSettings, plan_demo
from deploy.demo.scenario import DemoDrive, DemoScenario, Standstill
from deploy.demo.watching import FaultFindings
from deploy.local.folder import cpu_seconds
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


def test_a_step_s_timer_goes_on_when_all_is_counted_and_begins_anew_with_the_next() -> None:
    moment = [0.0]
    console = Console(width=100, file=StringIO())
    with ProgressLine.on(console, "starting") as line:
        line._progress.get_time = lambda: moment[0]
        line.show("driving", 1, 1)
        moment[0] += 509
        line.show("driving", 1, 1)
        assert shown(line) == "0:08:29"
        line.show("computing usage", 0, 0)
        moment[0] += 360
        line.show("computing usage", 0, 0)
        assert shown(line) == "0:06:00"


def shown(line: ProgressLine) -> str:
    (task,) = line._progress.tasks
    return str(line._progress.columns[-1].render(task))  # type: ignore[union-attr]


class Job:
    """A job that takes processor time each time it is looked at, and ends after so many looks."""

    name, exit_status, log = "usage", 0, Path("usage.log")

    def __init__(self, looks: int, *, works: bool) -> None:
        self._looks, self._works, self.cpu_s, self.is_stopped = looks, works, 0.0, False

    @property
    def pid(self) -> int | None:
        self._looks -= 1
        self.cpu_s += 20.0 if self._works else 0.0
        return 1 if self._looks > 0 else None

    def start(self) -> None:
        """It has begun."""

    def stop(self) -> None:
        self.is_stopped = True


def scenario_of(folder: Path, said: list[str], **settings: float) -> DemoScenario:
    stack: Any = SimpleNamespace(folder=folder, check=lambda: None, memory_bytes=0, spark=None)
    return DemoScenario(stack, plan_demo(DemoSettings(vehicles=4, **settings)), said.append)


def test_a_job_that_works_is_not_ended_and_one_that_hangs_is_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.demo.scenario._POLL_S", 0.002)
    slow: Any = Job(100, works=True)
    scenario_of(tmp_path, [], timeout_s=0.05)._compute(slow, "usage")
    assert not slow.is_stopped
    hanging: Any = Job(10_000, works=False)
    with pytest.raises(DemoError, match=r"usage: the job did no work .* too much to do.*--vehicles 5.*--timeout-s"):
        scenario_of(tmp_path, [], timeout_s=0.05)._compute(hanging, "usage")
    assert hanging.is_stopped


def test_what_was_found_before_the_demo_failed_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DemoError("usage: the job did no work")

    monkeypatch.setattr("deploy.demo.scenario.write_folder", fail)
    said: list[str] = []
    scenario = scenario_of(tmp_path, said)
    scenario.watch = SimpleNamespace(  # type: ignore[assignment]
        alerts={"a": (SimpleNamespace(kind="enter"), 1), "b": (SimpleNamespace(kind="exit"), 1)}, close=lambda: None
    )
    scenario.canary = SimpleNamespace(newest=lambda: SimpleNamespace(found="8 of 8 hops green"))  # type: ignore[assignment]
    with pytest.raises(DemoError):
        scenario.run()
    assert said == ["so far: 2 alerts at the centre: 1 enter, 1 exit", "so far: the canary: 8 of 8 hops green"]


def test_processor_time_of_a_process_grows_with_its_work() -> None:
    before = cpu_seconds(os.getpid())
    assert sum(range(3_000_000)) > 0
    assert cpu_seconds(os.getpid()) > before > 0
    assert cpu_seconds(2**22 + 1) == 0


@pytest.mark.parametrize("works", [True, False])
def test_records_are_waited_for_as_long_as_the_ingest_works_on_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    monkeypatch.setattr("deploy.demo.scenario._POLL_S", 0.002)
    looks = itertools.count()
    monkeypatch.setattr("deploy.demo.scenario._received", lambda *_: 20 if next(looks) > 200 else 0)
    said: list[str] = []
    scenario = scenario_of(tmp_path, said, timeout_s=0.05)
    scenario.ingest = Job(10_000, works=works)  # type: ignore[assignment]
    monkeypatch.setattr(DemoScenario, "_worked", lambda *_: next(looks) if works else 0)
    summary: Any = SimpleNamespace(by_device={"van": 20})
    scenario._wait_until_through(SimpleNamespace(), {}, summary, {"van"})  # type: ignore[arg-type]
    assert said[0].startswith("all 20 records" if works else "not all came through: 0 of 20")
