"""Whose newest closing rests on what is not so any more: it is made again before anything is posted, or said of it.

By contracts of before one payer would be asked for a device that another one is asked for by those of now; and what a
decision closed is open again when it is withdrawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow.compute as pc

from cloud_jobs.billing.register.closing import Days
from cloud_jobs.billing.register.newer_contracts import NewerContracts
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import Snapshot
from cloud_jobs.lake.tables import Condition, Lake

_CONTRACTS: Final = "contracts were published since it was closed"


class _Withdrawn(NamedTuple):
    """Decision `number`, about a device; `at`: the number of what took it back."""

    number: int
    at: int
    device: TenantDevice


def outdated_closings(
    register: Register, days: Days, newer: NewerContracts, payers: Collection[str] | None = None
) -> dict[str, str]:
    """Of the payers of some days, or of some of them, whose newest closing is to be made again, and why.

    `newer`: up to the last of the days, or later; what came after its `until` is not known. Raises LakeError,
    StoreUnavailable.
    """
    newest = register.newest_snapshots(*days, until=None if newer.until is None else newer.until.number)
    if payers is not None:
        newest = {payer: snapshot for payer, snapshot in newest.items() if payer in payers}
    found = dict(_withdrawn(register, days, newer, newest))
    by_commit: dict[int, set[str]] = defaultdict(set)
    for payer, snapshot in newest.items():
        by_commit[newer.commit_of(snapshot)].add(payer)
    for commit, names in by_commit.items():
        found.update(dict.fromkeys(names & newer.payers_of(newer.changed(commit), commit), _CONTRACTS))
    return found


def _withdrawn(
    register: Register, days: Days, newer: NewerContracts, newest: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    then = {payer: newer.snapshot(number) for payer, number in newest.items()}
    known = {payer: 0 if snapshot is None else snapshot.decisions_number for payer, snapshot in then.items()}
    taken_back = _taken_back_since(register.lake, min(known.values(), default=0), newer.until)
    if not taken_back:
        return
    devices = register.certified_devices(*days, [one.device for one in taken_back])
    for one in taken_back:
        for payer in devices.get(one.device, ()):
            if known.get(payer, one.at) < one.at:
                yield payer, f"decision {one.number} was withdrawn since it was closed"


def _taken_back_since(lake: Lake, number: int, until: Snapshot | None) -> list[_Withdrawn]:
    known: list[Condition] = [] if until is None else [("number", "<=", until.decisions_number)]
    rows = lake.rows("decisions", where=[("number", ">", number), *known])
    withdrawals = rows.filter(pc.is_valid(rows["withdraws"])).to_pylist()
    return [
        _Withdrawn(row["withdraws"], row["number"], TenantDevice(row["tenant"], row["device"])) for row in withdrawals
    ]
