"""What is still to be posted: the difference between what a payer owes now and what all documents so far say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple, Self

from cloud_jobs.billing.contracts import VatCategory
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, RatedAccount, TaxGroup


class PostedSum(NamedTuple):
    """What was posted for one key, on all documents together."""

    quantity: int = 0
    free: int = 0
    amount_minor: int = 0


class TaxKey(NamedTuple):
    """What is taxed together. The reason of an exemption is a part of it: a document states one for each group."""

    category: VatCategory
    rate: Decimal
    exemption_reason: str | None


class PostedTax(NamedTuple):
    """What was taxable and the tax on it, on all documents together."""

    taxable_minor: int = 0
    tax_minor: int = 0


@dataclass(frozen=True, slots=True)
class Posted:
    """The sums of an invoice and its notes; keys whose sums are all 0 are left out."""

    charges: Mapping[ChargeKey, PostedSum]
    taxes: Mapping[TaxKey, PostedTax]

    @classmethod
    def of(cls, documents: Iterable[RatedAccount]) -> Self:
        """The sums of documents, in any order. None at all: nothing was posted."""
        charges: dict[ChargeKey, PostedSum] = {}
        taxes: dict[TaxKey, PostedTax] = {}
        for document in documents:
            for charge in document.charges:
                before = charges.get(charge.key, PostedSum())
                charges[charge.key] = PostedSum(
                    before.quantity + charge.quantity,
                    before.free + charge.free,
                    before.amount_minor + charge.amount_minor,
                )
            for group in document.taxes:
                key = TaxKey(group.category, group.rate, group.exemption_reason)
                taxable, tax = taxes.get(key, PostedTax())
                taxes[key] = PostedTax(taxable + group.taxable_minor, tax + group.tax_minor)
        return cls(
            {key: found for key, found in charges.items() if any(found)},
            {key: found for key, found in taxes.items() if any(found)},
        )


def difference(posted: Posted, now: RatedAccount) -> RatedAccount:
    """The charges and taxes of the note that brings the sum of all documents to `now`; none of both: nothing to post.

    A charge is there if its quantity, what of it is free, or its amount differ. The tax is the difference of the taxes
    and not that of the note's own sum, so that all documents together have the tax of the whole.
    """
    present = {charge.key: charge for charge in now.charges}
    charges = []
    for key in sorted(present.keys() | posted.charges.keys(), key=lambda key: key.order):
        charge = present.get(key)
        quantity, free, amount = posted.charges.get(key, PostedSum())
        if charge is None:
            change = Charge(key=key, quantity=-quantity, free=-free, amount_minor=-amount, metered=None)
        else:
            change = Charge(
                key=key,
                quantity=charge.quantity - quantity,
                free=charge.free - free,
                amount_minor=charge.amount_minor - amount,
                metered=charge.metered,
            )
        if change.quantity or change.free or change.amount_minor:
            charges.append(change)
    note = RatedAccount(payer=now.payer, currency=now.currency, charges=tuple(charges), taxes=_tax_changes(posted, now))
    assert note.net_minor == now.net_minor - sum(found.amount_minor for found in posted.charges.values())
    assert note.tax_minor == now.tax_minor - sum(found.tax_minor for found in posted.taxes.values())
    return note


def _tax_changes(posted: Posted, now: RatedAccount) -> tuple[TaxGroup, ...]:
    sums = Posted.of([now]).taxes
    changes = []
    for key in sorted(
        sums.keys() | posted.taxes.keys(), key=lambda key: (key.category, key.rate, key.exemption_reason or "")
    ):
        taxable = sums.get(key, PostedTax()).taxable_minor - posted.taxes.get(key, PostedTax()).taxable_minor
        tax = sums.get(key, PostedTax()).tax_minor - posted.taxes.get(key, PostedTax()).tax_minor
        if taxable or tax:
            changes.append(
                TaxGroup(
                    category=key.category,
                    rate=key.rate,
                    exemption_reason=key.exemption_reason,
                    taxable_minor=taxable,
                    tax_minor=tax,
                )
            )
    return tuple(changes)
