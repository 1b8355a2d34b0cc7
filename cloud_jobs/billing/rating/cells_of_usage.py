"""From rows of usage to cells, for many payers at once: each quarter of an hour finds its account, day and window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.calendars import Ints, Slot
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE, Cell, MeteredKey, MeteredRows
from cloud_jobs.billing.rating.contract import RatingContract
from cloud_jobs.billing.rating.holdings import Holder, Holdings
from cloud_jobs.billing.rating.metered_rows import metered_rows
from cloud_jobs.billing.rating.usage_columns import UsageColumns
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS

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
