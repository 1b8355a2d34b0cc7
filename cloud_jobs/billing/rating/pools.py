"""What a pool costs: the allowance takes its first units, tiers price the rest, and the whole is rounded once.

A pool is what is added up for one purpose in one period: of a device or an account, of a meter, and of the place of
the price or the `pool_id` that prices share. The text of a price is no part of it. A change of price begins a new step:
usage before the change comes first, so what is left of the allowance and the place in the tiers go on. Within a step
no unit is the first one in time, and every use bears the step's average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from cloud_jobs.billing.contracts import PoolKey, Price, TierMode
from cloud_jobs.billing.errors import BadReference
from cloud_jobs.billing.meters import round_ratio
from cloud_jobs.billing.rating.split import Exact, split, split_exact


@dataclass(frozen=True, slots=True, eq=False)
class RatedPrice:
    """A price of a version of a tariff, as rating uses it.

    `version`: the first one of those that follow each other with this price. `terms`: equal for two versions of which
    all prices of the pool are the same. `worth`: minor units of the payer's
    currency for one unit of the tariff's. `flat`: of a price without tiers, minor units for one base unit of the meter.
    `allowance`: in base units.
    """

    price: Price
    text: str
    pool: PoolKey
    version: int
    terms: int
    worth: Fraction
    flat: Exact | None
    allowance: Exact

    @property
    def by_day(self) -> Exact | None:
        """What one base unit costs on any day; None: that cannot be said, for tiers or an allowance look at more."""
        return self.flat if not self.allowance.numerator else None

    def exact_minor(self, quantity: int) -> Exact:
        """What a pool of so many base units costs if nothing else is in it. Raises BadReference above the last tier."""
        if self.flat is not None:
            # the integers of the fraction, without the work of reducing it
            paid = max(0, quantity * self.allowance.denominator - self.allowance.numerator)
            return Exact(paid * self.flat.numerator, self.allowance.denominator * self.flat.denominator)
        paid_units = max(Fraction(0), quantity - Fraction(*self.allowance)) / self.price.base_per_unit
        amount: Fraction = cost(self.price, Paid(Fraction(0), paid_units, paid_units)) * self.worth
        return Exact(amount.numerator, amount.denominator)

    def free_of(self, quantity: int) -> int:
        """How many base units of a pool the allowance takes whole if nothing else is in it."""
        return min(quantity, self.allowance.numerator // self.allowance.denominator)


class Place(NamedTuple):
    """What a charge of a pool is about, in the order of the keys: equal remainders are settled in it."""

    region: str
    tenant: str
    device: str
    zone: str
    window: str


Uses = Mapping[tuple[RatedPrice, Place], int]
"""The quantities of a pool in base units, by the price that each has and where it was used."""


class Paid(NamedTuple):
    """Units beyond the allowance: from the place `begin` of those of the pool to `end`, of `whole` in the period."""

    begin: Fraction
    end: Fraction
    whole: Fraction

    def per(self, base_per_unit: int) -> Paid:
        """In units of a price, from base units."""
        return Paid(*(one / base_per_unit for one in self))


class PoolStep(NamedTuple):
    """What was used while a pool had the same prices; in base units. The allowance takes `free` of `quantity`."""

    uses: tuple[tuple[RatedPrice, Place, int], ...]
    quantity: int
    free: Fraction
    paid: Paid


class PoolShare(NamedTuple):
    """What is charged for a place and price: a part of the pool's quantity, of what is free, and of the whole."""

    place: Place
    text: str
    quantity: int
    free: int
    amount_minor: int


def pool_shares(uses: Uses) -> Iterable[PoolShare]:
    """The shares of a pool, which has something in it, in the order of their keys. Raises BadReference."""
    if len(uses) == 1:
        # as most have
        (((price, place), whole),) = uses.items()
        amount = round_ratio(*price.exact_minor(whole))
        return [PoolShare(place, price.text, whole, price.free_of(whole), amount)]
    price = next(iter(uses))[0]
    if any(other is not price for other, _ in uses):
        if len({(one.terms, one.text) for one, _ in uses}) > 1:
            return _stepped_shares(uses)
        quantities: dict[Place, int] = {}
        for (_, place), quantity in uses.items():
            quantities[place] = quantities.get(place, 0) + quantity
        rows = sorted(quantities.items())
    else:
        rows = sorted([(place, quantity) for (_, place), quantity in uses.items()])
    weights = [quantity for _, quantity in rows]
    whole = sum(weights)
    exact, free = price.exact_minor(whole), price.free_of(whole)
    amounts = split(round_ratio(*exact), exact, weights)
    frees = split(free, Exact(free), weights) if free else [0] * len(weights)
    return [
        PoolShare(place, price.text, quantity, *parts)
        for (place, quantity), *parts in zip(rows, frees, amounts, strict=True)
    ]


