"""What a payer owes for a period: a pure function of what was agreed and what was used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cloud_jobs.billing.errors import AmountTooLarge
from cloud_jobs.billing.rating.account_rating import AccountRating, Metered
from cloud_jobs.billing.rating.caps import Left, daily_caps, minimum_fee, period_caps
from cloud_jobs.billing.rating.cells import Cell
from cloud_jobs.billing.rating.charges import Charge, RatedAccount
from cloud_jobs.billing.rating.contract import RatingContract
from cloud_jobs.billing.rating.price_book import PriceBooks
from cloud_jobs.billing.rating.tax import tax_group

MAX_CHARGE_MINOR: Final = 10**13
"""The largest charge: a hundred thousand of them still fit into the integers of the register's tables."""


def rate(
    contract: RatingContract, cells: Iterable[Cell], metered: Metered, books: PriceBooks | None = None
) -> RatedAccount:
    """The charges of a payer and its children, and the tax on them.

    Cells in any order and any pieces; each account of the tree by itself: usage, daily caps, period caps, minimum fee.
    `books`: kept from payer to payer, it saves reading the same tariff anew. Raises UnpricedZone, NoTermsInForce,
    MissingRate, AmountTooLarge, BadReference.
    """
    books = books or PriceBooks()
    ratings = {
        terms.account: AccountRating(terms, books.book(terms.tariffs, contract), contract, metered)
        for terms in contract.accounts
    }
    for cell in cells:
        ratings[cell.account].add(cell)
    charges = [charge for rating in ratings.values() for charge in _of_account(rating)]
    charges.sort(key=lambda charge: charge.key.order)
    for charge in charges:
        if abs(charge.amount_minor) > MAX_CHARGE_MINOR:
            raise AmountTooLarge(charge.key.account, charge.key.price, charge.amount_minor)
    net = sum(charge.amount_minor for charge in charges)
    return RatedAccount(
        payer=contract.payer,
        currency=contract.currency,
        charges=tuple(charges),
        taxes=(tax_group(contract.vat, net),),
    )


def _of_account(rating: AccountRating) -> list[Charge]:
    charges = rating.usage_charges()
    if any(tariff.caps for tariff in rating.book.tariffs):
        left = Left(rating.account, charges)
        charges += daily_caps(rating, left)
        charges += period_caps(rating.book, left)
        total = sum(charge.amount_minor for charge in charges)
        assert total >= 0, "caps took off more than there was"
    charges += minimum_fee(rating.account, rating.book, sum(charge.amount_minor for charge in charges))
    return charges
