"""A document as CSV: each vehicle's part of each line, as it is posted; and as FOCUS 1.2 for tools that compare costs.

Amounts are those that are posted: of a credit note they are negative, so sums over several documents are right.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.documents.annex import UNKNOWN
from cloud_jobs.billing.documents.canonical import Document
from cloud_jobs.billing.documents.errors import NotIssued
from cloud_jobs.billing.documents.facts import DocumentType
from cloud_jobs.billing.meters import MEASURE_OF, Meter, quantity_text
from cloud_jobs.billing.rating import ChargeKind
from cloud_jobs.result_file import spreadsheet_text

COLUMNS: Final = (
    "invoice_number", "invoice_type_code", "line", "account", "region", "tenant", "device", "kind", "meter", "zone",
    "window", "price", "quantity", "unit", "quantity_base", "base_unit", "free_base", "posted_amount", "currency",
    "metered_rows", "first_hour", "last_hour", "metered_digest", *UNKNOWN,
)  # fmt: skip

FOCUS_COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceId",
    "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId",
    "RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "SkuId",
    "SubAccountId", "SubAccountName", "SubAccountType", "x_Zone", "x_Window", "x_Price",
)  # fmt: skip
"""FOCUS 1.2: all that are mandatory, and those of the others that we have; in the order of the alphabet, ours last."""

_CATEGORY: Final = {
    ChargeKind.USAGE: "Usage",
    ChargeKind.DAILY_CAP: "Adjustment",
    ChargeKind.PERIOD_CAP: "Adjustment",
    ChargeKind.MINIMUM: "Adjustment",
}
_SERVICE: Final = "Vehicle telematics"
_SERVICE_CATEGORY: Final = "Internet of Things"
_NUMERIC: Final = frozenset({
    "quantity", "quantity_base", "free_base", "posted_amount", *UNKNOWN,
    "BilledCost", "ConsumedQuantity", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity",
})  # fmt: skip


def to_csv(document: Document) -> Iterator[bytes]:
    """Line by line: one row for each entry of the annex, and behind them one, without an amount, for each device whose
    way is unknown in part; with the header COLUMNS, in UTF-8 with CRLF (RFC 4180)."""
    return _written(COLUMNS, chain(_rows(document), _unknown_rows(document)))


def to_focus(document: Document) -> Iterator[bytes]:
    """FOCUS 1.2 as CSV, line by line: a row for each entry of the annex and each tax; their sum is what is posted.

    Raises NotIssued: a cost of a draft is nobody's yet.
    """
    if document["invoice_number"] is None:
        raise NotIssued("a draft has no number, so its costs are not billed; issue the period first")
    return _written(FOCUS_COLUMNS, _focus_rows(document))


class _Lines:
    """A file of which the one who writes gets back what it would have in it."""

    def write(self, line: str) -> bytes:
        return line.encode()


def _written(columns: tuple[str, ...], rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    writer: Any = csv.DictWriter(_Lines(), columns)
    yield writer.writeheader()
    for row in rows:
        yield writer.writerow({name: _cell(name, value) for name, value in row.items()})


def _cell(column: str, value: Any) -> Any:
    return value if column in _NUMERIC else spreadsheet_text(value)


def _entries(document: Document) -> Iterator[tuple[Document, Document]]:
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}
    return ((line_of[entry["line"]], entry) for entry in document["annex"])


def _rows(document: Document) -> Iterator[dict[str, Any]]:
    sign, currency = document["posting_sign"], document["invoice_currency_code"]
    for line, entry in _entries(document):
        quantity, metered = sign * entry["quantity_base"], entry["metered"] or {}
        yield {
            "invoice_number": document["invoice_number"],
            "invoice_type_code": document["invoice_type_code"],
            **{name: line[name] for name in ("account", "region", "kind", "meter", "zone", "window", "price")},
            **{name: entry[name] for name in ("line", "tenant", "device")},
            **_quantities(line, quantity),
            "free_base": sign * entry["free_base"] if line["quantity"] else None,
            "posted_amount": amount_text(sign * entry["amount_minor"], currency),
            "currency": currency,
            "metered_rows": metered.get("rows"),
            "first_hour": metered.get("first_hour"),
            "last_hour": metered.get("last_hour"),
            "metered_digest": metered.get("digest"),
        }


def _unknown_rows(document: Document) -> Iterator[dict[str, Any]]:
    of = {name: document[name] for name in ("invoice_number", "invoice_type_code")}
    return ({**of, **one, "kind": "unknown_way"} for one in document["unknown_ways"])


def _quantities(line: Document, quantity: int) -> dict[str, Any]:
    if line["quantity"] is None:
        return {"quantity": None, "unit": None, "quantity_base": None, "base_unit": None}
    measure = MEASURE_OF[Meter(line["meter"])]
    return {
        "quantity": quantity_text(Meter(line["meter"]), quantity),
        "unit": measure.unit,
        "quantity_base": quantity,
        "base_unit": measure.base,
    }


def _focus_rows(document: Document) -> Iterator[dict[str, Any]]:
    sign, currency = document["posting_sign"], document["invoice_currency_code"]
    common = _focus_common(document)
    for line, entry in _entries(document):
        category, device = _CATEGORY[ChargeKind(line["kind"])], entry["device"]
        quantities = _quantities(line, sign * entry["quantity_base"])
        yield {
            **common,
            **_costs(amount_text(sign * entry["amount_minor"], currency)),
            "ChargeCategory": category,
            "ChargeDescription": line["item_name"],
            "ConsumedQuantity": quantities["quantity"],
            "ConsumedUnit": quantities["unit"],
            "PricingQuantity": quantities["quantity"],
            "PricingUnit": quantities["unit"],
            "RegionId": line["region"] or None,
            "RegionName": line["region"] or None,
            "ResourceId": f"{entry['tenant']}/{device}" if device else None,
            "ResourceName": device or None,
            "ResourceType": "Vehicle" if device else None,
            "SkuId": line["meter"] if line["quantity"] else None,
            "SubAccountId": line["account"],
            "SubAccountName": line["account_name"],
            "SubAccountType": "Account",
            "x_Zone": line["zone"] or None,
            "x_Window": line["window"] or None,
            "x_Price": line["price"] or None,
        }
    for vat in document["vat_breakdown"]:
        tax = sign * vat["vat_category_tax_amount"]["minor"]
        if tax:
            yield {**common, **_costs(amount_text(tax, currency)), "ChargeCategory": "Tax", "ChargeDescription": "VAT"}


def _focus_common(document: Document) -> dict[str, Any]:
    period, seller, buyer = document["invoicing_period"], document["seller"], document["buyer"]
    invoice = document["invoice_type_code"] == DocumentType.INVOICE
    return {
        "BillingAccountId": buyer["buyer_identifier"],
        "BillingAccountName": buyer["buyer_name"],
        "BillingAccountType": "Payer",
        "BillingCurrency": document["invoice_currency_code"],
        "BillingPeriodEnd": period["end"],
        "BillingPeriodStart": period["start"],
        "ChargeClass": None if invoice else "Correction",
        "ChargePeriodEnd": period["end"],
        "ChargePeriodStart": period["start"],
        "InvoiceId": document["invoice_number"],
        "InvoiceIssuerName": seller["seller_name"],
        "ProviderName": seller["seller_name"],
        "PublisherName": seller["seller_name"],
        "ServiceCategory": _SERVICE_CATEGORY,
        "ServiceName": _SERVICE,
    }


def _costs(amount: str) -> dict[str, str]:
    """There is one price, and nothing is paid ahead: all four costs are what is billed."""
    return dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), amount)
