"""Sums that must agree before a closing is final: usage, cells and charges of each meter, accounts and their payer.

What is counted twice or left out anywhere between the rows of usage and the payer's total is found here, and where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Cell, Charge, ChargeKind, RatedAccount, RatingContract

Sums = Mapping[tuple[str, Meter], int]
"""Quantities in the meter's base unit, by account and meter."""


class ControlTotal(NamedTuple):
    """Two sums that must be equal. `place`: where a difference arose."""

    name: str
    place: str
    expected: int
    found: int

    @property
    def fault(self) -> str | None:
        """What is wrong; None: nothing."""
        if self.expected == self.found:
            return None
        return f"{self.name} of {self.place}: {self.found} instead of {self.expected}"


def control_totals(
    contract: RatingContract, usage: Sums, cells: Iterable[Cell], rated: RatedAccount
) -> tuple[ControlTotal, ...]:
    """The totals of a payer and period; `usage`: what was assigned to its accounts, summed apart from rating.

    Active days are counted, not summed: of them only what is rated is compared.
    """
    # looked at twice
    cells = [*cells]
    sold = _sold_meters(contract)
    assigned, priced = _sums(cells), _sums(cell for cell in cells if (cell.account, cell.version, cell.meter) in sold)
    # caps and fees are amounts, not quantities
    charged: Counter[tuple[str, Meter]] = Counter()
    for charge in rated.charges:
        if charge.key.kind is ChargeKind.USAGE and charge.key.meter is not None:
            charged[charge.key.account, charge.key.meter] += charge.quantity
    found = []
    for account, meter in sorted({*usage, *assigned, *charged}):
        place, key = f"{account}, {meter.value}", (account, meter)
        # of days there is no sum in the rows: one day may have many
        if meter is not Meter.ACTIVE_DAY:
            found.append(ControlTotal("usage assigned", place, usage.get(key, 0), assigned[key]))
        found.append(ControlTotal("usage charged", place, priced[key], charged[key]))
    return (*found, *_amounts(contract, rated))


def _amounts(contract: RatingContract, rated: RatedAccount) -> Iterable[ControlTotal]:
    accounts = {terms.account for terms in contract.accounts}
    yield ControlTotal("charges of accounts", contract.payer, rated.net_minor, _amount(rated.charges, accounts))
    yield ControlTotal(
        "taxable amount", contract.payer, rated.net_minor, sum(group.taxable_minor for group in rated.taxes)
    )


def _amount(charges: Iterable[Charge], accounts: set[str]) -> int:
    return sum(charge.amount_minor for charge in charges if charge.key.account in accounts)


def _sold_meters(contract: RatingContract) -> set[tuple[str, int, Meter]]:
    return {
        (terms.account, version, price.meter)
        for terms in contract.accounts
        for version, in_force in enumerate(terms.tariffs)
        for price in in_force.tariff.prices
    }


def _sums(cells: Iterable[Cell]) -> Counter[tuple[str, Meter]]:
    found: Counter[tuple[str, Meter]] = Counter()
    for cell in cells:
        found[cell.account, cell.meter] += cell.quantity
    return found
