"""Prices, caps and minimum fees in words, by which charges are known. Equal contents have equal words."""

from __future__ import annotations

from decimal import Decimal

from cloud_jobs.billing.contracts import Cap, CapSpan, Pool, Price
from cloud_jobs.billing.currency import exponent


def number_text(value: Decimal, digits: int = 0) -> str:
    """A number without zeros that say nothing, but with at least so many digits after the point: 0.50, 0.4567, 100."""
    whole, _, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0").ljust(digits, "0")
    return f"{whole}.{fraction}" if fraction else whole


def price_text(price: Price, currency: str) -> str:
    """`0.45 EUR/km`; `graduated 0.50 to 100, 0.30 EUR/km, the first 50 km free, pooled by account, pool km`."""
    digits = exponent(currency)
    if price.unit_amount is not None:
        amounts = number_text(price.unit_amount, digits)
    else:
        tiers = ", ".join(
            number_text(tier.unit_amount, digits) + ("" if tier.up_to is None else f" to {number_text(tier.up_to)}")
            for tier in price.tiers
        )
        amounts = f"{price.tier_mode.value} {tiers}"
    free = f", the first {number_text(price.allowance)} {price.unit} free" if price.allowance else ""
    pooled = ", pooled by account" if price.pool is Pool.ACCOUNT else ""
    shared = f", pool {price.pool_id}" if price.pool_id else ""
    return f"{amounts} {currency}/{price.unit}{free}{pooled}{shared}"


def cap_text(cap: Cap, currency: str) -> str:
    """`at most 5.00 EUR a day for each device (distance, duration)`."""
    span = "day" if cap.per is CapSpan.DAY else "period"
    of_whom = "for each device" if cap.pool is Pool.DEVICE else "for the account"
    meters = ", ".join(sorted(meter.value for meter in cap.meters)) or "all meters"
    return f"at most {number_text(cap.amount, exponent(currency))} {currency} a {span} {of_whom} ({meters})"


def minimum_text(amount: Decimal, currency: str) -> str:
    """`at least 10.00 EUR a period`."""
    return f"at least {number_text(amount, exponent(currency))} {currency} a period"
