"""What is still to be posted: the difference between what a payer owes now and what all documents so far say.

Charges are taxed with their whole account. So where category or rate of the tax are others, no line of what is posted
stays as it was: all of it is taken back as it was taxed, and all that is owed is asked for as it is taxed now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
    """What is taxed together (BR-S-08). Not the reason of an exemption, which is words: the newest are said."""

    category: VatCategory
    rate: Decimal

    @classmethod
    def of(cls, group: TaxGroup) -> Self:
        """That of a group."""
        return cls(group.category, group.rate)


class PostedTax(NamedTuple):
    """What was taxable and the tax on it, on all documents together, and a reason that was given."""

    taxable_minor: int = 0
    tax_minor: int = 0
    exemption_reason: str | None = None


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
                taxable, tax, reason = taxes.get(TaxKey.of(group), PostedTax())
                taxes[TaxKey.of(group)] = PostedTax(
                    taxable + group.taxable_minor,
                    tax + group.tax_minor,
                    # one of several, in any order of the documents the same
                    max(reason or "", group.exemption_reason or "") or None,
                )
        return cls(
            {key: found for key, found in charges.items() if any(found)},
            {key: found for key, found in taxes.items() if found.taxable_minor or found.tax_minor},
        )


def change_in_parts(before: RatedAccount, after: RatedAccount) -> tuple[RatedAccount, ...]:
    """What brings what is posted from one account to another, in parts that are each of one category and rate of VAT.

    One, the difference, where both are taxed alike; else what is taken back and what is owed, without a part that has
    no charge.
    """
    # of a closing there is one, also where nothing is charged
    if {TaxKey.of(group) for group in before.taxes} == {TaxKey.of(group) for group in after.taxes}:
        return (difference(Posted.of([before]), after),)
    return tuple(part for part in (taken_back(before), after) if part.charges) or (after,)


def taken_back(rated: RatedAccount) -> RatedAccount:
    """The account that makes nothing of another one."""
    charges = tuple(
        one._replace(quantity=-one.quantity, free=-one.free, amount_minor=-one.amount_minor, metered=None)
        for one in rated.charges
    )
    taxes = tuple(replace(one, taxable_minor=-one.taxable_minor, tax_minor=-one.tax_minor) for one in rated.taxes)
    return replace(rated, charges=charges, taxes=taxes)


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
    for key in sorted(sums.keys() | posted.taxes.keys()):
        owed, was = sums.get(key, PostedTax()), posted.taxes.get(key, PostedTax())
        taxable, tax = owed.taxable_minor - was.taxable_minor, owed.tax_minor - was.tax_minor
        if taxable or tax:
            changes.append(
                TaxGroup(
                    category=key.category,
                    rate=key.rate,
                    exemption_reason=(owed if key in sums else was).exemption_reason,
                    taxable_minor=taxable,
                    tax_minor=tax,
                )
            )
    return tuple(changes)
