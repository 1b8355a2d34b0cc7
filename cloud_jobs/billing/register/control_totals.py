"""Sums that must agree before a closing is final: of records, usage, cells, charges, accounts and payer.

They find what is counted twice or left out between the records and the payer's total, and where.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from cloud_jobs.billing.rating.cells_of_usage import METER_OF, QUARTER_US, of_hours, quarters_of
from cloud_jobs.billing.units import FACTS, WITHOUT_ZONE, Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.erasures import Erasures, records_and_erasures
from cloud_jobs.lake.schemas import WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import of_devices
from cloud_jobs.lake.snapshots import MAX_SEGMENT, LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.values import is_customer_event

# Control: every record of a device and UTC day is metered exactly once.

_HOUR: Final = timedelta(hours=1)
_KEY: Final = ("tenant", "device", "day")
COUNTED: Final = ("records", "events", "content_bytes")
"""Counted on both sides: records, customer events, and content bytes."""
_COUNTS: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("device", pa.string()),
        pa.field("day", pa.date32()),
        *(pa.field(name, pa.int64()) for name in COUNTED),
    ]
)


class DayDifference(NamedTuple):
    """A device and UTC day whose records and usage differ in one of COUNTED."""

    device: TenantDevice
    day: date
    name: str
    recorded: int
    metered: int


class MeteredRecords(NamedTuple):
    """The sums of COUNTED by tenant, device and day, and every device and day that differs.

    `recorded`: from the table of records; `metered`: from usage rows of whole devices. `covered`: records that usage
    covers, including those of devices with erased positions.
    """

    recorded: pa.Table
    metered: pa.Table
    differences: list[DayDifference]
    covered: int

    @property
    def sums(self) -> dict[str, tuple[int, int]]:
        """The recorded and the metered sum of each of COUNTED."""
        return {
            name: (int(pc.sum(self.recorded[name]).as_py() or 0), int(pc.sum(self.metered[name]).as_py() or 0))
            for name in COUNTED
        }

    def records_of(self) -> dict[TenantDevice, tuple[int, int]]:
        """The recorded and the metered number of records of each device."""
        sides = (_by_device(self.recorded), _by_device(self.metered))
        return {device: (sides[0].get(device, 0), sides[1].get(device, 0)) for device in {**sides[0], **sides[1]}}


def whole_hours(hours: tuple[datetime, datetime]) -> tuple[datetime, datetime]:
    """The start of the first hour and the end of the last hour that overlap [start, end)."""
    start, last = hours[0], hours[1] - timedelta.resolution
    begin, of_last = (one.astimezone(UTC).replace(minute=0, second=0, microsecond=0) for one in (start, last))
    return begin, of_last + _HOUR


def compare_records(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    usage: pa.Table,
    hours: tuple[datetime, datetime],
) -> MeteredRecords:
    """Compares the records that usage covers at a snapshot with the usage rows that count them.

    `usage`: `usage_rows` of these devices for the hours that overlap `hours`, both ends included. Devices whose
    positions of these hours are erased are left out on both sides. Raises LakeError.
    """
    begin, end = whole_hours((hours[0], hours[1] + timedelta.resolution))
    # includes erasures declared since the snapshot, because their positions are gone
    stored, erasures = records_and_erasures(lake)
    recorded = _recorded(lake, snapshot, stored, devices, (begin, end))
    metered, covered = _metered(usage), int(pc.sum(recorded["records"]).as_py() or 0)
    whole = [one for one in devices if not _is_erased(erasures, one, begin)]
    if len(whole) < len(devices):
        recorded, metered = of_devices(recorded, whole), of_devices(metered, whole)
    return MeteredRecords(recorded, metered, _differences(recorded, metered), covered)


def _is_erased(erasures: Erasures, device: TenantDevice, begin: datetime) -> bool:
    before = erasures.before(*device)
    return before is not None and before + MAX_SEGMENT > begin


def seq_counts(texts: pa.ChunkedArray) -> NDArray[np.int64]:
    """The number of records in each text of seq ranges, counted on bytes: parsing each text would be too slow."""
    joined = pa.concat_arrays([pa.array([], pa.string()), *texts.cast(pa.string()).chunks])
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    if data is None or not len(joined):
        return np.zeros(len(joined), np.int64)
    characters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    is_digit = (characters >= ord("0")) & (characters <= ord("9"))
    limits = np.flatnonzero(np.diff(np.r_[False, is_digit, False].view(np.int8)))
    begin, end = limits[::2], limits[1::2]
    # a number in quotes is an epoch; a text ends with a brace, so each number has a character after it
    is_seq = characters[end] != ord('"')
    begin, width = begin[is_seq], (end - begin)[is_seq]
    seqs = np.zeros(len(begin), np.int64)
    for place in range(int(width.max(initial=0))):
        longer = np.flatnonzero(width > place)
        seqs[longer] = seqs[longer] * 10 + (characters[begin[longer] + place] - ord("0"))
    row = np.searchsorted(ends - ends[0], begin[::2], side="right") - 1
    so_far = np.r_[0, np.cumsum(seqs[1::2] - seqs[::2] + 1)]
    at = np.r_[0, np.cumsum(np.bincount(row, minlength=len(joined)))]
    found: NDArray[np.int64] = so_far[at[1:]] - so_far[at[:-1]]
    return found


def _metered(usage: pa.Table) -> pa.Table:
    whole = usage.filter(pc.equal(usage["zone"], WHOLE_DEVICE))
    if not whole.num_rows:
        return _COUNTS.empty_table()
    counts = {name: of_hours(quarters_of(whole[name])) for name in ("events", "content_bytes")}
    rows = whole.select([*_KEY]).append_column("records", pa.array(seq_counts(whole["seq_ranges"])))
    for name, values in counts.items():
        rows = rows.append_column(name, pa.array(values))
    return _grouped(rows)


def _recorded(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    devices: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> pa.Table:
    found = [_COUNTS.empty_table()]
    if devices and snapshot.covers:
        found += _counted_files(lake, snapshot, stored, devices, hours)
    return _grouped(pa.concat_tables(found))


def _counted_files(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    devices: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> Iterator[pa.Table]:
    begin, last = hours[0], hours[1] - timedelta.resolution
    names, tenants = sorted({one.device for one in devices}), sorted({one.tenant for one in devices})
    files = lake.files("records")
    with lake.damage_as_error("records"):
        stored = stored.of_days(begin.date(), last.date())
        stored = stored.between("ingest_number", high=snapshot.covers).within("device", [(one, one) for one in names])
        if not len(stored):
            return
        limits = zip(stored.paths, stored.bounds("ingest_number"), stored.bounds("device_time"), strict=True)
        for path, (_, newest), (earliest, latest) in limits:
            wanted: dict[str, Range] = {"tenant": (tenants[0], tenants[-1]), "device": (names[0], names[-1])}
            # a column is read only if the log does not decide
            if newest is None or newest > snapshot.covers:
                wanted["ingest_number"] = (None, snapshot.covers)
            if earliest is None or earliest < begin or latest > last:
                wanted["device_time"] = (begin, last)
            columns = ("tenant", "device", "device_date", "kind", "name", "content_bytes")
            for rows in stored_rows(files, "records", path, columns, wanted):
                yield _grouped(_as_counts(of_devices(rows, devices)))


def _as_counts(rows: pa.Table) -> pa.Table:
    ones = np.ones(rows.num_rows, np.int64)
    counts = [ones, is_customer_event(rows).astype(np.int64), rows["content_bytes"].cast(pa.int64())]
    key = [rows["tenant"], rows["device"], rows["device_date"]]
    return pa.table([*key, *counts], names=_COUNTS.names).cast(_COUNTS)


def _grouped(rows: pa.Table) -> pa.Table:
    made = rows.group_by([*_KEY]).aggregate([(name, "sum") for name in COUNTED])
    return made.select([*_KEY, *(f"{name}_sum" for name in COUNTED)]).rename_columns(_COUNTS.names).cast(_COUNTS)


def _by_device(rows: pa.Table) -> dict[TenantDevice, int]:
    made = rows.group_by(["tenant", "device"]).aggregate([("records", "sum")]).to_pylist()
    return {TenantDevice(row["tenant"], row["device"]): row["records_sum"] for row in made}


def _differences(recorded: pa.Table, metered: pa.Table) -> list[DayDifference]:
    joined = recorded.join(metered, [*_KEY], join_type="full outer", left_suffix="", right_suffix=" metered")
    sides = {name: (name, f"{name} metered") for name in COUNTED}
    wrong = None
    for one, other in sides.values():
        differs = pc.not_equal(pc.fill_null(joined[one], 0), pc.fill_null(joined[other], 0))
        wrong = differs if wrong is None else pc.or_(wrong, differs)
    found = [
        DayDifference(TenantDevice(row["tenant"], row["device"]), row["day"], name, row[one] or 0, row[other] or 0)
        for row in joined.filter(wrong).to_pylist()
        for name, (one, other) in sides.items()
        if (row[one] or 0) != (row[other] or 0)
    ]
    return sorted(found, key=lambda one: (one.device, one.day, [*sides].index(one.name)))


# Control: quantities summed from usage rows, independent of rating.

_QUARTERS: Final = 4
_INFERRED: Final = "inferred_entries"


class Held(NamedTuple):
    """Who has a device from `begin` until `end` (excluded), in quarters of an hour since 1970."""

    begin: int
    end: int
    payer: str
    account: str


def assigned_usage(contracts: Sequence[PayerContract], usage: pa.Table) -> dict[str, Counter[tuple[str, Meter]]]:
    """For each payer the quantities by account and meter, without active days and unsold inferred entries.

    `usage`: rows in force, ordered by tenant and device. Rows of other devices are ignored.
    """
    sums: dict[str, Counter[tuple[str, Meter]]] = {contract.id: Counter() for contract in contracts}
    sums |= held_usage(held_by(contracts), usage)
    if _INFERRED in usage.column_names:
        for contract in contracts:
            for terms in contract.accounts:
                if not terms.sells_inferred_entries:
                    del sums[contract.id][terms.id, METER_OF[_INFERRED]]
    return sums


def held_usage(
    held: Mapping[TenantDevice, Sequence[Held]], usage: pa.Table
) -> defaultdict[str, Counter[tuple[str, Meter]]]:
    """`assigned_usage` for known holders of devices."""
    sums: defaultdict[str, Counter[tuple[str, Meter]]] = defaultdict(Counter)
    if not usage.num_rows:
        return sums
    usage = usage.combine_chunks()
    devices, starts = _device_starts(usage)
    first = usage["hour"].cast(pa.int64()).to_numpy() // QUARTER_US
    lows, highs = (of.reduceat(first, starts).tolist() for of in (np.minimum, np.maximum))
    counted, ends = _counted(usage), [*starts[1:].tolist(), usage.num_rows]
    # devices that one account has all the time, nearly all, are added up together
    accounts, wholly = dict[tuple[str, str], int](), list[tuple[int, int]]()
    for at, (device, begin, end) in enumerate(zip(devices, starts.tolist(), ends, strict=True)):
        for one in held.get(device, ()):
            if one.begin <= lows[at] and highs[at] + _QUARTERS <= one.end:
                wholly.append((at, accounts.setdefault((one.payer, one.account), len(accounts))))
                continue
            quarters = first[begin:end, None] + np.arange(_QUARTERS)
            inside = (one.begin <= quarters) & (quarters < one.end)
            for meter, values in counted.items():
                if total := int(values[begin:end][inside].sum()):
                    sums[one.payer][one.account, meter] += total
    device_at, account_at = np.array(wholly, np.int64).reshape(-1, 2).T
    for meter, values in counted.items():
        totals = np.zeros(len(accounts), np.int64)
        np.add.at(totals, account_at, np.add.reduceat(of_hours(values), starts)[device_at])
        for (payer, account), total in zip(accounts, totals.tolist(), strict=True):
            if total:
                sums[payer][account, meter] += total
    return sums


def _counted(usage: pa.Table) -> dict[Meter, NDArray[np.int64]]:
    # WHOLE_DEVICE rows count meters without zones; rows of zones count the others
    whole = pc.equal(usage["zone"], WHOLE_DEVICE).to_numpy(zero_copy_only=False)[:, None]
    return {
        meter: np.where(whole == (meter in WITHOUT_ZONE), quarters_of(usage[name]), 0)
        for name, meter in METER_OF.items()
        if name in usage.column_names
    }


def held_by(contracts: Sequence[PayerContract]) -> dict[TenantDevice, list[Held]]:
    """The holders of each device within the periods of some contracts."""
    found: dict[TenantDevice, list[Held]] = defaultdict(list)
    for contract in contracts:
        for terms in contract.accounts:
            for one in terms.assigned:
                begin, end = one.begin_us // QUARTER_US, one.end_us // QUARTER_US
                found[one.of_device].append(Held(begin, end, contract.id, one.account))
    return found


def _device_starts(usage: pa.Table) -> tuple[list[TenantDevice], NDArray[np.int64]]:
    """The devices in order, and the index of the first row of each."""
    tenant, device = (usage[name].combine_chunks() for name in ("tenant", "device"))
    changes = np.ones(usage.num_rows, np.bool_)
    same = pc.and_(pc.equal(tenant[1:], tenant[:-1]), pc.equal(device[1:], device[:-1]))
    changes[1:] = ~same.to_numpy(zero_copy_only=False)
    # rows in force are sorted by device
    starts = np.flatnonzero(changes)
    names = (column.take(pa.array(starts)).to_pylist() for column in (tenant, device))
    return [TenantDevice(*name) for name in zip(*names, strict=True)], starts


MAX_NAMED: Final = 20
"""The most devices and days that a closing names."""

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
        if self.expected == self.found:
            return None
        return f"{self.name} of {self.place}: {self.found} instead of {self.expected}"


@dataclass(slots=True)
class RecordSums:
    """The records of a payer's devices and those that usage counts, added up over parts of the devices."""

    recorded: int = 0
    metered: int = 0
    differences: list[DayDifference] = field(default_factory=list)


