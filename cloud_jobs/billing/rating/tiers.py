"""What a quantity costs: the allowance takes the first units, tiers price the rest. Exact."""

from __future__ import annotations

from fractions import Fraction

from cloud_jobs.billing.contracts import Price, TierMode
from cloud_jobs.billing.errors import BadReference


def units_to_pay(price: Price, units: Fraction) -> Fraction:
    """What of the units the allowance leaves; at least 0."""
    return max(Fraction(0), units - Fraction(price.allowance))


def cost(price: Price, units: Fraction) -> Fraction:
    """What units beyond the allowance cost, in the tariff's currency. Raises BadReference above the last tier."""
    if price.unit_amount is not None:
        return units * Fraction(price.unit_amount)
    if price.tier_mode is TierMode.VOLUME:
        return _by_volume(price, units)
    return _graduated(price, units)


def _by_volume(price: Price, units: Fraction) -> Fraction:
    for tier in price.tiers:
        if tier.up_to is None or units <= Fraction(tier.up_to):
            return units * Fraction(tier.unit_amount)
    raise _above_all(price, units)


def _graduated(price: Price, units: Fraction) -> Fraction:
    amount, below = Fraction(0), Fraction(0)
    for tier in price.tiers:
        if tier.up_to is None or units <= Fraction(tier.up_to):
            return amount + (units - below) * Fraction(tier.unit_amount)
        amount += (Fraction(tier.up_to) - below) * Fraction(tier.unit_amount)
        below = Fraction(tier.up_to)
    raise _above_all(price, units)


def _above_all(price: Price, units: Fraction) -> BadReference:
    return BadReference(
        f"the price of {price.meter} in zone {price.zone!r} has no tier for {float(units):g} {price.unit}; "
        "the last tier must have no upper end"
    )
