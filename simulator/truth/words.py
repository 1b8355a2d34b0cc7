"""Prices, caps and minimum fees in words: equal ones have equal words, however their decimals were written."""

from decimal import Decimal
from fractions import Fraction

from simulator.truth.contracts import AgreedCap, AgreedPrice
from simulator.truth.money import exponent


def price_text(price: AgreedPrice, currency: str) -> str:
    """A price in words, for instance `0.45 EUR/km` or `graduated 0.50 to 100, 0.30 EUR/km, pooled by account`."""
    digits = exponent(currency)
    tiers = []
    for tier in price.tiers:
        end = "" if tier.up_to is None else f" to {number_text(tier.up_to)}"
        tiers.append(number_text(tier.unit_amount, digits) + end)
    words = f"{price.tier_mode} {', '.join(tiers)} {currency}/{price.unit}".strip()
    if price.allowance:
        words += f", the first {number_text(price.allowance)} {price.unit} free"
    if price.pool == "account":
        words += ", pooled by account"
    if price.pool_id:
        words += f", pool {price.pool_id}"
    return words


def cap_text(cap: AgreedCap, currency: str) -> str:
    """A cap in words, for instance `at most 5.00 EUR a day for each device (distance)`."""
    whom = {"device": "for each device", "account": "for the account"}[cap.pool]
    meters = ", ".join(sorted(cap.meters)) or "all meters"
    return f"at most {number_text(cap.amount, exponent(currency))} {currency} a {cap.per} {whom} ({meters})"


def minimum_text(amount: Fraction, currency: str, days: int, of_days: int) -> str:
    """A minimum fee in words; `days` of a period that it is paid for."""
    words = f"at least {number_text(amount, exponent(currency))} {currency} a period"
    return words if days == of_days else f"{words}, {days} of {of_days} days"


def number_text(number: Fraction, digits: int = 0) -> str:
    """A decimal number with at least so many digits after the point, and no zeros at its end beyond them."""
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    shortest = format(exact.normalize(), "f")
    after_the_point = len(shortest.partition(".")[2])
    return shortest if after_the_point >= digits else f"{exact:.{digits}f}"
