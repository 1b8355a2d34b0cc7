"""What a payer owes for a period: a pure function of what was agreed and what was used."""

from __future__ import annotations

from collections.abc import Iterable

from cloud_jobs.billing.errors import AmountTooLarge, BadUsage
from cloud_jobs.billing.rating.account_rating import AccountRating, Metered
from cloud_jobs.billing.rating.caps import Left, daily_caps, minimum_fee, period_caps
from cloud_jobs.billing.rating.cells import Cell
from cloud_jobs.billing.rating.charges import MOST_MINOR, MOST_QUANTITY, Charge, RatedAccount
from cloud_jobs.billing.rating.contract import RatingContract
from cloud_jobs.billing.rating.price_book import PriceBooks
from cloud_jobs.billing.rating.tax import tax_group


def rate(
    contract: RatingContract, cells: Iterable[Cell], metered: Metered, books: PriceBooks | None = None
) -> RatedAccount:
    """The charges of a payer and its children, and the tax on them.

    Cells in any order and any pieces; each account of the tree by itself: usage, daily caps, period caps, minimum fee.
    `books`: kept from payer to payer, it saves reading the same tariff anew. Raises UnpricedZone, NoTermsInForce,
    MissingRate, AmountTooLarge, BadUsage, BadReference.
    """
    books = books or PriceBooks()
    ratings = {
        terms.account: AccountRating(terms, books.book(terms.tariffs, contract), contract, metered)
        for terms in contract.accounts
    }
    for cell in cells:
        ratings[cell.account].add(cell)
    charges = [charge for rating in ratings.values() for charge in _of_account(rating, contract)]
    _check_bounds(charges)
    charges.sort(key=lambda charge: charge.key.order)
    net = sum(charge.amount_minor for charge in charges)
    return RatedAccount(
        payer=contract.payer,
        currency=contract.currency,
        charges=tuple(charges),
        taxes=(tax_group(contract.vat, net),),
    )


def _check_bounds(charges: list[Charge]) -> None:
    """Here and not where prices enter: with what was used, and all together, they make too much."""
    if sum(abs(one.amount_minor) for one in charges) > MOST_MINOR:
        largest = max(charges, key=lambda one: abs(one.amount_minor))
        raise AmountTooLarge(largest.key.account, largest.key.price, largest.amount_minor)
    for one in charges:
        if one.quantity > MOST_QUANTITY:
            meter, device = one.key.meter, one.key.device
            raise BadUsage(f"the {meter} of {device!r} is {one.quantity:,} base units, more than can be metered")


def _of_account(rating: AccountRating, contract: RatingContract) -> list[Charge]:
    charges = rating.usage_charges()
    if any(tariff.caps for tariff in rating.book.tariffs):
        left = Left(rating.account, charges)
        charges += daily_caps(rating, left)
        charges += period_caps(rating.book, left)
        total = sum(charge.amount_minor for charge in charges)
        assert total >= 0, "caps took off more than there was"
    total = sum(charge.amount_minor for charge in charges)
    charges += minimum_fee(rating.terms, contract, rating.book, total)
    return charges
