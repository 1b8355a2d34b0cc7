"""From rows of usage to cells, for many payers at once: each quarter of an hour finds its account, day and window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.billing.contracts import Assignment
from cloud_jobs.billing.errors import AssignedTwice
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.calendars import (
    EPOCH,
    QUARTER,
    Calendar,
    Ints,
    Slot,
    calendar_of,
    local_times,
    quarter_number,
)
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE, Cell, MeteredKey, MeteredRows
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract
from cloud_jobs.billing.rating.usage_columns import DIGEST_BYTES, UsageColumns
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS

# Who pays for a device at which moment, for many payers at once, in arrays that are searched by device and time.

SPAN: Final = 1 << 32
"""More quarters of an hour than there are from 1970 to any moment that a clock shows."""


class Holder(NamedTuple):
    """Whose a quantity is."""

    account: str
    tenant: str
    device: str
    region: str


class Located(NamedTuple):
    """For each asked (device, quarter): the place of the holding that began last, and whether it still lasts."""

    holding: Ints
    held: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Holdings:
    """The assignments of the devices of some payers, each within its payer's period. Raises AssignedTwice.

    Arrays by holding, in the order of device and time: `holder`, `owner` (the holder whatever its region), `calendar`,
    `sells_inferred` (whether its account has a price for inferred entries).
    `payer_of` has the payer of each holder; holders of a payer follow each other.
    """

    def __init__(self, contracts: Sequence[RatingContract]) -> None:
        self.devices: dict[TenantDevice, int] = {}
        self.holders: dict[tuple[int, Holder], int] = {}
        self.owners: dict[tuple[int, str, TenantDevice], int] = {}
        self.payer_of: list[int] = []
        self.owner_payer: list[int] = []
        self._calendars: dict[object, int] = {}
        self._made: list[tuple[Calendar, int]] = []
        self._inferred: list[bool] = []
        rows: list[tuple[int, int, int, int, int, int]] = []
        for payer, contract in enumerate(contracts):
            first, end = quarter_number(contract.start), quarter_number(contract.end)
            for terms in contract.accounts:
                if terms.devices:
                    calendar = self._calendar(contract, terms, first, end)
                    rows += (self._row(payer, terms.account, one, (first, end), calendar) for one in terms.devices)
        rows = sorted(row for row in rows if row[1] < row[2])
        self._refuse_overlaps(rows)
        columns = np.array(rows, np.int64).reshape(-1, 6).T
        self.device, self.begin, self.end, self.holder, self.owner, self.calendar = columns
        self.sells_inferred = np.array(self._inferred, np.bool_)[self.calendar]
        self._key = self.device * SPAN + self.begin
        self._join_calendars()

    def _calendar(self, contract: RatingContract, terms: AccountTerms, first: int, end: int) -> int:
        """The number of a calendar; accounts with the same versions, time zone and period have one together."""
        versions = tuple((one.begin, id(one.tariff)) for one in terms.tariffs)
        key = (contract.time_zone, first, end, versions)
        if key not in self._calendars:
            self._calendars[key] = len(self._made)
            local = local_times(contract.time_zone, first, end - first)
            self._made.append((calendar_of(terms.tariffs, local, first, by_day=terms.looks_at_days), first))
            self._inferred.append(terms.sells_inferred_entries)
        return self._calendars[key]

    def _row(
        self, payer: int, account: str, one: Assignment, period: tuple[int, int], calendar: int
    ) -> tuple[int, int, int, int, int, int]:
        first, last = period
        begin = max(quarter_number(one.begin), first)
        end = last if one.end is None else min(quarter_number(one.end), last)
        device = self.devices.setdefault(one.of_device, len(self.devices))
        holder = payer, Holder(account, one.tenant, one.device, one.region)
        owner = payer, account, one.of_device
        if holder not in self.holders:
            self.holders[holder] = len(self.holders)
            self.payer_of.append(payer)
        if owner not in self.owners:
            self.owners[owner] = len(self.owners)
            self.owner_payer.append(payer)
        return device, begin, end, self.holders[holder], self.owners[owner], calendar

    def _refuse_overlaps(self, rows: list[tuple[int, int, int, int, int, int]]) -> None:
        for before, after in pairwise(rows):
            if before[0] == after[0] and after[1] < before[2]:
                names = {number: holder for (_, holder), number in self.holders.items()}
                first, second = names[before[3]], names[after[3]]
                moment = EPOCH + timedelta(seconds=after[1] * QUARTER.total_seconds())
                raise AssignedTwice(first.tenant, first.device, (first.account, second.account), moment)

    def _join_calendars(self) -> None:
        """One table of runs for all calendars, so that a quarter of any of them is one look-up."""
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
        # where the quarter number 0 of each holding's calendar would stand in the table
        self._zero = (quarters[:-1] - firsts)[self.calendar] if len(firsts) else empty
        self.slots = tuple(slots)

    def locate(self, device: Ints, quarter: Ints) -> Located:
        """The holding of each device at each quarter, by their numbers."""
        holding = np.searchsorted(self._key, device * SPAN + quarter, side="right") - 1
        if not len(self._key):
            return Located(holding, np.zeros(len(holding), np.bool_))
        held = (holding >= 0) & (self.device[holding] == device) & (quarter < self.end[holding])
        return Located(holding, held)

    def run(self, holding: Ints, quarter: Ints) -> Ints:
        """The run of the calendar that a quarter lies in, which the holding must hold."""
        found: Ints = self._run[self._zero[holding] + quarter]
        return found


# From which rows of usage the charges of an account, device and zone come: how many, of when, and their digest.


def metered_rows(
    columns: UsageColumns, holdings: Holdings, row: Ints, holding: Ints
) -> Iterator[tuple[tuple[int, MeteredKey], MeteredRows]]:
    """The payer's number, whose rows, and the rows; of pieces of rows, given by their row and holding.

    An hour in which a device changed accounts is a row of both, if something was used in both.
    """
    if not len(row):
        return
    owner = holdings.owner[holding]
    # rows are in the order of device, zone, hour; an owner has one device: this is the order of zones and hours
    pair = np.unique(owner * (len(columns.hour) + 1) + row)
    owner, row = pair // (len(columns.hour) + 1), pair % (len(columns.hour) + 1)
    zone, hour = columns.zone[row], columns.hour[row]
    begin = np.concatenate(([0], np.flatnonzero((np.diff(owner) != 0) | (np.diff(zone) != 0)) + 1))
    end = np.concatenate((begin[1:], [len(row)]))
    digests = columns.digests[row].tobytes()
    owners = list(holdings.owners)
    moments = {number: EPOCH + timedelta(hours=number) for number in np.unique(hour).tolist()}
    numbers = (begin, end, owner[begin], zone[begin], hour[begin], hour[end - 1])
    for start, stop, of, at, first, last in zip(*(array.tolist() for array in numbers), strict=True):
        payer, account, device = owners[of]
        digest = sha256(digests[start * DIGEST_BYTES : stop * DIGEST_BYTES]).hexdigest()
        key = MeteredKey(account, device.tenant, device.device, columns.zones[at])
        yield (payer, key), MeteredRows(stop - start, moments[first], moments[last], digest)


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


class PayerUsage(NamedTuple):
    """What a payer's devices used in its period, and from which rows."""

    cells: list[Cell]
    metered: dict[MeteredKey, MeteredRows]


