"""From rows of usage to cells, for many payers at once: account, day and window of each quarter of an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.contracts import AccountContract, Assigned, PayerContract, TariffSpan, Window
from cloud_jobs.billing.contracts.fields import Attributes
from cloud_jobs.billing.contracts.published import EPOCH
from cloud_jobs.billing.contracts.windows import MINUTES_OF_A_DAY, Calendar
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.charges import Cell, MeteredKey, MeteredRows
from cloud_jobs.billing.units import WITHOUT_ZONE, Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, WHOLE_DEVICE

# Local day, price window and tariff version of each quarter of an hour.

Ints = NDArray[np.int64]
QUARTER: Final = timedelta(minutes=15)
QUARTER_US: Final = 900_000_000
MAX_LOCAL_TIMES: Final = 64
"""Cached time zones and periods."""


class LocalTimes(NamedTuple):
    """Local day (as an ordinal) and minute of the day at the start of each quarter of an hour."""

    day: Ints
    minute: Ints


def quarter_number(moment: datetime) -> int:
    """The number, from 1970, of the quarter of an hour that contains a moment."""
    return (moment - EPOCH) // QUARTER


@lru_cache(maxsize=MAX_LOCAL_TIMES)
def local_times(time_zone: str, first: int, count: int) -> LocalTimes:
    """Local times of `count` quarters from number `first`. Each is converted by itself, so clock changes are exact."""
    zone = ZoneInfo(time_zone)
    moments = [(EPOCH + QUARTER * number).astimezone(zone) for number in range(first, first + count)]
    return LocalTimes(
        np.array([moment.toordinal() for moment in moments], np.int64),
        np.array([moment.hour * 60 + moment.minute for moment in moments], np.int64),
    )


def window_mask(window: Window, calendar: Calendar | None, local: LocalTimes) -> NDArray[np.bool_]:
    """The local times that are in a window, in whichever order."""
    mask = np.zeros(len(local.day), np.bool_)
    if not len(mask):
        return mask
    before = int(local.day.min()) - 1
    days = map(date.fromordinal, range(before, int(local.day.max()) + 1))
    begins = np.array([window.begins_on(day, calendar) for day in days], np.bool_)
    for begin, length in window.spans:
        mask |= begins[local.day - before] & (begin <= local.minute) & (local.minute < begin + length)
        mask |= begins[local.day - before - 1] & (local.minute + MINUTES_OF_A_DAY < begin + length)
    return mask


class Slot(NamedTuple):
    """What a price can depend on, apart from meter and zone."""

    day: date | None
    window: str
    version: int


class Timetable(NamedTuple):
    """For each quarter of a period its run; day, window and version are constant within a run.

    `run_slot` and `run_day`: slot number and local day of each run. `slots`: the distinct (day or None, window,
    version).
    """

    run: Ints
    run_slot: Ints
    run_day: Ints
    slots: tuple[Slot, ...]


def timetable_of(tariffs: Sequence[TariffSpan], local: LocalTimes, first: int, *, by_day: bool) -> Timetable:
    """The timetable of an account from quarter number `first`. `by_day`: whether prices depend on the day."""
    numbers = np.arange(first, first + len(local.day), dtype=np.int64)
    begins = np.array([one.begin_us // QUARTER_US for one in tariffs], np.int64)
    version = np.searchsorted(begins, numbers, side="right").astype(np.int64) - 1
    names = [""]
    window = np.zeros(len(numbers), np.int64)
    for number in np.unique(version[version >= 0]):
        held = version == number
        # no price of usage names a window by the minute
        windows = [one for one in tariffs[number].tariff.windows if one.is_on_quarters]
        for one in reversed(windows):
            if one.id not in names:
                names.append(one.id)
            window[held & window_mask(one, tariffs[number].calendar, local)] = names.index(one.id)
    changes = (np.diff(local.day) != 0) | (np.diff(window) != 0) | (np.diff(version) != 0)
    run = np.concatenate(([0], np.cumsum(changes))).astype(np.int64)
    begin = np.concatenate(([0], np.flatnonzero(changes) + 1))
    slots: dict[Slot, int] = {}
    run_slot = np.empty(len(begin), np.int64)
    for index, (day, at, of) in enumerate(
        zip(local.day[begin].tolist(), window[begin].tolist(), version[begin].tolist(), strict=True)
    ):
        slot = Slot(date.fromordinal(day) if by_day else None, names[at], of)
        run_slot[index] = slots.setdefault(slot, len(slots))
    return Timetable(run, run_slot, local.day[begin], tuple(slots))


# Usage rows in force of the requested devices, as arrays.

HOUR_US: Final = 3_600_000_000
BY_DEVICE: Final = frozenset({"events", "content_bytes"})
"""Columns counted in rows of WHOLE_DEVICE; the others are counted in rows of zones."""
DIGEST_BYTES: Final = 16
MOST: Final = 1 << 62
"""Upper bound of the sum of all rows, so that no 64-bit sum overflows."""


class UsageColumns:
    """Usage as arrays, ordered by device number, zone (its index in `zones`) and hour (since 1970).

    `quantities`: for each of `names` an array of shape (rows, 4), one column per quarter. `digests`: 16 bytes per row.
    Raises BillingError.
    """

    def __init__(
        self, usage: pa.Table, devices: dict[TenantDevice, int], hours: tuple[int, int], names: Sequence[str]
    ) -> None:
        number, taken = _device_numbers(usage, devices)
        hour = pc.cast(usage["hour"], pa.int64()).to_numpy() // HOUR_US
        taken &= (hours[0] <= hour) & (hour < hours[1])
        rows = np.flatnonzero(taken)
        zones = usage["zone"].combine_chunks().dictionary_encode()
        self.zones: list[str] = zones.dictionary.to_pylist()
        zone = zones.indices.to_numpy(zero_copy_only=False).astype(np.int64)[rows]
        number, hour = number[rows], hour[rows]
        commit = usage["commit_number"].to_numpy()[rows]
        width = hours[1] - hours[0]
        key = (number * max(1, len(self.zones)) + zone) * width + (hour - hours[0])
        order = np.lexsort((commit, key))
        last = np.ones(len(order), np.bool_)
        last[:-1] = np.diff(key[order]) != 0
        kept = order[last]
        self.device: Ints = number[kept]
        self.zone: Ints = zone[kept]
        self.hour: Ints = hour[kept]
        taken_rows = rows[kept]
        self.whole_device = np.array([name == WHOLE_DEVICE for name in self.zones], np.bool_)[self.zone]
        every = [_quarters(usage[name]) for name in names]
        digests = _digests(usage["digest"])
        again = np.flatnonzero(~last[:-1] & (np.diff(commit[order]) == 0)) if len(order) else np.zeros(0, np.int64)
        _refuse_contradictions(usage, rows[order[again]], rows[order[again + 1]], every, digests)
        self.quantities = tuple(
            np.where(((self.whole_device == (name in BY_DEVICE))[:, None]), quarters[taken_rows], 0)
            for name, quarters in zip(names, every, strict=True)
        )
        self.digests: Any = digests[taken_rows]

    @property
    def first_quarter(self) -> Ints:
        found: Ints = self.hour * QUARTERS
        return found


def _device_numbers(usage: pa.Table, devices: dict[TenantDevice, int]) -> tuple[Ints, Any]:
    """The device number of each row, and a mask of the rows of requested devices."""
    tenants = sorted({device.tenant for device in devices})
    names = sorted({device.device for device in devices})
    of_tenant, of_name = {name: at for at, name in enumerate(tenants)}, {name: at for at, name in enumerate(names)}
    pairs = sorted((of_tenant[one.tenant] * len(names) + of_name[one.device], at) for one, at in devices.items())
    known, numbers = np.array(pairs, np.int64).reshape(-1, 2).T
    tenant = pc.fill_null(pc.index_in(usage["tenant"], pa.array(tenants, pa.string())), -1).to_numpy()
    name = pc.fill_null(pc.index_in(usage["device"], pa.array(names, pa.string())), -1).to_numpy()
    pair = tenant.astype(np.int64) * len(names) + name
    at = np.minimum(np.searchsorted(known, pair), max(0, len(known) - 1))
    if not len(known):
        return np.zeros(len(pair), np.int64), np.zeros(len(pair), np.bool_)
    return numbers[at], (tenant >= 0) & (name >= 0) & (known[at] == pair)


def quarters_of(column: pa.ChunkedArray) -> Ints:
    """The quarters of a quantity, shape (rows, 4); zeros where a row does not state it. Raises BillingError."""
    lists = column.combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    known, lengths = lists.is_valid().to_numpy(zero_copy_only=False), np.diff(lists.offsets.to_numpy())
    if (lengths[known] != QUARTERS).any():
        raise BillingError("a quantity of usage is not a list of the four quarters of its hour")
    # Arrow's coalesce, and its flatten of lists with nulls, handle one list at a time, which is many times slower
    given = (
        lists.flatten() if lengths[~known].any() else lists.values[lists.offsets[0].as_py() :][: QUARTERS * known.sum()]
    )
    values = np.zeros((len(lists), QUARTERS), np.int64)
    values[known] = given.to_numpy(zero_copy_only=False).reshape(-1, QUARTERS)
    return values


def of_hours(quarters: Ints) -> Ints:
    """The sum of the quarters of each row: several times faster than along the short axis."""
    first, second, third, fourth = quarters.T
    found: Ints = first + second + third + fourth
    return found


def _quarters(column: pa.ChunkedArray) -> Ints:
    values = quarters_of(column)
    if len(values) and (values.min() < 0 or int(values.max()) * values.size >= MOST):
        raise BillingError("a quantity of usage is negative, or larger than anything that can be metered")
    return values


def _digests(column: pa.ChunkedArray) -> Any:
    try:
        fixed = pc.cast(pc.cast(column.combine_chunks(), pa.binary()), pa.binary(DIGEST_BYTES))
    except pa.ArrowInvalid as error:
        raise BillingError(f"a digest of usage is not {DIGEST_BYTES} characters: {error}") from error
    held = fixed.buffers()[1]
    everything = np.frombuffer(held, f"S{DIGEST_BYTES}") if held is not None else np.zeros(0, f"S{DIGEST_BYTES}")
    return everything[fixed.offset : fixed.offset + len(fixed)]


def _refuse_contradictions(usage: pa.Table, one: Ints, other: Ints, quarters: list[Ints], digests: Any) -> None:
    """Raises BillingError if two rows of one key and one commit differ."""
    differ = digests[one] != digests[other]
    for values in quarters:
        differ |= (values[one] != values[other]).any(axis=1)
    if differ.any():
        row = usage.slice(int(one[np.flatnonzero(differ)[0]]), 1)
        tenant, device, zone = (row[name][0].as_py() for name in ("tenant", "device", "zone"))
        hour = EPOCH + timedelta(microseconds=pc.cast(row["hour"], pa.int64())[0].as_py())
        raise BillingError(
            f"usage of {tenant}/{device} at {hour.isoformat()} in zone {zone!r} was computed twice, with two results"
        )


# Who pays for a device at a time, for many payers at once, as sorted arrays.

SPAN: Final = 1 << 32
"""More quarters of an hour than from 1970 to any possible moment."""


class Holder(NamedTuple):
    account: str
    tenant: str
    device: str
    region: str
    attributes: Attributes


class HoldingMatch(NamedTuple):
    """For each requested (device, quarter): the index of the latest holding, and whether it still lasts."""

    holding: Ints
    held: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Holdings:
    """The device assignments of some payers, as arrays in the order of device and time. Raises BillingError.

    `holder`: account, device, region and attributes. `owner`: account and device. `timetable`: number of the account's
    timetable. `sells_inferred`: whether the account has a price for inferred entries. `payer_of`, `owner_of`: payer
    and owner of each holder.
    """

    def __init__(self, contracts: Sequence[PayerContract]) -> None:
        self.devices: dict[TenantDevice, int] = {}
        self.holders: dict[tuple[int, Holder], int] = {}
        self.owners: dict[tuple[int, str, TenantDevice], int] = {}
        self.payer_of: list[int] = []
        self.owner_of: list[int] = []
        self._timetables: dict[object, int] = {}
        self._made: list[tuple[Timetable, int]] = []
        self._inferred: list[bool] = []
        rows: list[tuple[int, int, int, int, int, int]] = []
        for payer, contract in enumerate(contracts):
            first, end = quarter_number(contract.period.start), quarter_number(contract.period.end)
            for terms in contract.accounts:
                if terms.assigned:
                    timetable = self._timetable(contract, terms, first, end)
                    rows += (self._row(payer, one, timetable) for one in terms.assigned)
        rows.sort()
        self._refuse_overlaps(rows)
        columns = np.array(rows, np.int64).reshape(-1, 6).T
        self.device, self.begin, self.end, self.holder, self.owner, self.timetable = columns
        self.sells_inferred = np.array(self._inferred, np.bool_)[self.timetable]
        self._key = self.device * SPAN + self.begin
        self._join_timetables()

    def _timetable(self, contract: PayerContract, terms: AccountContract, first: int, end: int) -> int:
        """The number of a timetable; accounts with the same versions, time zone and period share one."""
        versions = tuple((one.begin_us, id(one.tariff), id(one.calendar)) for one in terms.spans)
        is_dated = terms.has_dated_percents
        key = (contract.period.time_zone, first, end, versions, is_dated)
        if key not in self._timetables:
            self._timetables[key] = len(self._made)
            local = local_times(contract.period.time_zone, first, end - first)
            self._made.append(
                (timetable_of(terms.spans, local, first, by_day=is_dated or terms.depends_on_days), first)
            )
            self._inferred.append(terms.sells_inferred_entries)
        return self._timetables[key]

    def _row(self, payer: int, one: Assigned, timetable: int) -> tuple[int, int, int, int, int, int]:
        device = self.devices.setdefault(one.of_device, len(self.devices))
        holder = payer, Holder(one.account, one.tenant, one.device, one.region, one.attributes)
        owner = payer, one.account, one.of_device
        owned = self.owners.setdefault(owner, len(self.owners))
        if holder not in self.holders:
            self.holders[holder] = len(self.holders)
            self.payer_of.append(payer)
            self.owner_of.append(owned)
        begin, end = one.begin_us // QUARTER_US, one.end_us // QUARTER_US
        return device, begin, end, self.holders[holder], owned, timetable

    def _refuse_overlaps(self, rows: list[tuple[int, int, int, int, int, int]]) -> None:
        for before, after in pairwise(rows):
            if before[0] == after[0] and after[1] < before[2]:
                names = {number: holder for (_, holder), number in self.holders.items()}
                first, second = names[before[3]], names[after[3]]
                moment = EPOCH + timedelta(seconds=after[1] * QUARTER.total_seconds())
                raise BillingError(
                    f"{first.tenant}/{first.device} is assigned to {first.account} and to {second.account} at "
                    f"{moment.isoformat()}; end one of them"
                )

    def _join_timetables(self) -> None:
        """Joins the runs of all timetables into one table, so that any quarter is one look-up."""
        quarters = np.cumsum([0, *(len(made.run) for made, _ in self._made)])
        runs = np.cumsum([0, *(len(made.run_slot) for made, _ in self._made)])
        slots: dict[Slot, int] = {}
        joined = [
            np.array([slots.setdefault(slot, len(slots)) for slot in one.slots], np.int64) for one, _ in self._made
        ]
        empty = np.zeros(0, np.int64)
        self._run = np.concatenate([empty, *(one.run + at for (one, _), at in zip(self._made, runs, strict=False))])
        self.run_slot = np.concatenate(
            [empty, *(of[one.run_slot] for (one, _), of in zip(self._made, joined, strict=True))]
        )
        self.run_day = np.concatenate([empty, *(one.run_day for one, _ in self._made)])
        firsts = np.array([first for _, first in self._made], np.int64)
        # the index that quarter number 0 of each holding's timetable would have in the table
        self._zero = (quarters[:-1] - firsts)[self.timetable] if len(firsts) else empty
        self.slots = tuple(slots)

    def locate(self, device: Ints, quarter: Ints) -> HoldingMatch:
        holding = np.searchsorted(self._key, device * SPAN + quarter, side="right") - 1
        if not len(self._key):
            return HoldingMatch(holding, np.zeros(len(holding), np.bool_))
        held = (holding >= 0) & (self.device[holding] == device) & (quarter < self.end[holding])
        return HoldingMatch(holding, held)

    def run(self, holding: Ints, quarter: Ints) -> Ints:
        """The run that contains each quarter. The holding must hold the quarter."""
        found: Ints = self._run[self._zero[holding] + quarter]
        return found


# Provenance of charges: count, times and digest of the usage rows of each account, device and zone.


def metered_rows(columns: UsageColumns, holdings: Holdings, row: Ints, holding: Ints) -> tuple[Ints, list[MeteredRows]]:
    """The summaries of the usage rows of each owner and zone, and `owner * zones + zone` of each, ascending.

    An hour in which a device changed accounts counts for both if both used something.
    """
    if not len(row):
        return np.zeros(0, np.int64), []
    owner = holdings.owner[holding]
    # rows are ordered by device, zone and hour, and an owner has one device, so this orders by zone and hour
    pair = np.unique(owner * (len(columns.hour) + 1) + row)
    owner, row = pair // (len(columns.hour) + 1), pair % (len(columns.hour) + 1)
    place, hour = owner * len(columns.zones) + columns.zone[row], columns.hour[row]
    begin = np.concatenate(([0], np.flatnonzero(np.diff(place)) + 1))
    end = np.concatenate((begin[1:], [len(row)]))
    digests, size = columns.digests[row].tobytes(), DIGEST_BYTES
    moments = {number: EPOCH + timedelta(hours=number) for number in np.unique(hour).tolist()}
    numbers = (array.tolist() for array in (begin, end, hour[begin], hour[end - 1]))
    return place[begin], [
        MeteredRows(stop - at, moments[first], moments[last], sha256(digests[at * size : stop * size]).hexdigest())
        for at, stop, first, last in zip(*numbers, strict=True)
    ]


METER_OF: Final = {
    "distance_mm": Meter.DISTANCE,
    "duration_ms": Meter.DURATION,
    "entries": Meter.ENTRY,
    "crossings": Meter.CROSSING,
    "events": Meter.EVENT,
    "content_bytes": Meter.TRANSMITTED,
    "inferred_entries": Meter.INFERRED_ENTRY,
}
"""Which meter a column of usage counts: QUANTITIES, and what is sold only where a tariff says so. Active days are
counted from the rows of the whole device."""


METERS: Final = (*Meter,)


class PayerUsage(NamedTuple):
    """The usage of a payer's devices in its period, and the rows that it comes from."""

    cells: list[Cell]
    metered: dict[MeteredKey, MeteredRows]


