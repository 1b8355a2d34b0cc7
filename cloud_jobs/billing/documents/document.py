"""An invoice, credit note or debit note as one plain document, from which all forms are generated.

Names are the business terms of EN 16931 in snake_case; docs/invoices.md lists them with their numbers. A credit note
states amounts as positive; times `posting_sign` they are what is posted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.contracts import (
    NEEDS_BUYERS_VAT_ID,
    NEEDS_SELLERS_VAT_ID,
    Account,
    Address,
    Endpoint,
    LegalEntity,
    Payer,
    VatCategory,
)
from cloud_jobs.billing.documents.canonical import (
    FORMAT,
    Annex,
    Columns,
    Document,
    MissingFact,
    UnusableText,
    annex_columns,
    canonical_pieces,
    canonical_text,
    digest_of,
)
from cloud_jobs.billing.rating import (
    Charge,
    ChargeKey,
    ChargeKind,
    MeteredRows,
    Owed,
    RatedAccount,
    TaxGroup,
    signed_parts,
    tax_group,
)
from cloud_jobs.billing.rating.terms import name_of, unit_of
from cloud_jobs.billing.units import MEASURE_OF, Meter, amount_text, exponent, place_text, quantity_text, round_ratio
from geo.reference.moments import stamp
from geo.spatial.ids import UNSHOWN

# The head of a document: type, period, references, completeness.


class DocumentType(StrEnum):
    """UNTDID 1001 (BT-3)."""

    INVOICE = "380"
    CREDIT_NOTE = "381"
    DEBIT_NOTE = "383"

    @property
    def sign(self) -> int:
        """-1 for a credit note, which states amounts as positive."""
        return -1 if self is DocumentType.CREDIT_NOTE else 1

    @property
    def heading(self) -> str:
        return self.name.capitalize().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoicingPeriod:
    """BG-14: whole local days, both included, and their start and end (excluded) in UTC."""

    first_day: date
    last_day: date
    start: datetime
    end: datetime
    time_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecedingInvoice:
    """BG-3: the invoice that a note corrects."""

    number: str
    issue_date: date


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSummary:
    """The number of devices by state of completeness, and the SHA-256 (hex) of all their certificates.

    `decisions`: decisions on devices, as text. `doubtful`: doubts on devices, as text. `unknown`: what no line bills
    because it is unknown; "" for nothing.
    """

    devices_by_state: Mapping[str, int]
    digest: str
    decisions: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    unknown: str = ""


PREVIEW_MARK: Final = "PREVIEW - NOT AN INVOICE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What marks a document as the cost of a running period as of one moment.

    `devices`: their number. `incomplete`: by device (TENANT/DEVICE), why its usage up to that moment is not known.
    `reasons`: why the sum may change, apart from devices and time.
    """

    as_of: datetime
    devices: int
    incomplete: Mapping[str, Sequence[str]]
    reasons: tuple[str, ...] = ()


# Checks before a document is made: printable texts and the facts that EN 16931 requires.

# escapes of control characters; texts with a backslash before such a letter are checked in full
_ESCAPED: Final = re.compile(r"\\[bfnrtu]")


def is_plain(text: str) -> bool:
    """Whether `check_texts` would accept every text in this JSON, in which control characters are escaped."""
    # most texts: of ASCII, only control characters and DEL are unusable
    if text.isascii() and "\\" not in text and "\x7f" not in text:
        return True
    return not (UNSHOWN.search(text) or _ESCAPED.search(text))


def check_texts(value: Any, where: str = "") -> None:
    """Checks every text of plain values, keys included. Raises UnusableText with its place."""
    match value:
        case str():
            if found := UNSHOWN.search(value):
                raise UnusableText(where or "a text", ord(found.group()))
        case dict():
            for key, inner in value.items():
                check_texts(key, f"a key of {where}")
                check_texts(inner, f"{where}.{key}" if where else key)
        case list() | tuple():
            for inner in value:
                check_texts(inner, where)


def check_taxes(seller: LegalEntity, buyer: Account, categories: Collection[VatCategory]) -> None:
    """Checks that one document may have these VAT categories, with the VAT ids they need. Raises MissingFact."""
    if VatCategory.OUT_OF_SCOPE in categories and len(categories) > 1:
        raise MissingFact("charges that are not subject to VAT need a document of their own", "BR-O-11")
    assert buyer.payer is not None
    for category in sorted(categories):
        for of, vat_id, rules in (
            (f"legal entity {seller.id}", seller.vat_id, NEEDS_SELLERS_VAT_ID),
            (f"account {buyer.id}", buyer.payer.vat_id, NEEDS_BUYERS_VAT_ID),
        ):
            if not vat_id and (rule := rules.get(category)):
                raise MissingFact(f"{of} has no vat_id, which VAT category {category} needs", rule)


