"""The bill: a pure function of reference data, usage and the moment of knowledge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from cloud_jobs.billing.completeness import Certificate, certify
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.errors import BadReference, UnknownLine
from cloud_jobs.billing.lines import Line, LineKey, total_minor, totals_by_region
from cloud_jobs.billing.meters import Meter, line_amount_minor
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.reference import Account, PriceHistory, Tariff
from cloud_jobs.billing.usage import ErasedPast, UsageRow, known_at
from cloud_jobs.in_force import RefusedVersion
from cloud_jobs.lake.coverage import Completeness, TenantDevice
from cloud_jobs.lake.seq_ranges import SeqRanges


class BillStatus(StrEnum):
    """Whether more may come: `final` once the period is over, every device of the account is accounted for and
    metered, and every publication of the account and its tariff can be used."""

    FINAL = "final"
    PROVISIONAL = "provisional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What an account owes for a period, as it was known at `as_of`. Lines are numbered from 1.

    `refused`: publications of the account and its tariff that cannot be used; what they were to replace is in force.
    """

    account: Account
    period: Period
    as_of: datetime
    status: BillStatus
    lines: tuple[Line, ...]
    certificates: tuple[Certificate, ...]
    refused: tuple[RefusedVersion, ...] = ()

    @property
    def currency(self) -> str:
        """The currency of every amount, ISO 4217."""
        return self.account.currency

    @property
    def total_minor(self) -> int:
        """The sum of the lines, in minor units."""
        return total_minor(self.lines)

    @property
    def totals_by_region(self) -> dict[str, int]:
        """The sum of the lines of each region, in minor units."""
        return totals_by_region(self.lines)

    def line(self, number: int) -> Line:
        """The line of that number. Raises UnknownLine."""
        if not 1 <= number <= len(self.lines):
            raise UnknownLine(number, len(self.lines))
        return self.lines[number - 1]


def bill(
    account: Account,
    tariff_versions: Iterable[Tariff],
    usage: Iterable[UsageRow],
    *,
    period: Period,
    as_of: datetime,
    completeness: Mapping[TenantDevice, Certificate],
    erased_pasts: Mapping[TenantDevice, ErasedPast] = MappingProxyType({}),
    refused: tuple[RefusedVersion, ...] = (),
) -> Bill:
    """The bill of one account.

    One line for each device, meter, zone and price in force at the service hour; what the tariff has
    no price for, and what was not used, has no line. Rows of other devices, hours and later knowledge are passed over,
    in any order. `erased_pasts`: of which records of a device the positions are erased; those that rows were computed
    from are counted in its certificate. Raises BadReference, NoTariffInForce, ContradictoryUsage.
    """
    prices = _price_history(account, tariff_versions)
    region_of = {vehicle.of_device: vehicle.region for vehicle in account.vehicles}
    mine = (row for row in usage if row.of_device in region_of and row.hour in period)
    grouped: dict[LineKey, list[tuple[int, SeqRanges]]] = {}
    erased: dict[TenantDevice, list[SeqRanges]] = {}
    for row in known_at(mine, as_of):
        if past := erased_pasts.get(row.of_device):
            erased.setdefault(row.of_device, []).append(past.part_of(row))
        for key, quantity in _priced(row, region_of[row.of_device], prices):
            grouped.setdefault(key, []).append((quantity, row.seq_ranges))
    lines = tuple(
        _line(number, key, grouped[key], period, exponent(account.currency))
        for number, key in enumerate(sorted(grouped, key=lambda key: key.order), start=1)
    )
    # a device that the centre never heard of is open, not complete: it may have driven
    certificates = tuple(
        replace(completeness.get(device) or certify(device, {}), erased=SeqRanges.union(erased.get(device, ())).count)
        for device in sorted(region_of)
    )
    made = Bill(
        account=account,
        period=period,
        as_of=as_of,
        status=_status(period, as_of, certificates, refused),
        lines=lines,
        certificates=certificates,
        refused=refused,
    )
    assert sum(made.totals_by_region.values()) == made.total_minor
    return made


def _price_history(account: Account, versions: Iterable[Tariff]) -> PriceHistory:
    history = PriceHistory(account.tariff, versions)
    foreign = sorted(history.currencies - {account.currency})
    if foreign:
        raise BadReference(
            f"account {account.id!r} pays in {account.currency}, its tariff {account.tariff!r} is in {foreign[0]}"
        )
    return history


def _priced(row: UsageRow, region: str, prices: PriceHistory) -> Iterator[tuple[LineKey, int]]:
    for meter in Meter:
        quantity = row.quantity(meter)
        price = prices.at(row.hour, meter, row.zone) if quantity else None
        if price is not None:
            key = LineKey(
                region=region,
                tenant=row.tenant,
                device=row.device,
                meter=meter,
                zone=row.zone,
                price_since=price.since,
                unit_amount=price.unit_amount,
            )
            yield key, quantity


def _line(number: int, key: LineKey, parts: list[tuple[int, SeqRanges]], period: Period, digits: int) -> Line:
    quantity = sum(part for part, _ in parts)
    return Line(
        number=number,
        key=key,
        service_period=period,
        quantity=quantity,
        # the sum is priced: amounts that were rounded by the hour would add up to another one
        amount_minor=line_amount_minor(key.meter, quantity, key.unit_amount, digits),
        seq_ranges=SeqRanges.union(seq_ranges for _, seq_ranges in parts),
    )


def _status(
    period: Period, as_of: datetime, certificates: tuple[Certificate, ...], refused: tuple[RefusedVersion, ...]
) -> BillStatus:
    accounted = all(one.state is not Completeness.OPEN and not one.not_metered for one in certificates)
    # a price or a vehicle list that somebody meant to change is not the last word
    return BillStatus.FINAL if accounted and not refused and as_of >= period.end else BillStatus.PROVISIONAL
