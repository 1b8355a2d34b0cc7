"""Faults of the demo's drive happen at their place however late it is, a cut lasts, and a drive without them fails."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from fractions import Fraction
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cloud_jobs.billing.certificates import CertificateState
from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.reconcile import ComparisonOutcome
from deploy.demo.alert_audit import AlertAudit
from deploy.demo.audit import Audit, DocumentAudit, audit_documents
from deploy.demo.cli import verdict_table
from deploy.demo.plan import DemoError, DemoSettings, plan_demo
from deploy.demo.processes import LockedOut
from deploy.demo.scenario import Deadline, DemoDrive
from deploy.demo.watching import CanaryFindings, FaultFindings
from gateway.canary.ledger import HopColour
from simulator import Progress, Scenario, Summary, VehicleMessage
from simulator.truth import PostedCharge, TrueDays, TrueDocument, TrueKey, TrueLedger, TrueTax
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, hours, used
from tests.gateway.canary.test_canary_status import status

HAPPENED = FaultFindings(
    region="eu", killed="us-0002", silent="us-0001", cut_at_least_s=4.0, cut_s=25.0, stored_while_cut=812,
    dead_s=4.1, is_silenced=True,
)  # fmt: skip
RIGHT: Any = SimpleNamespace(
    equal=True, made=1, stored=1, forwarded=1, ingested=1, lost=0, unexpected=0, state=CertificateState.COMPLETE,
    name="invoice 1", gross="1.00 EUR", payer="acme", amount="1.00 EUR",
)  # fmt: skip
PROOF: Any = SimpleNamespace(
    stations_agree=True, line_agrees=True,
    reconciled=SimpleNamespace(comparisons=[], outcome=ComparisonOutcome.EQUAL),
    explained=SimpleNamespace(
        number="1", line="2", currency="EUR", explanation=SimpleNamespace(charge=SimpleNamespace(amount_minor=100))
    ),
)  # fmt: skip
ALERTS = AlertAudit(announced=1, in_force={}, without=0, twice=0, unannounced=0, unpublished=0, is_whole=True)
AUDIT = Audit(
    devices=(RIGHT,), reason="a vehicle was silent", documents=(RIGHT,), posted=(RIGHT,), quarantined=0,
    usage_quarters=1, usage_differing=0, proof=PROOF, faults=HAPPENED, alerts=ALERTS,
    locked_out=LockedOut("fleet/us-0002", 0.1, ("eu", "us"), ("eu", "us")),
    canary=CanaryFindings(status(HopColour.GREEN)),
)  # fmt: skip


def failing(audit: Audit) -> list[str]:
    """The statements that do not hold, as they are printed."""
    out = StringIO()
    Console(file=out, width=200).print(verdict_table(audit))
    printed = [line for line in out.getvalue().splitlines() if "NO" in line]
    assert len(printed) == sum(not one.holds for one in audit.verdicts)
    return printed


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
        return Summary(made, made, 0, 0, 200.0, {})

    monkeypatch.setattr("deploy.demo.scenario.publish", at_once)
    monkeypatch.setattr("deploy.demo.scenario.read_folder", lambda _: None)
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
    assert (AUDIT.equal, failing(AUDIT)) == (True, [])
    less = replace(AUDIT, faults=replace(HAPPENED, **wrong))
    assert not less.equal
    (row,) = failing(less)
    assert "each fault of the drive happened" in row


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"devices": ()}, None),
        ({"documents": ()}, None),
        ({"reason": ""}, "kept its bill provisional"),
        ({"quarantined": 1}, "nothing in quarantine"),
        ({"usage_differing": 1}, "usage equal"),
        ({"alerts": replace(ALERTS, without=1)}, "each alert has its verdict"),
        ({"locked_out": LockedOut("fleet/us-0002", None, (), ("eu", "us"))}, "a revoked vehicle"),
    ],
)
def test_an_audit_in_which_anything_differs_is_not_equal_and_says_what(wrong: dict[str, Any], said: str | None) -> None:
    less = replace(AUDIT, **wrong)
    assert not less.equal
    assert [said is not None and said in row for row in failing(less)] == ([True] if said else [])


def test_what_makes_progress_is_not_ended_and_what_stands_still_is() -> None:
    clock = itertools.count(0.0, 100.0)
    deadline = Deadline("records", 250.0, lambda: next(clock))
    for number in range(20):
        deadline.check(number)
    deadline.check(0)
    deadline.check(0)
    with pytest.raises(DemoError, match="records: no progress for 250 s"):
        deadline.check(0)


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
