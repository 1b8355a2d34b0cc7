"""How the amount of a charge arises: its pool, the allowance, the tiers, the rate, one rounding, its share. Pure.

The steps are those of docs/rating.md, by the numbers of the pool that the charge is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from cloud_jobs.billing.contracts import Price
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.meters import round_ratio
from cloud_jobs.billing.rating import ChargeKey, RatingContract
from cloud_jobs.billing.rating.pools import (
    Place,
    PoolStep,
    RatedPrice,
    Uses,
    exact_shares,
    parts_of,
    pool_shares,
    pool_steps,
)
from cloud_jobs.billing.rating.price_book import worth_of


class PricedStep(NamedTuple):
    """What was used of a pool while its prices stayed the same, in units of the price.

    `free`: what the allowance takes. `paid`: parts of the rest of which each unit costs the same, what it costs, and in
    which currency.
    """

    units: Fraction
    free: Fraction
    paid: tuple[tuple[Fraction, Decimal, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolArithmetic:
    """A pool that a charge has a part of, from its quantity to the amount of the part.

    `price`: that of the charge. `quantity`: of the pool in base units, of `charges` charges and `devices` devices.
    `rate`: what the payer's currency has for one of `currency`. `exact`: in the payer's currency, of the pool.
    `share` of `quantity`, `share_minor` (`share_exact` before it is rounded) of `rounded_minor`: the charge's part.
    """

    price: Price
    currency: str
    quantity: int
    charges: int
    devices: int
    steps: tuple[PricedStep, ...]
    rate: Fraction
    exact: Fraction
    rounded_minor: int
    share: int
    share_exact: Fraction
    share_minor: int

    @property
    def units(self) -> Fraction:
        """The quantity in units of the price."""
        return Fraction(self.quantity, self.price.base_per_unit)


def arithmetic_of(contract: RatingContract, uses: Uses, key: ChargeKey) -> PoolArithmetic:
    """Of a usage charge, by all uses of a pool that it has a part of."""
    place = Place(key.region, key.tenant, key.device, key.zone, key.window)
    price = next(one for one, at in uses if (one.text, at) == (key.price, place))
    currencies = _currencies(contract, key.account)
    currency, minor = currencies[price.version], 10 ** exponent(contract.currency)
    shares, exact = {(one.place, one.text): one for one in pool_shares(uses)}, exact_shares(uses)
    mine = shares[place, key.price]
    whole = sum((one.minor for one in exact.values()), Fraction(0))
    return PoolArithmetic(
        price=price.price,
        currency=currency,
        quantity=sum(uses.values()),
        charges=len(shares),
        devices=len({(at.tenant, at.device) for _, at in uses}),
        steps=tuple(_priced(step, price.price.base_per_unit, currencies) for step in pool_steps(uses)),
        rate=worth_of(currency, contract) / minor,
        exact=whole / minor,
        rounded_minor=round_ratio(*whole.as_integer_ratio()),
        share=mine.quantity,
        share_exact=exact[place, key.price].minor / minor,
        share_minor=mine.amount_minor,
    )


def _currencies(contract: RatingContract, account: str) -> list[str]:
    """Of each version of the account's tariff."""
    return next(
        [one.tariff.currency for one in terms.tariffs] for terms in contract.accounts if terms.account == account
    )


def _priced(step: PoolStep, base_per_unit: int, currencies: list[str]) -> PricedStep:
    of_price: dict[str, tuple[RatedPrice, int]] = {}
    for price, _, quantity in step.uses:
        of_price[price.text] = price, of_price.get(price.text, (price, 0))[1] + quantity
    paid = []
    for price, quantity in of_price.values():
        part = Fraction(quantity, step.quantity)
        units = step.paid.per(price.price.base_per_unit)
        paid += [(one * part, amount, currencies[price.version]) for one, amount in parts_of(price.price, units)]
    return PricedStep(Fraction(step.quantity, base_per_unit), step.free / base_per_unit, tuple(paid))


def steps(made: PoolArithmetic, payers_currency: str) -> Iterator[tuple[str, str]]:
    """Each step in words, and its figure; what says nothing is left out."""
    unit, price, paid = made.price.unit, made.price, [one for step in made.steps for one in step.paid]
    if made.charges > 1:
        of = f"{made.devices} vehicles of the account" if made.devices > 1 else "this vehicle"
        yield f"the pool: {made.charges} charges of {of}", f"{_text(made.units)} {unit}"
    for number, step in enumerate(made.steps):
        if len(made.steps) > 1:
            yield "until the price changed" if not number else "after it changed", f"{_text(step.units)} {unit}"
        if step.free or (price.allowance and len(made.steps) == 1):
            words = f"less the allowance of {price.allowance:f} {unit}" if len(made.steps) == 1 else "less what is free"
            yield words, f"{_text(step.units - step.free)} {unit}"
        for units, amount, currency in step.paid:
            yield f"{_text(units)} {unit} × {amount:f} {currency}", f"{_text(units * Fraction(amount))} {currency}"
    if {currency for _, _, currency in paid} == {made.currency} != {payers_currency}:
        yield f"exchanged at {_text(made.rate)}", f"{_text(made.exact)} {payers_currency}"
    elif len(paid) > 1:
        yield "together", f"{_text(made.exact)} {payers_currency}"
    digits = exponent(payers_currency)
    rounded, share = (Decimal(minor).scaleb(-digits) for minor in (made.rounded_minor, made.share_minor))
    yield "rounded, a half up", f"{rounded:f} {payers_currency}"
    if made.charges > 1:
        part = f"{_text(Fraction(made.share, price.base_per_unit))} of {_text(made.units)} {unit}"
        is_in_ratio = made.share_exact * made.quantity == made.exact * made.share
        costs = "" if is_in_ratio else f", exactly {_text(made.share_exact)} {payers_currency}"
        yield f"the part of {part}{costs}, by largest remainder", f"{share:f} {payers_currency}"


def _text(number: Fraction) -> str:
    """With at least two and at most nine digits after the point; what has more begins with ≈."""
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    shown = round(exact, 9)
    whole, _, digits = f"{shown:f}".partition(".")
    return f"{'' if Fraction(shown) == number else '≈ '}{whole}.{digits.rstrip('0').ljust(2, '0')}"
