"""The usage of devices in a period, and what their payers must be charged, summed part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.certificates import Observed, observed_usage, unmetered_records
from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.billing.rating import cells_of_usage
from cloud_jobs.billing.rating.cells_of_usage import quarter_number
from cloud_jobs.billing.register.control_totals import (
    COUNTED,
    DayDifference,
    Held,
    compare_records,
    held_by,
    held_usage,
    seq_counts,
    sold_meters,
)
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES
from cloud_jobs.lake.snapshot_reads import usage_rows
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.values import row_digest

Owed = tuple[str, str, Meter, str]
"""Payer, account, meter and zone: a sum over zones would hide a moved fence."""


@dataclass(slots=True)
class CountedUsage:
    """Sums over the devices of a period (`hours`, in all payers' time zones).

    `covered`: records that usage covers; `not_metered`: records that it does not, by device; `may_be_more`: devices
    that may have lost such records by an erasure. `counted`: recorded and metered sums of COUNTED. `meters`: usage of
    all devices. `owed`: usage with a price; `unsold`: without; `nobody`: of no billable account, by device. `damaged`:
    usage rows that do not match their digest. `late_positions`: arrived after the positions around them were erased.
    """

    lake: Lake
    snapshot: LakeState
    hours: tuple[datetime, datetime]
    covered: int = 0
    not_metered: Counter[TenantDevice] = field(default_factory=Counter)
    may_be_more: set[TenantDevice] = field(default_factory=set)
    counted: dict[str, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(COUNTED, (0, 0)))
    meters: Counter[Meter] = field(default_factory=Counter)
    owed: Counter[Owed] = field(default_factory=Counter)
    unsold: Counter[tuple[str, str, Meter]] = field(default_factory=Counter)
    nobody: Counter[tuple[TenantDevice, Meter]] = field(default_factory=Counter)
    differences: list[DayDifference] = field(default_factory=list)
    rows: int = 0
    damaged: list[str] = field(default_factory=list)
    late_positions: int = 0
    observed: dict[TenantDevice, Observed] = field(default_factory=dict)

    def add(self, devices: Sequence[TenantDevice], contracts: Sequence[PayerContract]) -> None:
        """Adds some devices, with the contracts of all of their payers. Raises BillingError, LakeError."""
        first, last = self.hours[0], self.hours[1] - timedelta.resolution
        hours_of = dict.fromkeys(devices, self.hours)
        rows = usage_rows(self.lake, self.snapshot, devices, first, last)
        compared = compare_records(self.lake, self.snapshot, devices, rows, (first, last))
        self.differences += compared.differences
        self.covered += compared.covered
        for name, sums in compared.sums.items():
            self.counted[name] = self.counted[name][0] + sums[0], self.counted[name][1] + sums[1]
        self.rows += rows.num_rows
        self.damaged += _damaged(rows)
        not_metered, may_be_more = unmetered_records(self.lake, self.snapshot, hours_of)
        self.not_metered.update(not_metered)
        self.may_be_more |= may_be_more
        self.late_positions += int(seq_counts(rows.filter(pc.equal(rows["zone"], LATE_POSITIONS))["seq_ranges"]).sum())
        self.observed |= observed_usage(self.lake, self.snapshot, hours_of)
        self._add_assigned(contracts, rows)
        self._add_unassigned(devices, contracts, rows)

    def _add_assigned(self, contracts: Sequence[PayerContract], rows: pa.Table) -> None:
        for payer, sums in held_usage(held_by(contracts), rows).items():
            self.unsold.update({(payer, *key): quantity for key, quantity in sums.items()})
        for contract, used in zip(contracts, cells_of_usage(contracts, rows), strict=True):
            sold = sold_meters(contract)
            for cell in used.cells:
                if cell.meter is not Meter.ACTIVE_DAY and (cell.account, cell.version, cell.meter) in sold:
                    self.owed[contract.id, cell.account, cell.meter, cell.zone] += cell.quantity
                    self.unsold[contract.id, cell.account, cell.meter] -= cell.quantity

    def _add_unassigned(
        self, devices: Iterable[TenantDevice], contracts: Sequence[PayerContract], rows: pa.Table
    ) -> None:
        periods = {one.id: (quarter_number(one.period.start), quarter_number(one.period.end)) for one in contracts}
        names = {f"{one.tenant}/{one.device}": one for one in devices}
        held, whole, assigned = held_by(contracts), dict[TenantDevice, list[Held]](), dict[TenantDevice, list[Held]]()
        for name, device in names.items():
            mine = sorted(held.get(device, ()))
            # only the days of its payers, in their time zones
            first, last = (periods[mine[0].payer], periods[mine[-1].payer]) if mine else (None, None)
            begin = first[0] if first else quarter_number(self.hours[0])
            whole[device] = [Held(begin, last[1] if last else quarter_number(self.hours[1]), "", name)]
            assigned[device] = [one._replace(payer="", account=name) for one in mine]
        for (name, meter), quantity in held_usage(whole, rows)[""].items():
            self.meters[meter] += quantity
            self.nobody[names[name], meter] += quantity
        for (name, meter), quantity in held_usage(assigned, rows)[""].items():
            self.nobody[names[name], meter] -= quantity


def _damaged(rows: pa.Table) -> list[str]:
    """The usage rows that do not match their digest."""
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
