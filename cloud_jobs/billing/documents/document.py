"""An invoice, credit note or debit note as one plain document, from which every other form is made.

Names are the business terms of EN 16931 in snake_case where it has one; docs/invoices.md lists them with their numbers.
A credit note states what it gives back as positive amounts; times `posting_sign` they are what is posted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import Account, Address, LegalEntity, Payer, VatCategory
from cloud_jobs.billing.documents.annex import Annex, Columns
from cloud_jobs.billing.documents.canonical import FORMAT, Document, canonical_pieces, canonical_text, digest_of
from cloud_jobs.billing.documents.checks import check_kind, check_taxes, check_texts, is_plain
from cloud_jobs.billing.documents.errors import MissingFact
from cloud_jobs.billing.documents.facts import CertificateSummary, DocumentType, InvoicingPeriod, PrecedingInvoice
from cloud_jobs.billing.documents.lines import amount, lines_and_annex, rate_text
from cloud_jobs.billing.rating import Owed, RatedAccount, TaxGroup
from geo.reference.moments import stamp

CREDITED: Final = "This amount is credited; nothing is to be paid."


class Body(NamedTuple):
    """Lines, sub-totals and annex of a document, what of its vehicles' ways is unknown and so on no line, and the
    SHA-256 (hex) over them, which stands in its head."""

    lines: list[Document]
    subtotals: list[Document]
    annex: Columns
    unknown_ways: list[Document]
    digest: str

    @property
    def parts(self) -> Document:
        """As they stand in the document."""
        made = {"lines": self.lines, "subtotals": self.subtotals, "annex": Annex(self.annex)}
        return {**made, "unknown_ways": self.unknown_ways}


def document(
    *,
    kind: DocumentType,
    number: str | None,
    issue_date: date | None,
    due_date: date | None,
    seller: LegalEntity,
    buyer: Account,
    names: Mapping[str, str] = MappingProxyType({}),
    parts: Sequence[RatedAccount],
    period: InvoicingPeriod,
    snapshot: str,
    certificates: CertificateSummary,
    preceding: PrecedingInvoice | None = None,
    reason: str | None = None,
    unknown_ways: Sequence[Document] = (),
) -> Document:
    """The document of what a payer owes, or of what is posted beside it, sealed with its digest.

    `number` and `issue_date`: both None of a draft. `names`: of the payer's children, by account id. `parts`: what was
    rated; of a note what changes what was posted, which a credit note states with the other sign. Each part is of one
    category and rate of VAT, and no two are of the same. `reason`: why a note was made (BT-22). Raises UnusableText,
    MissingFact, UnknownCurrency.
    """
    body = document_body(parts, kind=kind, buyer=buyer, names=names, unknown_ways=unknown_ways)
    made = document_head(
        kind=kind,
        number=number,
        issue_date=issue_date,
        due_date=due_date,
        seller=seller,
        buyer=buyer,
        owed=[part.owed for part in parts],
        period=period,
        snapshot=snapshot,
        certificates=certificates,
        body_digest=body.digest,
        preceding=preceding,
        reason=reason,
    )
    return {**made, **body.parts}


def document_body(
    parts: Sequence[RatedAccount],
    *,
    kind: DocumentType,
    buyer: Account,
    names: Mapping[str, str],
    unknown_ways: Sequence[Document] = (),
) -> Body:
    """What is of the charges and certificates alone, so that it can be made before anybody numbers it.

    `unknown_ways`: of an invoice's devices, see `unknown_way`. Raises UnusableText, MissingFact.
    """
    assert buyer.payer is not None, f"account {buyer.id} does not pay itself"
    names = {**names, buyer.id: buyer.name}
    taxed = [(part.charges, _tax(part.owed, buyer.payer)) for part in parts]
    lines, subtotals, annex = lines_and_annex(taxed, buyer.id, names, parts[0].currency, kind.sign)
    made = {"lines": lines, "subtotals": subtotals, "annex": annex, "unknown_ways": [*unknown_ways]}

    def checked() -> Iterator[str]:
        is_checked = False
        for piece in canonical_pieces(made):
            if not is_checked and not is_plain(piece):
                check_texts(made)
                is_checked = True
            yield piece

    return Body(lines, subtotals, annex, [*unknown_ways], digest_of(checked()))


def document_head(
    *,
    kind: DocumentType,
    number: str | None,
    issue_date: date | None,
    due_date: date | None,
    seller: LegalEntity,
    buyer: Account,
    owed: Sequence[Owed],
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
    assert {part.payer for part in owed} == {buyer.id}, f"the charges are those of {buyer.id}"
    if number is not None:
        check_kind(kind, preceding, with_due_date=due_date is not None)
    taxes, sign, currency = [_tax(part, payer) for part in owed], kind.sign, owed[0].currency
    categories = {tax.category for tax in taxes}
    check_taxes(seller, buyer, categories)
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
        "deliver_to_country_code": payer.address.country if VatCategory.INTRA_COMMUNITY in categories else None,
        "invoicing_period": _period(period),
        "payment_instructions": _payment(seller, number),
        "document_totals": _totals(owed, sign),
        "vat_breakdown": [_vat(tax, currency, sign) for tax in taxes],
        "body_digest": body_digest,
        "snapshot": snapshot,
        "certificates": _certificates(certificates),
    }
    text = canonical_text(made)
    if not is_plain(text):
        check_texts(made)
    return {**made, "digest": digest_of([text])}


def _tax(owed: Owed, payer: Payer) -> TaxGroup:
    """The tax on a part: it has one category and rate, so one group; of nothing, if nothing is owed."""
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
    return {
        "devices_by_state": dict(summary.devices_by_state),
        "digest": summary.digest,
        "decisions": [*summary.decisions],
        "doubtful": [*summary.doubtful],
        "unknown": summary.unknown,
    }


def _totals(owed: Sequence[Owed], sign: int) -> Document:
    currency = owed[0].currency
    net, tax = (sign * sum(getattr(part, name) for part in owed) for name in ("net_minor", "tax_minor"))
    gross = net + tax
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
        "vat_category_rate": rate_text(tax),
        "vat_exemption_reason_text": tax.exemption_reason,
        "vat_category_taxable_amount": amount(sign * tax.taxable_minor, currency),
        "vat_category_tax_amount": amount(sign * tax.tax_minor, currency),
    }