def check_kind(kind: DocumentType, preceding: PrecedingInvoice | None, *, is_due: bool) -> None:
    """Notes name their invoice, invoices none; what is to be paid is due. Raises MissingFact."""
    if (kind is DocumentType.INVOICE) != (preceding is None):
        raise MissingFact("a credit or debit note names the invoice that it corrects, an invoice names none", "BG-3")
    if not is_due:
        raise MissingFact("invoices and debit notes have a due date", "BR-CO-25")


# Lines of a document: equal charges share one line for all vehicles.

NOTHING_USED: Final = "Nothing was used in this period"
NOTHING_KNOWN: Final = "No usage is known yet"
_PIECE: Final = "C62"
_OF_VEHICLE: Final = ("tenant", "device")
_ALIKE: Final = itemgetter(*(at for at, name in enumerate(ChargeKey._fields) if name not in _OF_VEHICLE))


class _Group(NamedTuple):
    """The charges of a line, and their sums."""

    quantity: int
    free: int
    amount_minor: int
    gross_minor: int
    charges: Sequence[Charge]

    @classmethod
    def of(cls, charges: Sequence[Charge], sign: int) -> _Group:
        # column by column, because a large month has ten million charges
        _, quantities, free, amounts, *_, gross = zip(*charges, strict=True) if charges else ((),) * 5
        return cls(sign * sum(quantities), sign * sum(free), sign * sum(amounts), sign * sum(gross), charges)


def amount(minor: int, currency: str) -> Document:
    """An amount in minor units and as text."""
    return {"minor": minor, "text": amount_text(minor, currency)}


def _stated_rate(category: str, rate: str) -> str | None:
    """None if not subject to VAT, which has no rate, not even 0 (BR-O-05)."""
    return None if category == VatCategory.OUT_OF_SCOPE else rate


def lines_and_annex(
    charges: Iterable[Charge], payer: str, names: Mapping[str, str], currency: str, sign: int, *, tax: str = ""
) -> tuple[list[Document], list[Document], Columns]:
    """Lines, sub-totals of each account and region, and annex; the payer first, then its children.

    `tax`: of the line that a document without charges has.
    """
    alike: defaultdict[tuple[Any, ...], list[Charge]] = defaultdict(list)
    for charge in charges:
        alike[_ALIKE(charge.key)].append(charge)
    groups = {ChargeKey._make((*of[:2], "", "", *of[2:])): _Group.of(members, sign) for of, members in alike.items()}
    ordered = sorted(groups.items(), key=lambda item: _order(item[0], payer)) or [
        (ChargeKey(payer, tax=tax), _Group.of((), 1))
    ]
    lines = [_line(number, key, group, names, currency) for number, (key, group) in enumerate(ordered, 1)]
    annex = annex_columns((group.charges for _, group in ordered), sign)
    return lines, list(_subtotals(lines, currency)), annex


def charges_of(document: Document) -> tuple[Charge, ...]:
    """The rated charges of a document, in the order of their keys."""
    sign = document["posting_sign"]
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}
    charges = (_charge(line_of[entry["line"]], entry, sign) for entry in document["annex"])
    return tuple(sorted(charges, key=lambda charge: charge.key.order))


def _order(key: ChargeKey, payer: str) -> tuple[Any, ...]:
    # charges without region, such as the minimum fee, come last in their account
    return (key.account != payer, key.account, not key.region, key.order)


