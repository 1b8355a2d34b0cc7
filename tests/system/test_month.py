"""A month that is hard to bill, through ingest, usage and closings on Spark, and the register: all is the truth's.

Contracts are published as TOML makes them; batches arrive late, twice and out of order, cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.billing.documents import Document, DocumentType, charges_of
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.errors import (
    AlreadyIssued,
    Blocked,
    FuturePeriod,
    NotClosed,
    NotFinal,
    NothingToAdjust,
)
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.operations import PostingResult
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile import ComparisonOutcome, reconcile
from simulator.truth import PostedCharge, TrueDocument, TrueKey, TrueOwed
from tests.month import (
    PERIODS,
    Adjust,
    ArrivedBatch,
    Close,
    Decide,
    Deliver,
    ExpectedBilling,
    Issue,
    Month,
    Publish,
    expected_billing,
    hard_month,
)
from tests.system.billed_month import MARCH, Centre

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SEED = 15
MESSAGES_AT_ONCE = 40
OVERLAPPING = (date(2026, 3, 31), date(2026, 4, 5))
APRIL = (date(2026, 4, 1), date(2026, 4, 30))
KINDS = {
    DocumentType.INVOICE: "invoice",
    DocumentType.CREDIT_NOTE: "credit note",
    DocumentType.DEBIT_NOTE: "debit note",
}


@pytest.fixture(scope="module")
def month() -> Month:
    return hard_month(SEED)


@pytest.fixture(scope="module")
def expected(month: Month) -> dict[int, ExpectedBilling]:
    return {step.step: step for step in expected_billing(month)}


def test_every_document_certificate_and_closing_is_the_truth_s_to_the_last_minor_unit(
    month: Month, expected: dict[int, ExpectedBilling], spark: SparkSession, tmp_path: Path
) -> None:
    dice, centre = Random(SEED), Centre(Lake(tmp_path), spark)
    for number, step in enumerate(month.steps):
        match step:
            case Publish():
                centre.publish(step)
            case Deliver():
                deliver(centre, step.deliveries, dice)
            case Decide():
                centre.decide(step)
            case _:
                bill(centre, step, expected[number])
    assert {payer: len(centre.register.documents([payer])) for payer in PERIODS} == {"acme": 4, "kaze": 3}
    reconciled(centre, month.steps[-1].at)


def reconciled(centre: Centre, now: datetime) -> None:
    """After all of it each station counts the same, until somebody changes a document."""
    found = reconcile(centre.lake, take_snapshot(centre.lake, now), MARCH, None, now=now)
    bad = {ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN}
    assert [one for one in found.comparisons if one.outcome in bad] == []
    centre.lake.open("documents").update(updates={"net_minor": "net_minor + 1"}, predicate="counter = 1")
    changed = reconcile(centre.lake, take_snapshot(centre.lake, now), MARCH, None, now=now)
    assert changed.outcome is ComparisonOutcome.DIFFERENT


def deliver(centre: Centre, batches: Sequence[ArrivedBatch], dice: Random) -> None:
    """In micro-batches of any size, each by two tasks."""
    left = list(batches)
    while left:
        count = dice.randrange(1, 2 * MESSAGES_AT_ONCE)
        arrived, left = left[:count], left[count:]
        centre.take_in(arrived[::2], arrived[1::2])


def bill(centre: Centre, step: Close | Issue | Adjust, right: ExpectedBilling) -> None:
    """What a step does, and around it what the register must refuse then."""
    if isinstance(step, Close):
        refuse_before(centre, step)
    centre.meter()
    closings = {one.key.payer: one for one in centre.close(step.at)}
    assert {*closings} == {*PERIODS}
    states = states_of(centre)
    for payer, closing in closings.items():
        assert states[payer, closing.run] == right.states[payer]
        assert closing.outcome.value == ("final" if payer in right.final else "provisional"), closing.reasons
        assert owed(closing) == truly_owed(right.owed[payer])
    match step:
        case Close():
            others = {*PERIODS} - {*right.final}
            assert others, "at first somebody cannot be issued"
            assert refused(centre.issue(step.at, payers=others)) == dict.fromkeys(others, NotFinal)
            assert right.documents == ()
        case Issue():
            check_done(centre, centre.issue(step.at), right)
            refuse_after(centre, step)
        case Adjust():
            done = centre.adjust(step.at)
            check_done(centre, done, right)
            posted = {one.payer for one in right.documents}
            assert refused(done) == dict.fromkeys({*PERIODS} - posted, NothingToAdjust)
            # the same command again
            assert centre.adjust(step.at).documents == []


def refuse_before(centre: Centre, step: Close) -> None:
    """What was ingested and is not metered is not final, and nobody issues what nobody closed."""
    assert refused(centre.issue(step.at, payers=[*PERIODS])) == dict.fromkeys(PERIODS, NotClosed)
    for closing in centre.close(step.at):
        assert closing.outcome.value == "provisional"
        assert any("not metered yet" in reason for reason in closing.reasons)
    assert refused(centre.issue(step.at)) == dict.fromkeys(PERIODS, NotFinal)


def refuse_after(centre: Centre, step: Issue) -> None:
    """A second invoice of the month, of a day of it, and of a month that has not ended."""
    assert refused(centre.issue(step.at)) == dict.fromkeys(PERIODS, AlreadyIssued)
    assert {one.outcome.value for one in centre.close(step.at, OVERLAPPING)} == {"blocked"}, "their cycle is a month"
    # also later, when that period has ended
    for now in (step.at, step.at + timedelta(days=30)):
        assert refused(centre.issue(now, OVERLAPPING)) == dict.fromkeys(PERIODS, Blocked)
    assert {one.outcome.value for one in centre.close(step.at, APRIL)} == {"provisional"}
    assert refused(centre.issue(step.at, APRIL)) == dict.fromkeys(PERIODS, FuturePeriod)


def check_done(centre: Centre, done: PostingResult, right: ExpectedBilling) -> None:
    """Each document of a step, by its entry in the register, and by its JSON."""
    made = sorted(done.documents, key=lambda one: one.key.payer)
    assert [entered(one) for one in made] == [truly_entered(one) for one in right.documents]
    documents = [issued_document(centre.register, one.number) for one in made]
    assert [said(one) for one in documents] == [truly_said(one) for one in right.documents]


def refused(done: PostingResult) -> dict[str, type[Exception]]:
    """Why each payer was refused."""
    return {one.payer: type(one) for one in done.refused}


def states_of(centre: Centre) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """Of each payer and run the state of each device."""
    found: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for row in centre.lake.rows("certificates").to_pylist():
        found.setdefault((row["payer"], row["run"]), {})[row["tenant"], row["device"]] = row["state"]
    return found


def owed(closing: Closing) -> tuple[Any, ...]:
    key = closing.key
    return key.legal_entity, key.payer, closing.currency, closing.net_minor, closing.net_minor + closing.tax_minor


def truly_owed(right: TrueOwed) -> tuple[Any, ...]:
    return right.legal_entity, right.payer, right.currency, right.net_minor, right.gross_minor


def entered(one: IssuedDocument) -> tuple[Any, ...]:
    """An entry of the register. Numbers are the seller's prefix and the counter in eight digits."""
    key, reference = one.key, one.reference
    of = None if reference is None else int(reference.number[-8:])
    counters = (one.counter, int(one.number[-8:]), of)
    days = (key.first_day, key.last_day)
    amounts = (one.currency, one.net_minor, one.tax_minor, one.gross_minor)
    return KINDS[one.type], counters, key.legal_entity, key.payer, days, amounts


