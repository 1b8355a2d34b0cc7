"""Devices that two accounts would pay for at one moment, found by sorting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.billing.contracts.errors import DeviceInTwoAccounts
from cloud_jobs.billing.contracts.published import AccountFacts
from cloud_jobs.billing.contracts.versions import EVER, ContractVersions, moment_of
from cloud_jobs.lake.coverage import TenantDevice

Numbers = NDArray[np.int64]


class Overlap(NamedTuple):
    """A device of two accounts from `begin_us` until `end_us` (excluded)."""

    begin_us: int
    end_us: int
    of_device: TenantDevice
    accounts: tuple[str, str]

    @property
    def fault(self) -> DeviceInTwoAccounts:
        """What is to be said of it."""
        end = None if self.end_us == EVER else moment_of(self.end_us)
        return DeviceInTwoAccounts(self.of_device, self.accounts, moment_of(self.begin_us), end)


def overlaps(
    accounts: Mapping[str, ContractVersions[AccountFacts]], names: list[tuple[str, str]]
) -> dict[str, list[Overlap]]:
    """Of each account the times in which another one has one of its devices; `names`: the device of each number.

    Of a time for which a version of an account cannot be used nobody knows its devices: it overlaps with nothing.
    """
    ids = sorted(accounts)
    rows = _assignments([accounts[one] for one in ids])
    rows = rows[:, np.lexsort((rows[3], rows[1], rows[0]))]
    found: dict[str, list[Overlap]] = defaultdict(list)
    device, begin, end, account = rows
    for first, after in _touching(device, begin, end):
        # Within one device: each assignment against the one before it that ends last. Whatever an assignment overlaps
        # with, some pair of these covers it, so each account that is in an overlap is found, for all of its time.
        longest = first
        for at in range(first + 1, after):
            if begin[at] < end[longest]:
                pair = tuple(sorted((ids[account[longest]], ids[account[at]])))
                until = int(min(end[at], end[longest]))
                one = Overlap(int(begin[at]), until, TenantDevice(*names[device[at]]), (pair[0], pair[1]))
                for owner in pair:
                    found[owner].append(one)
            if end[at] > end[longest]:
                longest = at
    return dict(found)


def _assignments(accounts: Iterable[ContractVersions[AccountFacts]]) -> Numbers:
    """Four rows: device, begin, end and the account's number, of each assignment that is in force for some time."""
    parts: list[Numbers] = [np.empty((4, 0), np.int64)]
    for number, versions in enumerate(accounts):
        for at, (since, facts) in enumerate(zip(versions.begins, versions.facts, strict=True)):
            if facts.devices:
                made = np.empty((4, len(facts.devices) // 3), np.int64)
                made[:3] = np.frombuffer(facts.devices, np.int64).reshape(-1, 3).T
                made[1] = np.maximum(made[1], since)
                made[2] = np.minimum(made[2], _until(versions, at))
                made[3] = number
                parts.append(made[:, made[1] < made[2]])
    return np.concatenate(parts, axis=1)


def _until(versions: ContractVersions[AccountFacts], at: int) -> int:
    """Until when a version says which devices an account has."""
    refused = (one.begin_us for one in versions.refusals if one.begin_us is not None)
    ends = [*versions.begins[at + 1 : at + 2], *(begin for begin in refused if begin >= versions.begins[at])]
    return min([*ends, versions.ends[at]])


def _touching(device: Numbers, begin: Numbers, end: Numbers) -> list[tuple[int, int]]:
    """From where to where the rows of each device stand that has two assignments of which one begins in the other."""
    if not len(device):
        return []
    # rows are by device and begin, so if any two of a device overlap, two neighbours do
    near = np.flatnonzero((device[1:] == device[:-1]) & (begin[1:] < end[:-1]))
    each = np.unique(device[near])
    firsts, afters = np.searchsorted(device, each), np.searchsorted(device, each, "right")
    return list(zip(firsts.tolist(), afters.tolist(), strict=True))
