"""What must hold before a document is made: texts that can be shown, and the facts that EN 16931 asks for."""

from __future__ import annotations

import re
from typing import Any, Final

from cloud_jobs.billing.contracts import Account, LegalEntity, Payer
from cloud_jobs.billing.contracts.account import VatCategory
from cloud_jobs.billing.documents.codes import COUNTRIES, PAYMENT_MEANS, VAT_PREFIXES
from cloud_jobs.billing.documents.errors import MissingFact, UnusableText
from cloud_jobs.billing.documents.facts import DocumentType, PrecedingInvoice

# Controls and ends of lines, halves of surrogate pairs, what is no character, and the marks that turn the direction of
# what follows: with them an amount or a name reads otherwise than it is stored. XML 1.0 has no form for most of them.
_UNUSABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
    + "]"
)
# how JSON writes controls; a text with a backslash before such a letter looks alike, and is looked at closely
_ESCAPED: Final = re.compile(r"\\[bfnrtu]")
_WITH_BUYERS_VAT: Final = {VatCategory.REVERSE_CHARGE: "BR-AE-02", VatCategory.INTRA_COMMUNITY: "BR-IC-02"}
_WITH_SELLERS_VAT_ID: Final = {VatCategory.INTRA_COMMUNITY: "BR-IC-02", VatCategory.EXPORT: "BR-G-02"}


def check_text_of(value: Any, text: str) -> None:
    """`check_texts` of plain values whose JSON, with ends of lines and controls escaped, is `text`: looked at once."""
    # most are: of ASCII only the escaped controls and DEL are not to be used
    if text.isascii() and "\\" not in text and "\x7f" not in text:
        return
    if _UNUSABLE.search(text) or _ESCAPED.search(text):
        check_texts(value)


def check_texts(value: Any, where: str = "") -> None:
    """Look at every text of plain values, keys included. Raises UnusableText, which names where it stands."""
    match value:
        case str():
            if found := _UNUSABLE.search(value):
                raise UnusableText(where or "a text", ord(found.group()))
        case dict():
            for key, inner in value.items():
                check_texts(key, f"a key of {where}")
                check_texts(inner, f"{where}.{key}" if where else key)
        case list():
            for inner in value:
                check_texts(inner, where)


def check_parties(seller: LegalEntity, buyer: Account, payer: Payer) -> None:
    """That seller and buyer have what the category of VAT asks for. Raises MissingFact."""
    category = payer.vat.category
    if category is not VatCategory.OUT_OF_SCOPE and not (seller.vat_id or seller.tax_registration_id):
        raise MissingFact(f"legal entity {seller.id} has neither vat_id nor tax_registration_id", "BR-S-02 and others")
    if not seller.vat_id and (rule := _WITH_SELLERS_VAT_ID.get(category)):
        raise MissingFact(f"legal entity {seller.id} has no vat_id, which VAT category {category} needs", rule)
    if not payer.vat_id and (rule := _WITH_BUYERS_VAT.get(category)):
        raise MissingFact(f"account {buyer.id} has no vat_id, which VAT category {category} needs", rule)
    for of, vat_id in ((f"legal entity {seller.id}", seller.vat_id), (f"account {buyer.id}", payer.vat_id)):
        if vat_id and vat_id[:2] not in VAT_PREFIXES:
            raise MissingFact(f"the vat_id {vat_id} of {of} does not begin with a country", "BR-CO-09")
    for of, country in (
        (f"legal entity {seller.id}", seller.address.country),
        (f"account {buyer.id}", payer.address.country),
    ):
        if country not in COUNTRIES:
            raise MissingFact(f"the country {country} of {of} is not in ISO 3166-1", "BR-CL-14")
    if seller.payment.means_code not in PAYMENT_MEANS:
        raise MissingFact(f"the means_code {seller.payment.means_code} of {seller.id} is not in UNCL 4461", "BR-CL-16")


def check_kind(kind: DocumentType, preceding: PrecedingInvoice | None, *, with_due_date: bool) -> None:
    """That a note names its invoice, an invoice none, and that what is to be paid says until when."""
    if (kind is DocumentType.INVOICE) != (preceding is None):
        raise MissingFact("a credit or debit note names the invoice that it corrects, an invoice names none", "BG-3")
    if (kind is DocumentType.CREDIT_NOTE) == with_due_date:
        raise MissingFact("invoices and debit notes have a due date, credit notes have none", "BR-CO-25")
