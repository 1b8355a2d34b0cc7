"""A line of a bill: one device, one meter, one zone, one price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.period import Period
from cloud_jobs.lake.seq_ranges import SeqRanges

_METER_ORDER = {meter: order for order, meter in enumerate(Meter)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineKey:
    """What a line is about. `price_since`: since when `unit_amount` is the price; a change of price splits a line."""

    region: str
    tenant: str
    device: str
    meter: Meter
    zone: str
    price_since: datetime
    unit_amount: Decimal

    @property
    def order(self) -> tuple[str, str, str, int, str, datetime, Decimal]:
        """The place of the line on a bill."""
        meter = _METER_ORDER[self.meter]
        return self.region, self.tenant, self.device, meter, self.zone, self.price_since, self.unit_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is owed for one key in one period.

    `quantity`: in the meter's base unit (mm, ms, each). `amount_minor`: in the currency's minor unit.
    `seq_ranges`: the ids of the records that the quantity was computed from.
    """

    number: int
    key: LineKey
    service_period: Period
    quantity: int
    amount_minor: int
    seq_ranges: SeqRanges = field(default_factory=SeqRanges)


def total_minor(lines: Iterable[Line]) -> int:
    """The sum of the lines: rounded amounts are added, never rounded again."""
    return sum(line.amount_minor for line in lines)


def totals_by_region(lines: Iterable[Line]) -> dict[str, int]:
    """The sum of each region's lines, regions in order."""
    totals: dict[str, int] = {}
    for line in lines:
        totals[line.key.region] = totals.get(line.key.region, 0) + line.amount_minor
    return dict(sorted(totals.items()))
