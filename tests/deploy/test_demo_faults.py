"""Faults of the demo's drive happen at their place however late it is, a cut lasts, and a drive without them fails."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from fractions import Fraction
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.register.documents_of import issued_document
from deploy.demo.audit import Audit, DocumentAudit, audit_documents
from deploy.demo.cli import ProgressLine, as_json, verdict_table
from deploy.demo.plan import DemoError, DemoSettings, plan_demo
from deploy.demo.scenario import DemoDrive, DemoScenario, Standstill
from deploy.demo.watching import AlertFindings, FaultFindings, find_verdicts, judge_alerts
from geo.alerts import Alert
from simulator import Progress, Scenario, Summary, VehicleMessage
from simulator.truth import PostedCharge, TrueDays, TrueDocument, TrueKey, TrueLedger, TrueTax
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, hours, used
from tests.system.lake_of_fixes import derive

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


MOMENT = datetime(2026, 1, 10, 6, tzinfo=UTC)
T_MS = round(MOMENT.timestamp() * 1000)


def alert(name: str) -> tuple[Alert, int]:
    """An alert, raised 20 ms after its batch and read 70 ms after it."""
    made = Alert(
        id=name.rjust(24, "0"), tenant="fleet", device="bus-1", region="eu", epoch=1, seq=1, kind="enter",
        place="yard", t_ms=T_MS, received_ms=T_MS, raised_ms=T_MS + 20,
    )  # fmt: skip
    return made, T_MS + 70


def alerts(names: str) -> dict[str, tuple[Alert, int]]:
    return {one[0].id: one for one in map(alert, names)}


def event(name: str, revision: int = 0, *, retracted: bool = False, tenant: str = "fleet") -> dict[str, Any]:
    return _row(name, revision, tenant) | {
        "epoch": 1, "seq": 1, "kind": "enter", "place": "yard", "time": MOMENT, "value": 0.0, "retracted": retracted,
    }  # fmt: skip


def verdict(name: str, said: str, revision: int = 0, *, tenant: str = "fleet") -> dict[str, Any]:
    return _row(name, revision, tenant) | {"verdict": said, "corrective_ids": []}


def _row(name: str, revision: int, tenant: str) -> dict[str, Any]:
    who = {"tenant": tenant, "device": "bus-1", "day": MOMENT.date(), "emitted_at": MOMENT}
    return {"id": name.rjust(24, "0"), "revision": revision} | who


ALERTS = "ab"
EVENTS = [event("a"), event("b"), event("b", 1, retracted=True), event("c")]
VERDICTS = [verdict("a", "withdrawn"), verdict("a", "confirmed", 1), verdict("b", "withdrawn"), verdict("c", "late")]
"""Of `a` and `b` an alert was raised, and `b` did not happen after all; of `c` nobody said anything."""
OF_CANARIES = [verdict("e", "confirmed", tenant=CANARY), verdict("f", "withdrawn", tenant=CANARY)]


def found_in(raised: str = ALERTS, verdicts: list[dict[str, Any]] = VERDICTS, events: Any = EVENTS) -> AlertFindings:
    return judge_alerts(alerts(raised), events, verdicts)


def test_a_right_lake_holds_and_what_became_of_the_alerts_is_counted() -> None:
    found = found_in()
    assert found.holds
    assert found.verdicts == {"confirmed": 1, "corrected": 0, "withdrawn": 1, "late": 1}
    assert (found.by_kind, found.region_ms, found.centre_ms) == ({"enter": 2}, (20, 20), (70, 70))
    assert found.found == "2 alerts; 1 confirmed, 1 withdrawn, 1 late"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"verdicts": VERDICTS[:2] + VERDICTS[3:]}, "1 without one", id="missing"),
        pytest.param({"raised": "abc"}, "1 without one", id="late, of what was said"),
        pytest.param({"verdicts": [*VERDICTS, verdict("a", "withdrawn", 1)]}, "1 there twice", id="two"),
        pytest.param({"verdicts": [*VERDICTS, verdict("d", "withdrawn")]}, "1 on no alert", id="withdrawn, unknown"),
        pytest.param({"raised": "a"}, "1 on no alert", id="an alert that nobody read"),
        pytest.param({"verdicts": [*VERDICTS, verdict("d", "late")]}, "are not of the events", id="of no event"),
        pytest.param({"events": [*EVENTS, event("d")]}, "are not of the events", id="an event without one"),
        pytest.param({"events": [*EVENTS, event("b", 2)]}, "are not of the events", id="withdrawn, and happened"),
        pytest.param({"raised": ""}, "0 alerts", id="no alert at all"),
    ],
)
def test_a_wrong_lake_does_not_hold_and_says_why(changed: dict[str, Any], said: str) -> None:
    found = found_in(**changed)
    assert not found.holds
    assert said in found.found


def test_what_is_of_a_canary_is_none_of_the_fleet_s(tmp_path: Path) -> None:
    verdicts, events = [*VERDICTS, *OF_CANARIES], [*EVENTS, event("e", tenant=CANARY)]
    billed = BilledLake.create(tmp_path, "bus-1")
    derive(billed.lake, "geofence_events", events)
    derive(billed.lake, "verdicts", verdicts)
    found = find_verdicts(billed.lake, alerts(ALERTS))
    assert (found.holds, sum(found.verdicts.values())) == (True, 3)


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path, "van")
    made.publish(legal_entity(), tariff(price("0.45")), account("acme", device("van")))
    made.use(*(used("van", 100, hour) for hour in hours(3)))
    made.close("first")
    assert len(made.issue("clerk").documents) == 1
    return made


def truth_of(billed: BilledLake) -> TrueDocument:
    (one,) = billed.register.documents()
    charges = [
        PostedCharge(
            TrueKey(
                *(charge.key.account, charge.key.region, charge.key.tenant, charge.key.device),
                *("usage", "distance", charge.key.zone, charge.key.window, charge.key.price),
            ),
            *(charge.quantity, charge.free, charge.amount_minor),
        )
        for charge in charges_of(issued_document(billed.register, one.number))
    ]
    tax = TrueTax("S", Fraction(19), "", one.net_minor, one.tax_minor)
    days = TrueDays("Europe/Berlin", *DAYS)
    return TrueDocument("invoice", 1, None, one.key.legal_entity, "acme", days, one.currency, tuple(charges), (tax,))


def audited(billed: BilledLake, *documents: TrueDocument) -> tuple[DocumentAudit, ...]:
    ledger = TrueLedger()
    ledger.documents += documents
    return audit_documents(billed.register, ledger)


def test_a_document_is_equal_if_all_of_it_is(billed: BilledLake) -> None:
    true = truth_of(billed)
    (found,) = audited(billed, true)
    assert (found.equal, found.differing_charges, found.charges) == (True, 0, len(true.charges))
    assert found.charges > 0
    charge = true.charges[0]
    moved = (charge._replace(quantity=charge.quantity + 1), *true.charges[1:])
    later = true.days._replace(last_day=date(2026, 12, 31))
    for other in (
        true._replace(charges=moved),
        true._replace(charges=()),
        true._replace(kind="debit note"),
        true._replace(of=1),
        true._replace(days=later),
        true._replace(taxes=(true.taxes[0]._replace(tax_minor=true.tax_minor + 1),)),
    ):
        assert [one.equal for one in audited(billed, other)] == [False]


def test_a_document_that_only_one_side_has_is_not_equal(billed: BilledLake) -> None:
    true = truth_of(billed)
    assert [one.equal for one in audited(billed)] == [False]
    note = true._replace(kind="credit note", number=2, of=1)
    assert [(one.issued is None, one.equal) for one in audited(billed, true, note)] == [(False, True), (True, False)]


def test_the_plan_has_a_vehicle_that_falls_silent_and_another_that_is_killed() -> None:
    plan = plan_demo(DemoSettings(vehicles=4))
    assert (plan.silent, plan.killed, plan.period) == ("us-0001", "us-0002", "2026-01")
    silent = next(one for one in plan.scenario.vehicles if one.device == plan.silent)
    assert silent.account == "acme"
    assert [tariff.discount is None for tariff in plan.scenario.tariffs] == [False, True]


@pytest.mark.parametrize("ended_by", [DemoError("a server failed"), KeyboardInterrupt()])
def test_alerts_are_read_no_more_however_the_demo_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise ended_by

    monkeypatch.setattr("deploy.demo.scenario.write_folder", fail)
    closed: list[bool] = []
    watch: Any = SimpleNamespace(alerts={}, close=lambda: closed.append(True))
    stack: Any = SimpleNamespace(folder=tmp_path)
    scenario = DemoScenario(stack, plan_demo(DemoSettings(vehicles=4)), print, watch=watch)
    with pytest.raises(type(ended_by)):
        scenario.run()
    assert closed == [True]
