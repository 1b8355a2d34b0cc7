"""What the demo's audit calls equal is the truth's in every charge, and its plan has a vehicle that falls silent."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest

from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.register.documents_of import issued_document
from deploy.demo.audit import DocumentAudit, audit_documents
from deploy.demo.plan import DemoSettings, plan_demo
from simulator.truth import PostedCharge, TrueDays, TrueDocument, TrueKey, TrueLedger, TrueTax
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, hours, used


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path, "van")
    made.publish(legal_entity(), tariff(price("0.45")), account("acme", device("van")))
    made.use(*(used("van", 100, hour) for hour in hours(3)))
    made.close("first")
    assert len(made.issue("clerk").documents) == 1
    return made


def truth_of(billed: BilledLake) -> TrueDocument:
    """The truth's document, if the register's is right."""
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
