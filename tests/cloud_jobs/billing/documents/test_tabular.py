"""CSV and FOCUS have each charge once, add up to what is posted, and hold no formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from decimal import Decimal

import pytest
from hypothesis import given

from cloud_jobs.billing.documents import DocumentType, to_csv, to_focus
from cloud_jobs.billing.documents.forms import FOCUS_COLUMNS
from cloud_jobs.billing.rating import RatedAccount
from tests.cloud_jobs.billing.documents.rated import buyer, charge, issued, rated_accounts, taxed
from tests.cloud_jobs.billing.documents.test_document import KINDS, document_of

# FOCUS 1.2, feature level "Mandatory"; and of these what may be null.
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName",
    "PublisherName", "ServiceCategory", "ServiceName",
}  # fmt: skip
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
NUMBER = re.compile(r"-?\d+(\.\d+)?")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def rows(content: Iterable[bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(content).decode(), newline="")))


@given(rated_accounts(), KINDS)
def test_the_csv_has_each_charge_and_adds_up_to_what_is_posted(rated: RatedAccount, kind: DocumentType) -> None:
    found = rows(to_csv(document_of(rated, kind)))
    assert len(found) == len(rated.charges)
    digits = {"EUR": 2, "JPY": 0, "JOD": 3}[rated.currency]
    assert sum(Decimal(row["posted_amount"]) for row in found) * 10**digits == rated.net_minor
    quantities = sum(int(row["quantity_base"] or 0) for row in found)
    assert quantities == sum(one.quantity for one in rated.charges if one.key.meter)


@given(rated_accounts(), KINDS)
def test_focus_adds_up_to_what_is_posted_with_the_tax(rated: RatedAccount, kind: DocumentType) -> None:
    found = rows(to_focus(document_of(rated, kind)))
    digits = {"EUR": 2, "JPY": 0, "JOD": 3}[rated.currency]
    for cost in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
        assert sum(Decimal(row[cost]) for row in found) * 10**digits == rated.gross_minor


@given(rated_accounts(), KINDS)
def test_focus_keeps_the_rules_of_its_columns(rated: RatedAccount, kind: DocumentType) -> None:
    assert set(FOCUS_COLUMNS) >= MANDATORY
    assert all(name in MANDATORY or name[:1].isupper() or name.startswith("x_") for name in FOCUS_COLUMNS)
    for row in rows(to_focus(document_of(rated, kind))):
        assert [name for name in MANDATORY - NULLABLE if not row[name]] == []
        for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
            assert NUMBER.fullmatch(row[name])
        for name in ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"):
            assert MOMENT.fullmatch(row[name])
        assert row["ChargeCategory"] in {"Usage", "Tax", "Adjustment"}
        assert row["ChargeClass"] == ("" if kind is DocumentType.INVOICE else "Correction")
        assert bool(row["PricingQuantity"]) == (row["ChargeCategory"] == "Usage") == bool(row["PricingUnit"])
        assert bool(row["ConsumedQuantity"]) == bool(row["ConsumedUnit"])


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|" /C calc"!A0'])
def test_a_name_is_no_formula(text: str) -> None:
    made = issued(taxed([charge(device=text, price=text)]), buyer=buyer(name=text))
    for row in (*rows(to_csv(made)), *rows(to_focus(made))):
        cells = {name: cell for name, cell in row.items() if not NUMBER.fullmatch(cell)}
        assert [name for name, cell in cells.items() if cell.startswith(("=", "+", "-", "@"))] == []
        assert f"'{text}" in row.values()
