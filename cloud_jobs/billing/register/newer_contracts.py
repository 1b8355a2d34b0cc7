"""Whose newest closing was made before contracts were collected that have a say in it: it is closed again first.

Else one payer is asked for a device by its contracts of before, and another one by those of now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.billing.contracts.published import MODEL_OF, usable_contract
from cloud_jobs.billing.contracts.versions import micros
from cloud_jobs.billing.errors import BadReference
from cloud_jobs.billing.register.closing import Days
from cloud_jobs.billing.register.ledger import BESIDE
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.snapshots import snapshots
from cloud_jobs.lake.tables import Lake

_KINDS = pa.array([*MODEL_OF])
Changed = set[tuple[str, str]]
"""Kind and id of things that were published."""


def outdated_payers(register: Register, days: Days) -> set[str]:
    """The payers of some days whose newest closing is to be made again. Raises LakeError, StoreUnavailable."""
    lake = register.lake
    newest = _newest_commit(lake)
    commit_of = {one.number: one.reference_commit for one in snapshots(lake)}
    by_commit: dict[int, set[str]] = defaultdict(set)
    for payer, snapshot in register.newest_snapshots(*days).items():
        if commit_of.get(snapshot, 0) < newest:
            by_commit[commit_of.get(snapshot, 0)].add(payer)
    if not by_commit:
        return set()
    rows, end_us = lake.rows("reference").to_pylist(), micros(datetime.combine(days[1], time(), UTC) + BESIDE)
    found, now = set[str](), None
    for commit, payers in by_commit.items():
        if changed := _changed(rows, commit, end_us):
            # also those that are no payers any more, and those whose children went to others
            now = now or Contracts(rows)
            before = Contracts(row for row in rows if row["commit_number"] <= commit)
            names = {name for kind, name in changed if kind == "account"}
            found |= payers & {*names, *now.payers_of(changed), *before.payers_of(changed)}
    return found


def _newest_commit(lake: Lake) -> int:
    """That of the contracts: fences have no say in who pays."""
    rows = lake.rows("reference", ["kind", "commit_number"])
    return pc.max(rows.filter(pc.is_in(rows["kind"], _KINDS))["commit_number"]).as_py() or 0


def _changed(rows: list[dict[str, Any]], commit: int, end_us: int) -> Changed:
    """What was collected after a commit and is in force before the days are over."""
    return {
        (row["kind"], row["id"])
        for row in rows
        if row["commit_number"] > commit and row["kind"] in MODEL_OF and _begins_before(row, end_us)
    }


def _begins_before(row: Mapping[str, Any], end_us: int) -> bool:
    try:
        begin, _ = usable_contract(row["kind"], row["body"])
    except BadReference:
        # whatever it was to say: it blocks who uses it
        return True
    return begin < end_us