class Parts(NamedTuple):
    """Parts of usage rows with one holding, day, window and version: a whole hour or one quarter of it.

    `row`: index in the columns. `quantities`: one array per meter. Parts without usage are left out.
    """

    row: Ints
    quarter: Ints
    holding: Ints
    run: Ints
    quantities: tuple[Ints, ...]


def rated_columns(contracts: Iterable[PayerContract]) -> tuple[str, ...]:
    """The columns of USAGE that these contracts need; the digest stands for the others."""
    # most accounts have the same versions
    versions = {tuple(id(of.tariff) for of in terms.spans): terms for one in contracts for terms in one.accounts}
    sold = any(terms.sells_inferred_entries for terms in versions.values())
    return ("tenant", "device", "hour", "zone", *(METER_OF if sold else QUANTITIES), "digest", "commit_number")


@dataclass(frozen=True, kw_only=True)
class CellColumns:
    """The cells of many payers as columns, in any order, and the summaries of their usage rows.

    `meter`, `holder`, `zone`, `slot`: places in METERS, `holders`, `zones` and `slots`. `payer_of`, `owner_of`: payer
    and owner of each holder. `metered`: the rows of `owner * len(zones) + zone` in `metered_at`, ascending.
    """

    holders: Sequence[Holder]
    payer_of: Ints
    owner_of: Ints
    owners: Sequence[tuple[int, str, TenantDevice]]
    zones: Sequence[str]
    slots: Sequence[Slot]
    meter: Ints
    holder: Ints
    zone: Ints
    slot: Ints
    quantity: Ints
    metered_at: Ints
    metered: Sequence[MeteredRows]

    @cached_property
    def accounts(self) -> dict[tuple[int, str], int]:
        """A number for each payer number and account."""
        found: dict[tuple[int, str], int] = {}
        for payer, holder in zip(self.payer_of.tolist(), self.holders, strict=True):
            found.setdefault((payer, holder.account), len(found))
        return found

    @cached_property
    def account_of(self) -> Ints:
        """The account's number of each holder."""
        pairs = zip(self.payer_of.tolist(), self.holders, strict=True)
        return np.array([self.accounts[payer, holder.account] for payer, holder in pairs], np.int64)

    def sums(self, payers: int) -> list[Counter[tuple[str, int, Meter]]]:
        """The quantities of each payer by account, tariff version and meter."""
        found = [Counter[tuple[str, int, Meter]]() for _ in range(payers)]
        version = np.array([slot.version for slot in self.slots], np.int64)[self.slot] + 1
        versions, names = int(version.max(initial=0)) + 1, [*self.accounts]
        key = (self.account_of[self.holder] * versions + version) * len(METERS) + self.meter
        keys, of = np.unique(key, return_inverse=True)
        totals = np.zeros(len(keys), np.int64)
        np.add.at(totals, of, self.quantity)
        for one, total in zip(keys.tolist(), totals.tolist(), strict=True):
            rest, meter = divmod(one, len(METERS))
            payer, account = names[rest // versions]
            found[payer][account, rest % versions - 1, METERS[meter]] = total
        return found

    def of_payers(self, wanted: NDArray[np.bool_]) -> list[PayerUsage]:
        """The cells and rows of the wanted payers one by one; nothing of the others."""
        found = [PayerUsage([], {}) for _ in wanted]
        if not wanted.any():
            return found
        add = [found[payer].cells.append for payer in self.payer_of.tolist()]
        at = np.flatnonzero(wanted[self.payer_of[self.holder]])
        columns = (self.meter, self.holder, self.zone, self.slot, self.quantity)
        for meter, holder, zone, slot, quantity in zip(*(array[at].tolist() for array in columns), strict=True):
            account, tenant, device, region, attributes = self.holders[holder]
            day, window, version = self.slots[slot]
            of = account, tenant, device, region, METERS[meter], self.zones[zone], day, window, version
            add[holder](Cell._make((*of, quantity, attributes)))
        for number, rows in zip(self.metered_at.tolist(), self.metered, strict=True):
            owner, zone = divmod(number, len(self.zones))
            payer, account, device = self.owners[owner]
            if wanted[payer]:
                found[payer].metered[MeteredKey(account, device.tenant, device.device, self.zones[zone])] = rows
        return found


def cells_of_usage(contracts: Sequence[PayerContract], usage: pa.Table) -> list[PayerUsage]:
    """`cell_columns` one by one, in the order of the contracts."""
    return cell_columns(contracts, usage).of_payers(np.ones(len(contracts), np.bool_))


def cell_columns(contracts: Sequence[PayerContract], usage: pa.Table) -> CellColumns:
    """The usage of the payers' devices.

    `usage` has `rated_columns`, in any order. Rows of other devices and times are ignored; of rows with one key the
    last commit counts. Raises BillingError.
    """
    holdings = Holdings(contracts)
    # an hour counts if a quarter of it does: midnight in India is in the middle of a UTC hour
    first = int(holdings.begin.min()) // QUARTERS if len(holdings.begin) else 0
    last = int(holdings.end.max()) // QUARTERS + 1 if len(holdings.end) else first + 1
    names = tuple(METER_OF) if holdings.sells_inferred.any() else QUANTITIES
    columns = UsageColumns(usage, holdings.devices, (first, last), names)
    # "" for meters without zones; their rows are those of the whole device
    columns.zones += [zone for zone in ("", WHOLE_DEVICE) if zone not in columns.zones]
    parts = _parts(columns, holdings)
    slots, numbers = _cells(columns, holdings, parts)
    metered_at, metered = metered_rows(columns, holdings, parts.row, parts.holding)
    return CellColumns(
        holders=[holder for _, holder in holdings.holders],
        payer_of=np.array(holdings.payer_of, np.int64),
        owner_of=np.array(holdings.owner_of, np.int64),
        owners=[*holdings.owners],
        zones=columns.zones,
        slots=slots,
        **dict(zip(("meter", "holder", "zone", "slot", "quantity"), numbers, strict=True)),
        metered_at=metered_at,
        metered=metered,
    )


def _parts(columns: UsageColumns, holdings: Holdings) -> Parts:
    """Hours within one holding and one run stay whole; the others are cut into quarters."""
    device, quarter = columns.device, columns.first_quarter
    begin, end = (holdings.locate(device, quarter + offset) for offset in (0, QUARTERS - 1))
    same = begin.holding == end.holding
    whole = np.flatnonzero(same & begin.held & end.held)
    run = holdings.run(begin.holding[whole], quarter[whole])
    one_run = run == holdings.run(begin.holding[whole], quarter[whole] + QUARTERS - 1)
    whole, run = whole[one_run], run[one_run]
    # the latest holding before both ends holds neither, so it holds nothing in between
    cut = np.ones(len(device), np.bool_)
    cut[whole] = False
    cut &= ~(same & ~begin.held & ~end.held)
    rows = np.repeat(np.flatnonzero(cut), QUARTERS)
    place = np.arange(len(rows)) % QUARTERS
    at = quarter[rows] + place
    of = holdings.locate(device[rows], at)
    rows, place, at, holding = (array[of.held] for array in (rows, place, at, of.holding))
    quantities = [np.concatenate((of_hours(values[whole]), values[rows, place])) for values in columns.quantities]
    run = np.concatenate((run, holdings.run(holding, at)))
    holding = np.concatenate((begin.holding[whole], holding))
    for number in range(len(QUANTITIES), len(quantities)):
        # without a price an account has none, independent of the other payers of the call
        quantities[number] *= holdings.sells_inferred[holding]
    parts = Parts(np.concatenate((whole, rows)), np.concatenate((quarter[whole], at)), holding, run, tuple(quantities))
    some = np.logical_or.reduce([values > 0 for values in quantities])
    row, quarter, holding, run = (array[some] for array in parts[:4])
    return Parts(row, quarter, holding, run, tuple(values[some] for values in quantities))


def _cells(columns: UsageColumns, holdings: Holdings, parts: Parts) -> tuple[tuple[Slot, ...], list[Ints]]:
    """The slots of cells; meter, holder, zone, slot and quantity of each cell."""
    found: list[tuple[Ints, ...]] = [(np.zeros(0, np.int64),) * 5]
    if not len(parts.row):
        return holdings.slots, [*found[0]]
    holder, slot, zone = holdings.holder[parts.holding], holdings.run_slot[parts.run], columns.zone[parts.row]
    slots, zones, nowhere = len(holdings.slots), len(columns.zones), columns.zones.index("")
    key = (holder * zones + zone) * slots + slot
    order = np.argsort(key, kind="stable")
    begin = np.concatenate(([0], np.flatnonzero(np.diff(key[order])) + 1))
    group = key[order[begin]]
    for meter, values in zip(METER_OF.values(), parts.quantities, strict=False):
        sums = np.add.reduceat(values[order], begin)
        assert int(sums.sum()) == int(values.sum()), "each quantity is in one cell"
        keys, sums = group[sums > 0], sums[sums > 0]
        place = np.full(len(keys), nowhere) if meter in WITHOUT_ZONE else keys // slots % zones
        found.append((np.full(len(keys), METERS.index(meter)), keys // slots // zones, place, keys % slots, sums))
    active_slots, (holder, slot, days) = _active_days(holdings, parts)
    alike = (np.full(len(days), number) for number in (METERS.index(Meter.ACTIVE_DAY), nowhere))
    found.append((next(alike), holder, next(alike), slot + slots, days))
    return holdings.slots + active_slots, [np.concatenate(column) for column in zip(*found, strict=True)]


def _active_days(holdings: Holdings, parts: Parts) -> tuple[tuple[Slot, ...], tuple[Ints, Ints, Ints]]:
    """The slots of active days, without window, and the number of days by holder and slot.

    A day of a device in an account counts once, where its first record of the day is.
    """
    # every record has content
    active = np.flatnonzero(parts.quantities[QUANTITIES.index("content_bytes")] > 0)
    owner, day = holdings.owner[parts.holding[active]], holdings.run_day[parts.run[active]]
    active = active[np.lexsort((parts.quarter[active], day, owner))]
    owner, day = holdings.owner[parts.holding[active]], holdings.run_day[parts.run[active]]
    first = np.ones(len(active), np.bool_)
    first[1:] = (np.diff(owner) != 0) | (np.diff(day) != 0)
    active = active[first]
    plain: dict[Slot, int] = {}
    numbers = np.array([plain.setdefault(slot._replace(window=""), len(plain)) for slot in holdings.slots], np.int64)
    slot = numbers[holdings.run_slot[parts.run[active]]]
    key, counts = np.unique(holdings.holder[parts.holding[active]] * len(plain) + slot, return_counts=True)
    return tuple(plain), (key // len(plain), key % len(plain), counts.astype(np.int64))
