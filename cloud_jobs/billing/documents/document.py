"""An invoice, credit note or debit note as one plain document, from which every other form is made.

Names are the business terms of EN 16931 in snake_case where it has one; docs/invoices.md lists them with their numbers.
A credit note states what it gives back as positive amounts; times `posting_sign` they are what is posted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import Account, Address, LegalEntity, Payer
from cloud_jobs.billing.contracts.account import VatCategory
from cloud_jobs.billing.documents.canonical import FORMAT, Document, canonical_text, digest_of
from cloud_jobs.billing.documents.checks import check_kind, check_parties, check_text_of
from cloud_jobs.billing.documents.errors import MissingFact
from cloud_jobs.billing.documents.facts import CertificateSummary, DocumentType, InvoicingPeriod, PrecedingInvoice
from cloud_jobs.billing.documents.lines import amount, lines_and_annex
from cloud_jobs.billing.period import stamp
from cloud_jobs.billing.rating import Charge, Owed, RatedAccount, TaxGroup

CREDITED: Final = "This amount is credited; nothing is to be paid."


class Body(NamedTuple):
    """Lines, sub-totals and annex of a document, and the SHA-256 (hex) over them, which stands in its head."""

    parts: Document
    digest: str


def document(
    *,
    kind: DocumentType,
    number: str | None,
    issue_date: date | None,
    due_date: date | None,
    seller: LegalEntity,
    buyer: Account,
    names: Mapping[str, str] = MappingProxyType({}),
    rated: RatedAccount,
    period: InvoicingPeriod,
    snapshot: str,
    certificates: CertificateSummary,
    preceding: PrecedingInvoice | None = None,
    reason: str | None = None,
) -> Document:
    """The document of what a payer owes, or of what is posted beside it, sealed with its digest.

    `number` and `issue_date`: both None of a draft. `names`: of the payer's children, by account id. `rated`: as rated;
    of a note the difference to what was posted, which a credit note states with the other sign. `reason`: why a note
    was made (BT-22). Raises UnusableText, MissingFact, UnknownCurrency.
    """
    body = document_body(rated.charges, kind=kind, buyer=buyer, names=names, currency=rated.currency)
    made = document_head(
        kind=kind,
        number=number,
        issue_date=issue_date,
        due_date=due_date,
        seller=seller,
        buyer=buyer,
        owed=rated.owed,
        period=period,
        snapshot=snapshot,
        certificates=certificates,
        body_digest=body.digest,
        preceding=preceding,
        reason=reason,
    )
    return {**made, **body.parts}


def document_body(
    charges: Iterable[Charge], *, kind: DocumentType, buyer: Account, names: Mapping[str, str], currency: str
) -> Body:
    """What is of the charges alone, so that it can be made before anybody numbers it. Raises UnusableText."""
    names = {**names, buyer.id: buyer.name}
    lines, subtotals, annex = lines_and_annex(charges, buyer.id, names, currency, kind.sign)
    parts = {"lines": lines, "subtotals": subtotals, "annex": annex}
    text = canonical_text(parts)
    check_text_of(parts, text)
    return Body(parts, digest_of(text))


def document_head(
    *,
    kind: DocumentType,
    number: str | None,
    issue_date: date | None,
    due_date: date | None,
    seller: LegalEntity,
    buyer: Account,
    owed: Owed,
    period: InvoicingPeriod,
    snapshot: str,
    certificates: CertificateSummary,
    body_digest: str,
    preceding: PrecedingInvoice | None = None,
    reason: str | None = None,
) -> Document:
    """All of a document but its body, sealed with the digest of the whole. Raises UnusableText, MissingFact."""
    assert (number is None) == (issue_date is None), "a document has a number from the day it is issued"
    payer = buyer.payer
    assert payer is not None, f"account {buyer.id} does not pay itself"
    assert owed.payer == buyer.id, f"the charges are those of {owed.payer}, not of {buyer.id}"
    if number is not None:
        check_kind(kind, preceding, with_due_date=due_date is not None)
    check_parties(seller, buyer, payer)
    tax, sign, currency = _tax(owed, payer), kind.sign, owed.currency
    made: Document = {
        "format": FORMAT,
        "invoice_number": number,
        "invoice_issue_date": issue_date and issue_date.isoformat(),
        "invoice_type_code": kind.value,
        "invoice_currency_code": currency,
        "posting_sign": sign,
        "payment_due_date": due_date and due_date.isoformat(),
        "payment_terms": CREDITED if kind is DocumentType.CREDIT_NOTE else None,
        "buyer_reference": payer.buyer_reference,
        "invoice_note": reason,
        "preceding_invoice": preceding and _preceding(preceding),
        "seller": _seller(seller),
        "buyer": _buyer(buyer, payer),
        "deliver_to_country_code": payer.address.country if tax.category is VatCategory.INTRA_COMMUNITY else None,
        "invoicing_period": _period(period),
        "payment_instructions": _payment(seller, number),
        "document_totals": _totals(owed, sign),
        "vat_breakdown": [_vat(tax, currency, sign)],
        "body_digest": body_digest,
        "snapshot": snapshot,
        "certificates": _certificates(certificates),
    }
    text = canonical_text(made)
    check_text_of(made, text)
    return {**made, "digest": digest_of(text)}


def _tax(owed: Owed, payer: Payer) -> TaxGroup:
    """The tax on all lines: a payer has one category and rate, so one group; of nothing, if nothing is owed."""
    if not owed.taxes and not owed.net_minor:
        vat = payer.vat
        return TaxGroup(
            category=vat.category, rate=vat.rate, exemption_reason=vat.exemption_reason, taxable_minor=0, tax_minor=0
        )
    if len(owed.taxes) != 1 or owed.taxes[0].taxable_minor != owed.net_minor:
        raise MissingFact(
            f"the charges of {owed.payer} are {owed.net_minor}, their taxable amounts are"
            f" {[group.taxable_minor for group in owed.taxes]}: all are taxed alike, once",
            "BR-CO-18, BR-S-08",
        )
    return owed.taxes[0]


def _preceding(preceding: PrecedingInvoice) -> Document:
    return {
        "preceding_invoice_reference": preceding.number,
        "preceding_invoice_issue_date": preceding.issue_date.isoformat(),
    }


def _address(address: Address) -> Document:
    return {
        "line": address.line,
        "city": address.city,
        "post_code": address.postal_code or None,
        "country_code": address.country,
    }


def _seller(seller: LegalEntity) -> Document:
    return {
        "seller_identifier": seller.id,
        "seller_name": seller.name,
        "seller_vat_identifier": seller.vat_id,
        "seller_tax_registration_identifier": seller.tax_registration_id,
        "seller_postal_address": _address(seller.address),
        "seller_contact_point": seller.contact,
    }


def _buyer(buyer: Account, payer: Payer) -> Document:
    return {
        "buyer_identifier": buyer.id,
        "buyer_name": buyer.name,
        "buyer_vat_identifier": payer.vat_id,
        "buyer_postal_address": _address(payer.address),
    }


def _period(period: InvoicingPeriod) -> Document:
    return {
        "invoicing_period_start_date": period.first_day.isoformat(),
        "invoicing_period_end_date": period.last_day.isoformat(),
        "start": stamp(period.start),
        "end": stamp(period.end),
        "time_zone": period.time_zone,
    }


def _payment(seller: LegalEntity, number: str | None) -> Document:
    return {
        "payment_means_type_code": seller.payment.means_code,
        "payment_account_identifier": seller.payment.iban,
        "payment_service_provider_identifier": seller.payment.bic,
        "remittance_information": number,
    }


def _certificates(summary: CertificateSummary) -> Document:
    return {"devices_by_state": dict(summary.devices_by_state), "digest": summary.digest}


def _totals(owed: Owed, sign: int) -> Document:
    currency = owed.currency
    net, tax, gross = (sign * minor for minor in (owed.net_minor, owed.tax_minor, owed.gross_minor))
    return {
        "sum_of_invoice_line_net_amount": amount(net, currency),
        "invoice_total_amount_without_vat": amount(net, currency),
        "invoice_total_vat_amount": amount(tax, currency),
        "invoice_total_amount_with_vat": amount(gross, currency),
        "amount_due_for_payment": amount(gross, currency),
    }


def _vat(tax: TaxGroup, currency: str, sign: int) -> Document:
    return {
        "vat_category_code": tax.category.value,
        # of what is not subject to VAT there is no rate, not even 0 (BR-O-05)
        "vat_category_rate": None if tax.category is VatCategory.OUT_OF_SCOPE else f"{tax.rate.normalize():f}",
        "vat_exemption_reason_text": tax.exemption_reason,
        "vat_category_taxable_amount": amount(sign * tax.taxable_minor, currency),
        "vat_category_tax_amount": amount(sign * tax.tax_minor, currency),
    }