def record_totals(
    payer: str, sums: RecordSums, miscounted: Mapping[TenantDevice, tuple[int, int]]
) -> tuple[ControlTotal, ...]:
    """The totals of records: of the payer, and of the first devices and days that differ.

    `miscounted`: its devices of which the centre has another number of records than it received, in any period.
    """
    differing = [
        ControlTotal(
            f"{one.name} metered",
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
    contract: PayerContract, usage: Sums, cells: Mapping[tuple[str, int, Meter], int], rated: RatedAccount
) -> tuple[ControlTotal, ...]:
    """The totals of a payer and period. `usage`: quantities of its accounts, summed independently of rating; `cells`:
    those that rating has, by account, tariff version and meter.

    Active days are counted, not summed; only their charges are compared.
    """
    sold = sold_meters(contract)
    assigned: Counter[tuple[str, Meter]] = Counter()
    priced: Counter[tuple[str, Meter]] = Counter()
    for of, quantity in cells.items():
        assigned[of[0], of[2]] += quantity
        priced[of[0], of[2]] += quantity if of in sold else 0
    charged = _charged(rated)
    found = []
    for account, meter in sorted({*usage, *assigned, *charged}):
        place, key = f"{account}, {meter.value}", (account, meter)
        # a day may have many rows, so rows have no sum of days
        if meter is not Meter.ACTIVE_DAY:
            found.append(ControlTotal("usage assigned", place, usage.get(key, 0), assigned[key]))
        found.append(ControlTotal("usage charged", place, priced[key], charged[key]))
    return (*found, *_amounts(contract, rated))


def _charged(rated: RatedAccount) -> Counter[tuple[str, Meter]]:
    """The quantities of charges of usage: caps and fees are amounts, and facts are no usage."""
    charged: Counter[tuple[str, Meter]] = Counter()
    of_kind: defaultdict[tuple[str, ChargeKind, Meter | None], int] = defaultdict(int)
    for key, quantity, *_ in rated.charges:
        of_kind[key.account, key.kind, key.meter] += quantity
    for (account, kind, meter), quantity in of_kind.items():
        if kind is ChargeKind.USAGE and meter is not None and meter not in FACTS:
            charged[account, meter] += quantity
    return charged


def _amounts(contract: PayerContract, rated: RatedAccount) -> Iterable[ControlTotal]:
    accounts = {terms.id for terms in contract.accounts}
    charged = sum(one.amount_minor for one in rated.charges if one.key.account in accounts)
    yield ControlTotal("charges of accounts", contract.id, rated.net_minor, charged)
    yield ControlTotal(
        "taxable amount", contract.id, rated.net_minor, sum(group.taxable_minor for group in rated.taxes)
    )


def sold_meters(contract: PayerContract) -> set[tuple[str, int, Meter]]:
    """The meters that have a price, by account and tariff version."""
    return {
        (terms.id, version, price.meter)
        for terms in contract.accounts
        for version, span in enumerate(terms.spans)
        for price in span.tariff.prices
    }