def pool_steps(uses: Uses) -> list[PoolStep]:
    """The steps of a pool in the order of time."""
    ordered = sorted(((price, place, quantity) for (price, place), quantity in uses.items()), key=_version_of)
    found = [tuple(step) for _, step in groupby(ordered, key=_terms_of)]
    free, quantities = list[Fraction](), [sum(quantity for _, _, quantity in step) for step in found]
    for step, quantity in zip(found, quantities, strict=True):
        # all prices of a pool in one version have the same allowance
        left = Fraction(*step[0][0].allowance) - sum(free, Fraction(0))
        free.append(min(Fraction(quantity), max(Fraction(0), left)))
    whole, steps, reached = sum(quantities) - sum(free, Fraction(0)), list[PoolStep](), Fraction(0)
    for step, quantity, without in zip(found, quantities, free, strict=True):
        paid = Paid(reached, reached + quantity - without, whole)
        reached = paid.end
        steps.append(PoolStep(step, quantity, without, paid))
    assert reached == whole
    return steps


def _version_of(use: tuple[RatedPrice, Place, int]) -> int:
    return use[0].version


def _terms_of(use: tuple[RatedPrice, Place, int]) -> int:
    return use[0].terms


class ExactShare(NamedTuple):
    """The part of a place and price before anything is rounded; `minor` in the payer's currency."""

    quantity: int
    free: Fraction
    minor: Fraction


def exact_shares(uses: Uses) -> dict[tuple[Place, str], ExactShare]:
    """The exact parts of a pool by place and text of the price, in order. Raises BadReference."""
    found: dict[tuple[Place, str], ExactShare] = {}
    for step in pool_steps(uses):
        for price, place, quantity in step.uses:
            part = Fraction(quantity, step.quantity)
            minor = cost(price.price, step.paid.per(price.price.base_per_unit)) * price.worth * part
            of = found.get((place, price.text), ExactShare(0, Fraction(0), Fraction(0)))
            share = ExactShare(of.quantity + quantity, of.free + step.free * part, of.minor + minor)
            found[place, price.text] = share
    return dict(sorted(found.items()))


def _stepped_shares(uses: Uses) -> Iterator[PoolShare]:
    shares = exact_shares(uses)
    minor, free = [one.minor for one in shares.values()], [one.free for one in shares.values()]
    amounts = split_exact(round_ratio(*sum(minor, Fraction(0)).as_integer_ratio()), minor)
    frees = split_exact(int(sum(free, Fraction(0))), free)
    for ((place, text), share), free_part, amount in zip(shares.items(), frees, amounts, strict=True):
        yield PoolShare(place, text, share.quantity, free_part, amount)


def cost(price: Price, paid: Paid) -> Fraction:
    """What units of a pool cost, in the tariff's currency. Raises BadReference above the last tier."""
    return sum((part * Fraction(amount) for part, amount in parts_of(price, paid)), Fraction(0))


def parts_of(price: Price, paid: Paid) -> list[tuple[Fraction, Decimal]]:
    """Units of a pool, in parts of which each unit costs the same, and what it costs.

    Raises BadReference above the last tier.
    """
    if price.unit_amount is not None:
        return [(paid.end - paid.begin, price.unit_amount)]
    found, below = list[tuple[Fraction, Decimal]](), Fraction(0)
    reached = paid.whole if price.tier_mode is TierMode.VOLUME else paid.end
    for tier in price.tiers:
        is_last = tier.up_to is None or reached <= Fraction(tier.up_to)
        if is_last and price.tier_mode is TierMode.VOLUME:
            return [(paid.end - paid.begin, tier.unit_amount)]
        end = reached if is_last else Fraction(tier.up_to or 0)
        part = end - max(below, paid.begin)
        if part > 0 or (is_last and not found):
            found.append((max(part, Fraction(0)), tier.unit_amount))
        if is_last:
            return found
        below = end
    raise BadReference(
        f"the price of {price.meter} in zone {price.zone!r} has no tier for {float(reached):g} {price.unit}; "
        "the last tier must have no upper end"
    )