def truly_entered(one: TrueDocument) -> tuple[Any, ...]:
    counters = (one.number, one.number, one.of)
    amounts = (one.currency, one.net_minor, one.tax_minor, one.gross_minor)
    return one.kind, counters, one.legal_entity, one.payer, MARCH, amounts


def said(document: Document) -> tuple[Any, ...]:
    """What a document says, as far as the truth says it. A credit note says it with the other sign."""
    sign = document["posting_sign"]
    taxes = [
        (
            one["vat_category_code"],
            Decimal(one["vat_category_rate"] or 0),
            sign * one["vat_category_taxable_amount"]["minor"],
            sign * one["vat_category_tax_amount"]["minor"],
        )
        for one in document["vat_breakdown"]
    ]
    totals = document["document_totals"]
    amounts = [sign * totals[name]["minor"] for name in ("invoice_total_amount_without_vat", "amount_due_for_payment")]
    of = document["preceding_invoice"] and int(document["preceding_invoice"]["preceding_invoice_reference"][-8:])
    charges = without_words(posted(one) for one in charges_of(document))
    names = (document["seller"]["seller_identifier"], document["buyer"]["buyer_identifier"])
    return *names, int(document["invoice_number"][-8:]), of, document["invoice_currency_code"], amounts, charges, taxes


def truly_said(one: TrueDocument) -> tuple[Any, ...]:
    taxes = [
        (tax.category, Decimal(tax.rate.numerator) / tax.rate.denominator, tax.taxable_minor, tax.tax_minor)
        for tax in one.taxes
    ]
    amounts = [one.net_minor, one.gross_minor]
    names = (one.legal_entity, one.payer)
    return *names, one.number, one.of, one.currency, amounts, without_words(one.charges), taxes


def without_words(charges: Iterable[PostedCharge]) -> dict[TrueKey, list[int]]:
    """The sums of charges. No page says how the price of a fact reads, so it is left out."""
    sums: dict[TrueKey, list[int]] = {}
    for about, *numbers in charges:
        key = about._replace(price="") if about.meter in {"visit", "stay", "passage", "driven day"} else about
        sums[key] = [sum(pair) for pair in zip(sums.get(key, [0, 0, 0]), numbers, strict=True)]
    return dict(sorted(sums.items()))


def posted(charge: Charge) -> PostedCharge:
    key = charge.key
    about = TrueKey(
        key.account,
        key.region,
        key.tenant,
        key.device,
        key.kind.value,
        key.meter.value if key.meter else "",
        key.zone,
        key.window_id,
        key.price,
    )
    return PostedCharge(about, charge.quantity, charge.free, charge.amount_minor)
