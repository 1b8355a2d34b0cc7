"""How the amount of a charge arises: its pool, the allowance, the tiers, the rate, one rounding, its share. Pure.

The steps are those of docs/rating.md, by the numbers of the pool that the charge is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from cloud_jobs.billing.contracts import Pool, Price
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.meters import round_ratio
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, RatingContract
from cloud_jobs.billing.rating.price_book import worth_of
from cloud_jobs.billing.rating.price_text import price_text
from cloud_jobs.billing.rating.tiers import parts_of, units_to_pay


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolArithmetic:
    """The pool of a charge, from its quantity to its amount.

    `quantity`: in base units, of `charges` charges and `devices` devices. `paid`: units of the price beyond the
    allowance, in parts of which each unit costs the same, and what it costs in `currency`. `rate`: what the payer's
    currency has for one of it. `exact`: in the payer's currency. `share` of `quantity`, `share_minor` of
    `rounded_minor`: the charge's own part.
    """

    price: Price
    currency: str
    quantity: int
    charges: int
    devices: int
    paid: tuple[tuple[Fraction, Decimal], ...]
    rate: Fraction
    exact: Fraction
    rounded_minor: int
    share: int
    share_minor: int

    @property
    def units(self) -> Fraction:
        """The quantity in units of the price."""
        return Fraction(self.quantity, self.price.base_per_unit)


def arithmetic_of(contract: RatingContract, charges: Iterable[Charge], key: ChargeKey) -> PoolArithmetic | None:
    """Of a usage charge, by all charges that were rated with it; None: it is not among them."""
    price, currency = _price_of(contract, key)
    pool = [one for one in charges if _is_of_pool(one.key, key, price)]
    mine = next((one for one in pool if one.key == key), None)
    if mine is None:
        return None
    quantity, minor = sum(one.quantity for one in pool), 10 ** exponent(contract.currency)
    paid = parts_of(price, units_to_pay(price, Fraction(quantity, price.base_per_unit)))
    rate = worth_of(currency, contract) / minor
    exact = sum((units * Fraction(amount) for units, amount in paid), Fraction(0)) * rate
    return PoolArithmetic(
        price=price,
        currency=currency,
        quantity=quantity,
        charges=len(pool),
        devices=len({(one.key.tenant, one.key.device) for one in pool}),
        paid=tuple(paid),
        rate=rate,
        exact=exact,
        rounded_minor=round_ratio(*(exact * minor).as_integer_ratio()),
        share=mine.quantity,
        share_minor=mine.amount_minor,
    )


def _price_of(contract: RatingContract, key: ChargeKey) -> tuple[Price, str]:
    """Prices of equal words are one price, whatever version, zone or window they are of."""
    return next(
        (price, tariff.currency)
        for terms in contract.accounts
        if terms.account == key.account
        for tariff in (one.tariff for one in terms.tariffs)
        for price in tariff.prices
        if price.meter is key.meter and price_text(price, tariff.currency) == key.price
    )


def _is_of_pool(one: ChargeKey, key: ChargeKey, price: Price) -> bool:
    same = (one.account, one.kind, one.meter, one.price) == (key.account, ChargeKind.USAGE, key.meter, key.price)
    return same and (price.pool is Pool.ACCOUNT or (one.tenant, one.device) == (key.tenant, key.device))


def steps(made: PoolArithmetic, payers_currency: str) -> Iterator[tuple[str, str]]:
    """Each step in words, and its figure; what says nothing is left out."""
    unit, price = made.price.unit, made.price
    if made.charges > 1:
        of = f"{made.devices} vehicles of the account" if made.devices > 1 else "this vehicle"
        yield f"the pool: {made.charges} charges of {of} at this price", f"{_text(made.units)} {unit}"
    if price.allowance:
        left = sum((units for units, _ in made.paid), Fraction(0))
        yield f"less the allowance of {price.allowance:f} {unit}", f"{_text(left)} {unit}"
    for units, amount in made.paid:
        cost = units * Fraction(amount)
        yield f"{_text(units)} {unit} × {amount:f} {made.currency}", f"{_text(cost)} {made.currency}"
    if made.currency != payers_currency:
        yield f"exchanged at {_text(made.rate)}", f"{_text(made.exact)} {payers_currency}"
    elif len(made.paid) > 1:
        yield "together", f"{_text(made.exact)} {payers_currency}"
    digits = exponent(payers_currency)
    rounded, share = (Decimal(minor).scaleb(-digits) for minor in (made.rounded_minor, made.share_minor))
    yield "rounded, a half up", f"{rounded:f} {payers_currency}"
    if made.charges > 1:
        part = _text(Fraction(made.share, price.base_per_unit))
        yield f"the part of {part} of {_text(made.units)} {unit}, by largest remainder", f"{share:f} {payers_currency}"


def _text(number: Fraction) -> str:
    """With at least two and at most nine digits after the point; what has more begins with ≈."""
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    shown = round(exact, 9)
    whole, _, digits = f"{shown:f}".partition(".")
    return f"{'' if Fraction(shown) == number else '≈ '}{whole}.{digits.rstrip('0').ljust(2, '0')}"