def _line(number: int, key: ChargeKey, group: _Group, names: Mapping[str, str], currency: str) -> Document:
    # a cap has no quantity, a fee has pieces
    meter = key.meter if key.kind is ChargeKind.USAGE else None
    vehicles = {(charge.key.tenant, charge.key.device) for charge in group.charges if charge.key.device}
    capped = group.charges if key.kind is ChargeKind.CAP else ()
    gross = group.gross_minor and {"gross_amount": amount(group.gross_minor, currency)}
    category, rate = key.tax.split(" ")
    return {
        "invoice_line_identifier": number,
        "account": key.account,
        "account_name": names.get(key.account, key.account),
        "region": key.region,
        "kind": key.kind.value,
        "meter": key.meter and key.meter.value,
        "zone": key.zone,
        "window": key.window,
        "price": key.price,
        "vehicles": len(vehicles),
        "days": sorted({day for charge in capped for day in (charge.parts or "").split()}),
        "quantity": _measured(meter, group, unit_of(key.price)),
        **_stated(meter, group.quantity, group.amount_minor, currency, unit=unit_of(key.price)),
        "item_name": _item_name(key) if group.charges else NOTHING_USED,
        "invoice_line_net_amount": amount(group.amount_minor, currency),
        "invoiced_item_vat_category_code": category,
        "invoiced_item_vat_rate": _stated_rate(category, rate),
        **(gross or {}),
    }


def _measured(meter: Meter | None, group: _Group, unit: str) -> Document | None:
    """In the unit of the price, so that a customer can multiply."""
    if meter is None:
        return None
    measure = MEASURE_OF[meter]
    return {
        "base": group.quantity,
        "base_unit": measure.base,
        "free_base": group.free,
        "text": quantity_text(meter, group.quantity, unit),
        "free_text": quantity_text(meter, group.free, unit),
        "unit": measure.sold_by(unit)[0],
    }


def _stated(meter: Meter | None, quantity: int, amount_minor: int, currency: str, *, unit: str) -> Document:
    """Quantity and price by EN 16931: their product by the base quantity is exactly the line's amount."""
    text, code = str(quantity), _PIECE
    if meter is not None:
        text, code = quantity_text(meter, quantity, unit), MEASURE_OF[meter].sold_by(unit)[1].code
    whole, base = Decimal(text), text.removeprefix("-")
    if not whole or (amount_minor and (whole > 0) != (amount_minor > 0)):
        pieces = (amount_minor > 0) - (amount_minor < 0)
        text, base, code = str(pieces), "1", _PIECE
    return {
        "invoiced_quantity": text,
        "invoiced_quantity_unit_of_measure_code": code,
        "item_net_price": amount_text(abs(amount_minor), currency),
        "item_price_base_quantity": base,
    }


def _item_name(key: ChargeKey) -> str:
    name = name_of(key.price)
    if key.kind is ChargeKind.FEE:
        return name
    if key.kind is not ChargeKind.USAGE or key.meter is None:
        # a cap covers all places; its price names several meters
        return ": ".join(
            part for part in (key.kind.value.capitalize(), name or (key.meter and key.meter.value)) if part
        )
    place, window = place_text(key.meter, key.zone), key.window and f"window {key.window}"
    return ", ".join(part for part in (name or key.meter.value.capitalize(), place, window) if part)


def _subtotals(lines: list[Document], currency: str) -> Iterator[Document]:
    for (account, name, region), found in groupby(
        lines, key=lambda line: (line["account"], line["account_name"], line["region"])
    ):
        members = list(found)
        yield {
            "account": account,
            "account_name": name,
            "region": region,
            "first_line": members[0]["invoice_line_identifier"],
            "last_line": members[-1]["invoice_line_identifier"],
            "net_amount": amount(sum(line["invoice_line_net_amount"]["minor"] for line in members), currency),
        }


def charge_key(line: Document, tenant: str, device: str) -> ChargeKey:
    """The key of a device's charge on a line."""
    return ChargeKey(
        account=line["account"],
        region=line["region"],
        tenant=tenant,
        device=device,
        kind=ChargeKind(line["kind"]),
        meter=line["meter"] and Meter(line["meter"]),
        zone=line["zone"],
        window=line["window"],
        price=line["price"],
        tax=f"{line['invoiced_item_vat_category_code']} {line['invoiced_item_vat_rate'] or 0}",
    )


