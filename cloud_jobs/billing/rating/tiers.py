"""What a quantity costs: the allowance takes the first units, tiers price the rest. Exact."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from cloud_jobs.billing.contracts import Price, TierMode
from cloud_jobs.billing.errors import BadReference


def units_to_pay(price: Price, units: Fraction) -> Fraction:
    """What of the units the allowance leaves; at least 0."""
    return max(Fraction(0), units - Fraction(price.allowance))


def cost(price: Price, units: Fraction) -> Fraction:
    """What units beyond the allowance cost, in the tariff's currency. Raises BadReference above the last tier."""
    return sum((part * Fraction(amount) for part, amount in parts_of(price, units)), Fraction(0))


def parts_of(price: Price, units: Fraction) -> list[tuple[Fraction, Decimal]]:
    """Units beyond the allowance, in parts of which each unit costs the same, and what it costs.

    Raises BadReference above the last tier.
    """
    if price.unit_amount is not None:
        return [(units, price.unit_amount)]
    found, below = list[tuple[Fraction, Decimal]](), Fraction(0)
    for tier in price.tiers:
        is_last = tier.up_to is None or units <= Fraction(tier.up_to)
        if is_last and price.tier_mode is TierMode.VOLUME:
            return [(units, tier.unit_amount)]
        end = units if is_last else Fraction(tier.up_to or 0)
        found.append((end - below, tier.unit_amount))
        if is_last:
            return found
        below = end
    raise BadReference(
        f"the price of {price.meter} in zone {price.zone!r} has no tier for {float(units):g} {price.unit}; "
        "the last tier must have no upper end"
    )
