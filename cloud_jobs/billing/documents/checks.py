"""What must hold before a document is made: texts that can be shown, and the facts that EN 16931 asks for.

What contracts can say by themselves was judged where they entered, by the same rules; here are those that a document
has with its kind, and with texts that come from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from cloud_jobs.billing.contracts import NEEDS_BUYERS_VAT_ID, NEEDS_SELLERS_VAT_ID, Account, LegalEntity, VatCategory
from cloud_jobs.billing.documents.errors import MissingFact, UnusableText
from cloud_jobs.billing.documents.facts import DocumentType, PrecedingInvoice
from geo.spatial.ids import UNSHOWN

# how JSON writes controls; a text with a backslash before such a letter looks alike, and is looked at closely
_ESCAPED: Final = re.compile(r"\\[bfnrtu]")


def is_plain(text: str) -> bool:
    """Whether JSON, in which ends of lines and controls are escaped, has no text that `check_texts` could refuse."""
    # most have none: of ASCII only the escaped controls and DEL are not to be used
    if text.isascii() and "\\" not in text and "\x7f" not in text:
        return True
    return not (UNSHOWN.search(text) or _ESCAPED.search(text))


def check_texts(value: Any, where: str = "") -> None:
    """Look at every text of plain values, keys included. Raises UnusableText, which names where it stands."""
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
    """That one document can have these categories of VAT, with the VAT ids that they need. Raises MissingFact."""
    if VatCategory.OUT_OF_SCOPE in categories and len(categories) > 1:
        raise MissingFact("what is not subject to VAT stands on a document by itself", "BR-O-11")
    assert buyer.payer is not None
    for category in sorted(categories):
        for of, vat_id, rules in (
            (f"legal entity {seller.id}", seller.vat_id, NEEDS_SELLERS_VAT_ID),
            (f"account {buyer.id}", buyer.payer.vat_id, NEEDS_BUYERS_VAT_ID),
        ):
            if not vat_id and (rule := rules.get(category)):
                raise MissingFact(f"{of} has no vat_id, which VAT category {category} needs", rule)


def check_kind(kind: DocumentType, preceding: PrecedingInvoice | None, *, with_due_date: bool) -> None:
    """That a note names its invoice, an invoice none, and that what is to be paid says until when."""
    if (kind is DocumentType.INVOICE) != (preceding is None):
        raise MissingFact("a credit or debit note names the invoice that it corrects, an invoice names none", "BG-3")
    if (kind is DocumentType.CREDIT_NOTE) == with_due_date:
        raise MissingFact("invoices and debit notes have a due date, credit notes have none", "BR-CO-25")
