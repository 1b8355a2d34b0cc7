"""What parts of the devices used in a period, and what their payers must be charged for: one part is one task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.certificates import Observed, observed_usage, unmetered_records
from cloud_jobs.billing.contracts import Assignment, Vat
from cloud_jobs.billing.contracts.vat import VatCategory
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import AccountTerms, RatingContract, cells_of_usage
from cloud_jobs.billing.register.assigned_usage import held_by, held_usage
from cloud_jobs.billing.register.metered_records import COUNTED, DayDifference, compare_records, seq_counts
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES, WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import usage_rows
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.basis import row_digest

_MOMENT: Final = timedelta(microseconds=1)
_NO_VAT: Final = Vat(category=VatCategory.ZERO)
Owed = tuple[str, str, Meter, str]
"""A payer, an account, a meter, a zone: a fence that moved leaves the sum over all zones as it is."""


class DevicePart(NamedTuple):
    """Devices that are read together, and the contracts of those who pay for some of them in the period."""

    devices: Sequence[TenantDevice]
    contracts: Sequence[RatingContract]
    hours: tuple[datetime, datetime]


@dataclass(slots=True)
class CountedUsage:
    """Sums over parts. `covered`: records of the period that usage covers; of which others it does not, and of whom
    there may be more that are erased: `not_metered`, `may_be_more`. `counted`: of each of COUNTED how much was recorded
    and metered. `meters`: what all devices
    used. `owed`: what is to be charged, and `unsold` for what there is no price. `nobody`: what belongs to no account
    that can be billed, by device. `damaged`: rows of usage that are not what their digest says. `late_positions`: those
    that came after the positions around them were erased. `observed`: of each device what usage says beside meters.
    """

    covered: int = 0
    not_metered: Counter[TenantDevice] = field(default_factory=Counter)
    may_be_more: set[TenantDevice] = field(default_factory=set)
    counted: dict[str, list[int]] = field(default_factory=lambda: {name: [0, 0] for name in COUNTED})
    meters: Counter[Meter] = field(default_factory=Counter)
    owed: Counter[Owed] = field(default_factory=Counter)
    unsold: Counter[Owed] = field(default_factory=Counter)
    nobody: Counter[tuple[TenantDevice, Meter]] = field(default_factory=Counter)
    differences: list[DayDifference] = field(default_factory=list)
    rows: int = 0
    damaged: list[str] = field(default_factory=list)
    late_positions: int = 0
    observed: dict[TenantDevice, Observed] = field(default_factory=dict)

    def add(self, other: CountedUsage) -> None:
        """Takes what another part has."""
        self.covered += other.covered
        self.not_metered.update(other.not_metered)
        self.may_be_more |= other.may_be_more
        for name, (recorded, metered) in other.counted.items():
            self.counted[name][0] += recorded
            self.counted[name][1] += metered
        self.meters.update(other.meters)
        self.owed.update(other.owed)
        self.unsold.update(other.unsold)
        self.nobody.update(other.nobody)
        self.differences += other.differences
        self.rows += other.rows
        self.damaged += other.damaged
        self.late_positions += other.late_positions
        self.observed |= other.observed


def count_part(lake: Lake, snapshot: LakeState) -> Callable[[DevicePart], CountedUsage]:
    """A function that reads a part of the devices at a snapshot. It raises BillingError, LakeError."""

    def count(part: DevicePart) -> CountedUsage:
        first, last = part.hours[0], part.hours[1] - _MOMENT
        rows = usage_rows(lake, snapshot, part.devices, first, last)
        compared = compare_records(lake, snapshot, part.devices, rows, (first, last))
        found = CountedUsage(differences=compared.differences, rows=rows.num_rows, damaged=[*_damaged(rows)])
        not_metered = unmetered_records(lake, snapshot, dict.fromkeys(part.devices, part.hours))
        found.covered, found.not_metered = compared.covered, not_metered.counted
        found.may_be_more = {*not_metered.may_be_more}
        late = rows.filter(pc.equal(rows["zone"], LATE_POSITIONS))["seq_ranges"]
        found.late_positions = int(seq_counts(late).sum())
        found.observed = observed_usage(lake, snapshot, dict.fromkeys(part.devices, part.hours))
        found.counted = {name: [*sums] for name, sums in compared.sums.items()}
        _add_assigned(found, part, rows)
        return found

    return count


def _add_assigned(found: CountedUsage, part: DevicePart, rows: pa.Table) -> None:
    sold, held = {one.payer: _sold(one) for one in part.contracts}, held_by(part.contracts)
    for zone in rows["zone"].unique().to_pylist():
        named = "" if zone == WHOLE_DEVICE else zone
        for payer, sums in held_usage(held, rows.filter(pc.equal(rows["zone"], zone))).items():
            for (account, meter), quantity in sums.items():
                found.owed[payer, account, meter, named] += quantity
    for payer, account, meter, zone in [*found.owed]:
        if sold[payer][account, meter] == {False}:
            key = payer, account, meter, zone
            found.unsold[key] += found.owed.pop(key)
    mixed = [one for one in part.contracts if any(len(kinds) > 1 for kinds in sold[one.payer].values())]
    # a meter that is sold by one version of the tariff and not by another: by what was in force at each quarter
    for contract, used in zip(mixed, cells_of_usage(mixed, rows) if mixed else (), strict=True):
        versions = {terms.account: terms.tariffs for terms in contract.accounts}
        for cell in used.cells:
            has_price = any(one.meter is cell.meter for one in versions[cell.account][cell.version].tariff.prices)
            if not has_price and len(sold[contract.payer][cell.account, cell.meter]) > 1:
                key = contract.payer, cell.account, cell.meter, cell.zone
                found.owed[key] -= cell.quantity
                found.unsold[key] += cell.quantity
    _add_unassigned(found, part, rows)


def _sold(contract: RatingContract) -> dict[tuple[str, Meter], set[bool]]:
    """Of each account and meter whether it has a price: in all versions of its tariff, in none, or in some."""
    return {
        (terms.account, meter): {any(price.meter is meter for price in one.tariff.prices) for one in terms.tariffs}
        for terms in contract.accounts
        for meter in Meter
    }


def _add_unassigned(found: CountedUsage, part: DevicePart, rows: pa.Table) -> None:
    held: dict[TenantDevice, list[Assignment]] = {device: [] for device in part.devices}
    periods: dict[TenantDevice, list[tuple[datetime, datetime, datetime]]] = defaultdict(list)
    for contract in part.contracts:
        for one in (one for terms in contract.accounts for one in terms.devices):
            begin, end = max(one.begin, contract.start), min(one.end or contract.end, contract.end)
            if one.of_device in held and begin < end:
                held[one.of_device].append(_assignment(one.of_device, begin, end))
                periods[one.of_device].append((begin, contract.start, contract.end))
    whole = {device: [_assignment(device, *_span(periods[device], part.hours))] for device in part.devices}
    for (device, meter), quantity in _by_device(whole, rows, part.hours).items():
        found.meters[meter] += quantity
        found.nobody[device, meter] += quantity
    for key, quantity in _by_device(held, rows, part.hours).items():
        found.nobody[key] -= quantity
    found.nobody = Counter({key: quantity for key, quantity in found.nobody.items() if quantity})


def _span(
    periods: Sequence[tuple[datetime, datetime, datetime]], hours: tuple[datetime, datetime]
) -> tuple[datetime, datetime]:
    """The days by the clocks of those who pay for a device: what is beside them is of other days.

    They begin by those of who has it first, and end by those of who has it last.
    """
    return (min(periods)[1], max(periods)[2]) if periods else hours


def _by_device(
    assigned: Mapping[TenantDevice, Sequence[Assignment]], rows: pa.Table, hours: tuple[datetime, datetime]
) -> dict[tuple[TenantDevice, Meter], int]:
    """What each device used while it is assigned: as if each were an account of its own."""
    names = {f"{device.tenant}/{device.device}": device for device in assigned}
    every = RatingContract(
        payer="",
        currency="",
        time_zone="UTC",
        start=hours[0],
        end=hours[1],
        vat=_NO_VAT,
        accounts=tuple(
            AccountTerms(account=name, tariffs=(), devices=tuple(assigned[one])) for name, one in names.items()
        ),
    )
    found = held_usage(held_by([every]), rows)[""]
    return {(names[name], meter): quantity for (name, meter), quantity in found.items()}


def _assignment(device: TenantDevice, begin: datetime, end: datetime) -> Assignment:
    # as the lake has it: a device that nobody agreed upon may have any name
    return Assignment.model_construct(tenant=device.tenant, device=device.device, region="", begin=begin, end=end)


def _damaged(rows: pa.Table) -> list[str]:
    """Rows that say something else than their digest."""
    found, hours = [], rows["hour"].cast(pa.int64()).to_numpy() // 3_600_000_000
    columns = [rows[name].to_pylist() for name in ("tenant", "device", "zone", "seq_ranges", "fence_version", "digest")]
    columns += [rows[name].to_pylist() for name in ("engine_version", "unreadable", "counters")]
    observed = zip(*(rows[name].to_pylist() for name in OBSERVED), strict=True)
    quantities = [rows[name].to_pylist() for name in QUANTITIES]
    for hour, of, tenant, device, zone, seqs, fence, digest, engine, unreadable, said, *amounts in zip(
        hours.tolist(), observed, *columns, *quantities, strict=True
    ):
        rests_on = seqs, fence, engine
        texts = {"unreadable": unreadable, "counters": said}
        made = row_digest((tenant, device), hour, zone, amounts, rests_on, observed=of, **texts)
        if made != digest:
            found.append(f"{tenant}/{device} at hour {hour} since 1970 in zone {zone!r}")
    return found