class Parts(NamedTuple):
    """Pieces of rows that have one holding, day, window and version each: a whole hour, or a quarter of it.

    `row`: its place in the columns. `quantities`: an array for each that is counted. Pieces of nothing are left out.
    """

    row: Ints
    quarter: Ints
    holding: Ints
    run: Ints
    quantities: tuple[Ints, ...]


def rated_columns(contracts: Iterable[RatingContract]) -> tuple[str, ...]:
    """The columns of USAGE that rating takes by some contracts; the digest stands for the others."""
    # most accounts have the same versions
    versions = {tuple(id(of.tariff) for of in terms.tariffs): terms for one in contracts for terms in one.accounts}
    sold = any(terms.sells_inferred_entries for terms in versions.values())
    return ("tenant", "device", "hour", "zone", *(METER_OF if sold else QUANTITIES), "digest", "commit_number")


def cells_of_usage(contracts: Sequence[RatingContract], usage: pa.Table) -> list[PayerUsage]:
    """What each payer's devices used, payer by payer.

    `usage` has `rated_columns`; rows of other devices and times are passed over, of rows of one key the one that was
    committed last counts, in any order. Raises AssignedTwice, BadUsage, ContradictoryUsage.
    """
    holdings = Holdings(contracts)
    # an hour is there if a quarter of it is: India's midnight is in the middle of one
    first = int(holdings.begin.min()) // QUARTERS if len(holdings.begin) else 0
    last = int(holdings.end.max()) // QUARTERS + 1 if len(holdings.end) else first + 1
    names = tuple(METER_OF) if holdings.sells_inferred.any() else QUANTITIES
    columns = UsageColumns(usage, holdings.devices, (first, last), names)
    parts = _parts(columns, holdings)
    found = [PayerUsage([], {}) for _ in contracts]
    _add_cells(found, columns, holdings, parts)
    for (payer, key), rows in metered_rows(columns, holdings, parts.row, parts.holding):
        found[payer].metered[key] = rows
    return found


