"""What the canary account owes, by a formula of the canary's own: so much for each time that it came in. Pure.

It knows nothing of tariffs as they were published, nor of rating: a wrong tariff is seen here.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

__all__ = ["CURRENCY", "EACH", "amount_text", "bill_fault", "expected_minor"]

CURRENCY: Final = "EUR"
EACH: Final = Decimal("1.00")
"""What one entry costs."""
_MINOR: Final = 100


def expected_minor(entries: int) -> int:
    """Cents for so many entries."""
    return int(entries * EACH * _MINOR)


def bill_fault(entries: int, net_minor: int, tax_minor: int, currency: str) -> str:
    """How what is owed differs from what it must be; "": it does not."""
    # the number alone may be right by chance
    if currency != CURRENCY:
        return f"it is owed in {currency}, not in {CURRENCY}"
    wanted = expected_minor(entries)
    if net_minor != wanted:
        return f"{entries} entries cost {amount_text(net_minor)}, not {amount_text(wanted)}"
    return f"a tax of {amount_text(tax_minor)} is owed on it" if tax_minor else ""


def amount_text(minor: int) -> str:
    """An amount for people."""
    sign, cents = ("-" if minor < 0 else ""), abs(minor)
    return f"{sign}{cents // _MINOR}.{cents % _MINOR:02} {CURRENCY}"