def _charge(line: Document, entry: Document, sign: int) -> Charge:
    metered = entry["metered"]
    return Charge(
        key=charge_key(line, entry["tenant"], entry["device"]),
        quantity=sign * entry["quantity_base"],
        free=sign * entry["free_base"],
        amount_minor=sign * entry["amount_minor"],
        metered=metered
        and MeteredRows(
            metered["rows"], _moment(metered["first_hour"]), _moment(metered["last_hour"]), metered["digest"]
        ),
        parts=signed_parts(entry.get("parts"), sign),
        gross_minor=sign * entry.get("gross_minor", 0),
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


CREDITED: Final = "This amount is credited; nothing is to be paid."


class Body(NamedTuple):
    """Lines, sub-totals and annex, and the SHA-256 (hex) over them, which the head contains."""

    lines: list[Document]
    subtotals: list[Document]
    annex: Columns
    digest: str

    @property
    def parts(self) -> Document:
        return {"lines": self.lines, "subtotals": self.subtotals, "annex": Annex(self.annex)}


def document_body(
    rated: RatedAccount,
    *,
    kind: DocumentType,
    buyer: Account,
    names: Mapping[str, str],
    nothing: str = NOTHING_USED,
) -> Body:
    """The part of a document that does not depend on its number and dates. Raises UnusableText, MissingFact.

    `nothing`: the item of the line if there are no charges.
    """
    assert buyer.payer is not None, f"account {buyer.id} does not pay itself"
    names = {**names, buyer.id: buyer.name}
    tax = _taxes(rated.owed, buyer.payer)[0].tax
    lines, subtotals, annex = lines_and_annex(rated.charges, buyer.id, names, rated.currency, kind.sign, tax=tax)
    if not annex["line"]:
        # the only line
        lines[0]["item_name"] = nothing
    made = {"lines": lines, "subtotals": subtotals, "annex": annex}

    def checked() -> Iterator[str]:
        is_checked = False
        for piece in canonical_pieces(made):
            if not is_checked and not is_plain(piece):
                check_texts(made)
                is_checked = True
            yield piece

    return Body(lines, subtotals, annex, digest_of(checked()))


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
    tax_rate: Decimal | None = None,
    preceding: PrecedingInvoice | None = None,
    reason: str | None = None,
    preview: Preview | None = None,
) -> Document:
    """The document without its body, sealed with the digest of the whole. Raises UnusableText, MissingFact."""
    assert (number is None) == (issue_date is None), "a document has a number from the day it is issued"
    assert preview is None or number is None, "a preview has no number"
    payer = buyer.payer
    assert payer is not None, f"account {buyer.id} does not pay itself"
    assert owed.payer == buyer.id, f"the charges are those of {buyer.id}"
    is_credited = kind is DocumentType.CREDIT_NOTE or owed.payable_minor < 0
    if number is not None:
        check_kind(kind, preceding, is_due=is_credited or due_date is not None)
    taxes, sign, currency = _taxes(owed, payer), kind.sign, owed.currency
    categories = {tax.category for tax in taxes}
    check_taxes(seller, buyer, categories)
    made: Document = {
        "format": FORMAT,
        "invoice_number": number,
        "invoice_issue_date": issue_date and issue_date.isoformat(),
        "invoice_type_code": kind.value,
        "invoice_currency_code": currency,
        "posting_sign": sign,
        "payment_due_date": due_date.isoformat() if due_date and not is_credited else None,
        "payment_terms": CREDITED if is_credited else None,
        "profile": payer.profile and payer.profile.value,
        "buyer_reference": payer.buyer_reference,
        "purchase_order_reference": payer.order_reference,
        "invoice_note": reason,
        "preceding_invoice": preceding
        and {
            "preceding_invoice_reference": preceding.number,
            "preceding_invoice_issue_date": preceding.issue_date.isoformat(),
        },
        "seller": _seller(seller),
        "buyer": {
            "buyer_identifier": buyer.id,
            "buyer_name": buyer.name,
            "buyer_vat_identifier": payer.vat_id,
            "buyer_postal_address": _address(payer.address),
            "buyer_electronic_address": _endpoint(payer.endpoint),
        },
        "deliver_to_country_code": payer.address.country if VatCategory.INTRA_COMMUNITY in categories else None,
        "invoicing_period": _period(period),
        "payment_instructions": None if preview else _payment(seller, payer, number, owed, kind),
        "document_totals": _totals(owed, sign),
        "vat_accounting": _vat_accounting(seller, owed, sign, tax_rate),
        "vat_breakdown": [
            {
                "vat_category_code": tax.category.value,
                "vat_category_rate": _stated_rate(*tax.tax.split(" ")),
                "vat_exemption_reason_text": tax.exemption_reason,
                "vat_category_taxable_amount": amount(sign * tax.taxable_minor, currency),
                "vat_category_tax_amount": amount(sign * tax.tax_minor, currency),
            }
            for tax in taxes
        ],
        "body_digest": body_digest,
        "snapshot": snapshot,
        "certificates": _certificates(certificates),
        **({"preview": _preview(preview)} if preview else {}),
    }
    text = canonical_text(made)
    if not is_plain(text):
        check_texts(made)
    return {**made, "digest": digest_of([text])}


