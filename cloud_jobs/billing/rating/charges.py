"""What a payer is charged for one period: charges, each with the rows it comes from, and the tax on them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import VatCategory
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.cells import MeteredRows


class ChargeKind(StrEnum):
    """Why an amount is charged; a cap takes away what is above it."""

    USAGE = "usage"
    DAILY_CAP = "daily cap"
    PERIOD_CAP = "period cap"
    MINIMUM = "minimum fee"


MOST_MINOR: Final = 10**15
"""What the amounts of a payer and period stay within, whatever their signs: exact in every program that reads them."""
MOST_QUANTITY: Final = 10**18
"""What the quantity of a charge stays within: it is stored in 64 bits."""
_METER_PLACE = {meter: place for place, meter in enumerate(Meter, start=1)}
_KIND_PLACE = {kind: place for place, kind in enumerate(ChargeKind)}


class ChargeKey(NamedTuple):
    """What a charge is about; no two charges of an account have the same. "" stands for none.

    `price`: the price as text, by which two versions of a tariff with the same price are one:
    `0.45 EUR/km`, `graduated 0.50 to 100, 0.30 EUR/km`.
    """

    account: str
    region: str = ""
    tenant: str = ""
    device: str = ""
    kind: ChargeKind = ChargeKind.USAGE
    meter: Meter | None = None
    zone: str = ""
    window: str = ""
    price: str = ""

    @property
    def order(self) -> tuple[str, str, str, str, int, int, str, str, str]:
        """The place of the charge on a document; kinds and meters as they are listed, no meter before them."""
        kind, meter = _KIND_PLACE[self.kind], _METER_PLACE[self.meter] if self.meter else 0
        return (
            *(self.account, self.region, self.tenant, self.device),
            *(kind, meter, self.zone, self.window, self.price),
        )


class Charge(NamedTuple):
    """What is owed for one key. `quantity` in the meter's base unit, of it `free` in an allowance; `amount_minor` in
    the payer's currency, rounded once (of a pool of devices: the rounded whole, split by largest remainder)."""

    key: ChargeKey
    quantity: int
    free: int
    amount_minor: int
    metered: MeteredRows | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxGroup:
    """EN 16931 BG-23: what is taxable at one category and rate, and the tax on it, rounded once (BR-CO-17)."""

    category: VatCategory
    rate: Decimal
    exemption_reason: str | None
    taxable_minor: int
    tax_minor: int


class Owed(NamedTuple):
    """What a payer owes for a period, summed up, in minor units. `net_minor`: BT-109, the sum of the charges."""

    payer: str
    currency: str
    net_minor: int
    taxes: tuple[TaxGroup, ...]

    @property
    def tax_minor(self) -> int:
        """BT-110."""
        return sum(group.tax_minor for group in self.taxes)


@dataclass(frozen=True, kw_only=True)
class RatedAccount:
    """All that a payer owes for a period: its own charges and those of its children, in the order of their keys."""

    payer: str
    currency: str
    charges: tuple[Charge, ...]
    taxes: tuple[TaxGroup, ...]

    @property
    def owed(self) -> Owed:
        """Its sums."""
        return Owed(self.payer, self.currency, self.net_minor, self.taxes)

    @cached_property
    def net_minor(self) -> int:
        """BT-109."""
        return sum(charge.amount_minor for charge in self.charges)

    @property
    def tax_minor(self) -> int:
        """BT-110."""
        return sum(group.tax_minor for group in self.taxes)

    @property
    def gross_minor(self) -> int:
        """BT-112, what is to be paid."""
        return self.net_minor + self.tax_minor
