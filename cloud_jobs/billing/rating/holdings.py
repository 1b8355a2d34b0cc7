"""Who pays for a device at which moment, for many payers at once, in arrays that are searched by device and time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from cloud_jobs.billing.contracts import Assignment
from cloud_jobs.billing.errors import AssignedTwice
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
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract
from cloud_jobs.lake.coverage import TenantDevice

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