def _taxes(owed: Owed, payer: Payer) -> Sequence[TaxGroup]:
    """One tax group for each category and rate; of nothing if nothing is owed."""
    if not owed.taxes and not owed.net_minor:
        return [tax_group(payer.vat.tax, payer.vat.exemption_reason, 0)]
    taxable = sum(group.taxable_minor for group in owed.taxes)
    if not owed.taxes or taxable != owed.net_minor or len({group.tax for group in owed.taxes}) < len(owed.taxes):
        raise MissingFact(
            f"the charges of {owed.payer} are {owed.net_minor}, their taxable amounts are"
            f" {[group.taxable_minor for group in owed.taxes]}: each charge is taxed once",
            "BR-CO-18, BR-S-08",
        )
    return owed.taxes


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
        "seller_electronic_address": _endpoint(seller.endpoint),
        "seller_contact": seller.contact
        and {
            "seller_contact_point": seller.contact.name,
            "seller_contact_telephone_number": seller.contact.telephone,
            "seller_contact_email_address": seller.contact.email,
        },
    }


def _endpoint(endpoint: Endpoint | None) -> Document | None:
    return None if endpoint is None else {"scheme_identifier": endpoint.scheme, "address": endpoint.id}


def _period(period: InvoicingPeriod) -> Document:
    return {
        "invoicing_period_start_date": period.first_day.isoformat(),
        "invoicing_period_end_date": period.last_day.isoformat(),
        "start": stamp(period.start),
        "end": stamp(period.end),
        "time_zone": period.time_zone,
    }


_NO_MEANS: Final = "1"
"""UNTDID 4461: not defined."""


def _payment(seller: LegalEntity, payer: Payer, number: str | None, owed: Owed, kind: DocumentType) -> Document:
    """A payer with a mandate pays by direct debit, the others as the seller says. A negative amount is not paid."""
    pay, debit = seller.payment, payer.direct_debit
    found: Document = {
        "payment_means_type_code": debit.means_code if debit else pay.means_code,
        "payment_account_identifier": None if debit else pay.iban,
        "payment_service_provider_identifier": None if debit else pay.bic,
        "mandate_reference_identifier": debit and debit.mandate,
        "bank_assigned_creditor_identifier": pay.creditor_id if debit else None,
        "debited_account_identifier": debit and debit.iban,
    }
    if owed.payable_minor < 0 and kind is not DocumentType.CREDIT_NOTE:
        found = {**dict.fromkeys(found), "payment_means_type_code": _NO_MEANS}
    return {**found, "remittance_information": number}


def _certificates(summary: CertificateSummary) -> Document:
    return {
        "devices_by_state": dict(summary.devices_by_state),
        "digest": summary.digest,
        "decisions": [*summary.decisions],
        "doubtful": [*summary.doubtful],
        "unknown": summary.unknown,
    }


def _preview(preview: Preview) -> Document:
    return {
        "mark": PREVIEW_MARK,
        "as_of": stamp(preview.as_of),
        "devices": preview.devices,
        "incomplete": [{"device": name, "reasons": [*why]} for name, why in sorted(preview.incomplete.items())],
        "reasons": [*preview.reasons],
    }


def _vat_accounting(seller: LegalEntity, owed: Owed, sign: int, rate: Decimal | None) -> Document | None:
    """The VAT in the currency in which the seller states it to its tax office."""
    currency = seller.tax_currency
    if currency is None or rate is None:
        return None
    exact = sign * owed.tax_minor * Fraction(rate) * Fraction(10) ** (exponent(currency) - exponent(owed.currency))
    return {
        "vat_accounting_currency_code": currency,
        "invoice_total_vat_amount_in_accounting_currency": amount(round_ratio(*exact.as_integer_ratio()), currency),
        "exchange_rate": f"{rate.normalize():f}",
    }


def _totals(owed: Owed, sign: int) -> Document:
    currency = owed.currency
    net, tax, rounding = sign * owed.net_minor, sign * owed.tax_minor, sign * owed.rounding_minor
    gross = net + tax
    return {
        "sum_of_invoice_line_net_amount": amount(net, currency),
        "invoice_total_amount_without_vat": amount(net, currency),
        "invoice_total_vat_amount": amount(tax, currency),
        "invoice_total_amount_with_vat": amount(gross, currency),
        "rounding_amount": amount(rounding, currency),
        "amount_due_for_payment": amount(gross + rounding, currency),
    }
