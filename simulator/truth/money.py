"""From usage to a bill: exact quantities, one rounding a line, the currency's own number of decimals."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from simulator.truth.errors import TruthError
from simulator.truth.metering import TrueUsage

NO_DECIMALS = (
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF",
    "XPF",
)  # fmt: skip
THREE_DECIMALS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
FOUR_DECIMALS = ("CLF", "UYW")
EXPONENTS = {
    **dict.fromkeys(NO_DECIMALS, 0),
    **dict.fromkeys(THREE_DECIMALS, 3),
    **dict.fromkeys(FOUR_DECIMALS, 4),
}
"""ISO 4217: the currencies whose minor unit is not a hundredth."""

WHOLE_UNITS = {"distance": 1_000_000, "duration": 3_600_000, "entry": 1}
"""Millimetres in a kilometre, milliseconds in an hour, entries in an entry."""


class TruePrice(NamedTuple):
    """What one unit of a meter costs in a zone."""

    meter: str
    zone: str
    unit_amount: Decimal


class Customer(NamedTuple):
    """An account with its tariff resolved."""

    id: str
    name: str
    currency: str
    devices: tuple[str, ...]
    prices: tuple[TruePrice, ...]


class TrueLine(NamedTuple):
    """A line of a bill. `quantity` in km, h or entries; hours to 28 digits, the amount from the exact ones."""

    meter: str
    zone: str
    device: str
    quantity: Decimal
    unit_amount: Decimal
    amount_minor: int


class TrueBill(NamedTuple):
    """What an account owes; amounts in the minor unit of the currency."""

    account: str
    currency: str
    lines: tuple[TrueLine, ...]
    total_minor: int


def exponent(currency: str) -> int:
    """Decimals of a currency by ISO 4217. Raises TruthError for what is no currency code."""
    if len(currency) != 3 or not currency.isascii() or not currency.isupper():
        raise TruthError(f"{currency!r} is not a valid ISO 4217 code")
    return EXPONENTS.get(currency, 2)


def bill_of(customer: Customer, usage: Iterable[TrueUsage], start: datetime, end: datetime) -> TrueBill:
    """The bill of the quarters from `start` up to, not including, `end`; lines sorted by device, meter and zone."""
    rows = [row for row in usage if row.device in customer.devices and start <= row.quarter < end]
    lines = []
    for device in sorted(customer.devices):
        for price in sorted(customer.prices):
            counted = sum(_counted(row, price.meter) for row in rows if (row.device, row.zone) == (device, price.zone))
            if counted:
                lines.append(_line(device, price, counted, customer.currency))
    return TrueBill(customer.id, customer.currency, tuple(lines), sum(line.amount_minor for line in lines))


def _counted(row: TrueUsage, meter: str) -> int:
    return {"distance": row.distance_mm, "duration": row.duration_ms, "entry": row.entries}[meter]


def _line(device: str, price: TruePrice, counted: int, currency: str) -> TrueLine:
    whole_unit = WHOLE_UNITS[price.meter]
    # A millisecond in hours has no finite decimal: from a rounded quantity a half could tip to the other side.
    exact = Fraction(counted, whole_unit) * Fraction(price.unit_amount) * 10 ** exponent(currency)
    quantity = Decimal(counted) / Decimal(whole_unit)
    return TrueLine(price.meter, price.zone, device, quantity, price.unit_amount, half_up(exact))


def half_up(amount: Fraction) -> int:
    """The nearest whole number, a half away from zero."""
    # Python's round() takes a half to the even number.
    size = int(abs(amount) + Fraction(1, 2))
    return size if amount >= 0 else -size