def _parts(columns: UsageColumns, holdings: Holdings) -> Parts:
    """Hours that lie within one holding and one run are taken whole; the others are cut into quarters."""
    device, quarter = columns.device, columns.first_quarter
    begin, end = (holdings.locate(device, quarter + offset) for offset in (0, QUARTERS - 1))
    same = begin.holding == end.holding
    whole = np.flatnonzero(same & begin.held & end.held)
    run = holdings.run(begin.holding[whole], quarter[whole])
    one_run = run == holdings.run(begin.holding[whole], quarter[whole] + QUARTERS - 1)
    whole, run = whole[one_run], run[one_run]
    # neither end is held by the holding that began last before both: nor is anything between
    cut = np.ones(len(device), np.bool_)
    cut[whole] = False
    cut &= ~(same & ~begin.held & ~end.held)
    rows = np.repeat(np.flatnonzero(cut), QUARTERS)
    place = np.arange(len(rows)) % QUARTERS
    at = quarter[rows] + place
    of = holdings.locate(device[rows], at)
    rows, place, at, holding = (array[of.held] for array in (rows, place, at, of.holding))
    quantities = [np.concatenate((values[whole].sum(axis=1), values[rows, place])) for values in columns.quantities]
    run = np.concatenate((run, holdings.run(holding, at)))
    holding = np.concatenate((begin.holding[whole], holding))
    for number in range(len(QUANTITIES), len(quantities)):
        # an account that does not sell it is rated as if there were none, whoever is rated beside it
        quantities[number] *= holdings.sells_inferred[holding]
    parts = Parts(np.concatenate((whole, rows)), np.concatenate((quarter[whole], at)), holding, run, tuple(quantities))
    some = np.logical_or.reduce([values > 0 for values in quantities])
    row, quarter, holding, run = (array[some] for array in parts[:4])
    return Parts(row, quarter, holding, run, tuple(values[some] for values in quantities))


def _add_cells(found: list[PayerUsage], columns: UsageColumns, holdings: Holdings, parts: Parts) -> None:
    if not len(parts.row):
        return
    holder, slot, zone = holdings.holder[parts.holding], holdings.run_slot[parts.run], columns.zone[parts.row]
    slots, zones = len(holdings.slots), len(columns.zones)
    key = (holder * zones + zone) * slots + slot
    order = np.argsort(key, kind="stable")
    begin = np.concatenate(([0], np.flatnonzero(np.diff(key[order])) + 1))
    group = key[order[begin]]
    rows: list[tuple[Meter, Ints, Ints]] = []
    for meter, values in zip(METER_OF.values(), parts.quantities, strict=False):
        sums = np.add.reduceat(values[order], begin)
        assert int(sums.sum()) == int(values.sum()), "each quantity is in one cell"
        rows.append((meter, group[sums > 0], sums[sums > 0]))
    active_slots, days = _active_days(holdings, parts)
    holders = [holder for _, holder in holdings.holders]
    for meter, keys, sums in rows:
        spread = keys // slots // zones, keys // slots % zones, keys % slots, sums
        _append(found, meter, (holdings.payer_of, holders, columns.zones, holdings.slots), spread)
    spread = days[0], np.zeros(len(days[0]), np.int64), days[1], days[2]
    _append(found, Meter.ACTIVE_DAY, (holdings.payer_of, holders, [""], active_slots), spread)


def _active_days(holdings: Holdings, parts: Parts) -> tuple[tuple[Slot, ...], tuple[Ints, Ints, Ints]]:
    """The slots of active days, which are in no window, and the number of days by holder and slot.

    A day of a device in an account counts once: where its first record of the day is.
    """
    # no record is without content
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


def _append(
    found: list[PayerUsage],
    meter: Meter,
    names: tuple[list[int], list[Holder], list[str], tuple[Slot, ...]],
    numbers: tuple[Ints, Ints, Ints, Ints],
) -> None:
    """A cell for each (holder, zone, slot, quantity)."""
    payer_of, holders, zones, slots = names
    if meter in WITHOUT_ZONE:
        zones = [""] * len(zones)
    add = [found[payer].cells.append for payer in payer_of]
    for holder, zone, slot, quantity in zip(*(array.tolist() for array in numbers), strict=True):
        account, tenant, device, region = holders[holder]
        day, window, version = slots[slot]
        add[holder](Cell(account, tenant, device, region, meter, zones[zone], day, window, version, quantity))
