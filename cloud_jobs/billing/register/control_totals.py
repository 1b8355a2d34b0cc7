"""Sums that must agree before a closing is final: of records, usage, cells, charges of each meter, accounts and payer.

What is counted twice or left out anywhere between the records and the payer's total is found here, and where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Cell, Charge, ChargeKind, RatedAccount, RatingContract
from cloud_jobs.billing.register.metered_records import WITH_REGION, DayDifference
from cloud_jobs.lake.coverage import TenantDevice

MAX_NAMED: Final = 20
"""So many devices and days that differ are named in a closing."""

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


@dataclass(slots=True)
class RecordSums:
    """The records of a payer's devices, and those that usage counts, added up over parts of the devices."""

    recorded: int = 0
    metered: int = 0
    differences: list[DayDifference] = field(default_factory=list)


def record_totals(
    payer: str, sums: RecordSums, miscounted: Mapping[TenantDevice, tuple[int, int]]
) -> tuple[ControlTotal, ...]:
    """The totals of the records of a payer's devices, and of each device and day that differs, the first ones.

    `miscounted`: of its devices those of which the centre has not as many records as it received, of any period.
    """
    differing = [
        ControlTotal(
            one.name if one.name == WITH_REGION else f"{one.name} metered",
            f"{one.device.tenant}/{one.device.device} on {one.day}",
            *one[3:],
        )
        for one in sums.differences[:MAX_NAMED]
    ]
    centre = [
        ControlTotal("received records in the table", f"{device.tenant}/{device.device}", *counts)
        for device, counts in [*miscounted.items()][:MAX_NAMED]
    ]
    return (ControlTotal("records metered", payer, sums.recorded, sums.metered), *centre, *differing)


def control_totals(
    contract: RatingContract, usage: Sums, cells: Iterable[Cell], rated: RatedAccount
) -> tuple[ControlTotal, ...]:
    """The totals of a payer and period; `usage`: what was assigned to its accounts, summed apart from rating.

    Active days are counted, not summed: of them only what is rated is compared.
    """
    sold = _sold_meters(contract)
    assigned: Counter[tuple[str, Meter]] = Counter()
    priced: Counter[tuple[str, Meter]] = Counter()
    for (account, version, meter), quantity in _sums(cells).items():
        assigned[account, meter] += quantity
        priced[account, meter] += quantity if (account, version, meter) in sold else 0
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


def _sums(cells: Iterable[Cell]) -> dict[tuple[str, int, Meter], int]:
    found: dict[tuple[str, int, Meter], int] = {}
    for cell in cells:
        of = cell.account, cell.version, cell.meter
        found[of] = found.get(of, 0) + cell.quantity
    return found
