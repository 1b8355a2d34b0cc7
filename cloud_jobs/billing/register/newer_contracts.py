"""Whose newest closing was made before contracts were collected that have a say in it: it is closed again first.

Else one payer is asked for a device by its contracts of before, and another one by those of now.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time
from functools import reduce
from typing import Any, Final

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

_KINDS: Final = pa.array([*MODEL_OF])
_MOST_TEXTS: Final = 64
"""So many things are looked for in the texts of accounts; of more, all accounts are parsed."""
Row = Mapping[str, Any]
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
    end_us = micros(datetime.combine(days[1], time(), UTC) + BESIDE)
    published = lake.rows("reference")
    newer = published.filter(pc.greater(published["commit_number"], min(by_commit)))
    rows, found = newer.filter(pc.is_in(newer["kind"], _KINDS)).to_pylist(), set[str]()
    for commit, payers in by_commit.items():
        if changed := _changed(rows, commit, end_us):
            # also those that are no payers any more, and those whose children went to others
            accounts = _concerned(published, changed).to_pylist()
            before = (row for row in accounts if row["commit_number"] <= commit)
            names = {name for kind, name in changed if kind == "account"}
            found |= payers & {*names, *_payers_of(accounts, changed), *_payers_of(before, changed)}
    return found


def _payers_of(rows: Iterable[Row], changed: Changed) -> list[str]:
    return Contracts(rows).payers_of(changed)


def _concerned(published: pa.Table, changed: Changed) -> pa.Table:
    """All publications of the accounts on which some things have a say, of all above these, and perhaps of others."""
    accounts = published.filter(pc.equal(published["kind"], "account"))
    texts = {_named(kind, name) for kind, name in changed if kind != "account"}
    if len(texts) > _MOST_TEXTS:
        return accounts
    # found as text: of a hundred thousand accounts few are parsed; what is written in escapes may name any of them
    named = reduce(pc.or_, (pc.match_substring(accounts["body"], text) for text in ("\\", *texts)))
    known = pa.array([name for kind, name in changed if kind == "account"], pa.string())
    names = {*accounts.filter(pc.or_(named, pc.is_in(accounts["id"], known)))["id"].to_pylist()}
    waiting = names
    while waiting:
        bodies = accounts.filter(pc.is_in(accounts["id"], pa.array([*waiting], pa.string())))["body"].to_pylist()
        waiting = {parent for body in bodies if (parent := _parent(body)) is not None} - names
        names |= waiting
    return accounts.filter(pc.is_in(accounts["id"], pa.array([*names], pa.string())))


def _named(kind: str, name: str) -> str:
    """What stands in the text of an account on which something has a say."""
    # of a rate: the currency into which it is
    return json.dumps(name.rpartition("-")[2].upper() if kind == "exchange_rate" else name)


def _parent(body: str) -> str | None:
    try:
        parent = json.loads(body).get("parent")
    except (AttributeError, RecursionError, ValueError):
        # it cannot be used
        return None
    return parent if isinstance(parent, str) else None


def _newest_commit(lake: Lake) -> int:
    """That of the contracts: fences have no say in who pays."""
    rows = lake.rows("reference", ["kind", "commit_number"])
    return pc.max(rows.filter(pc.is_in(rows["kind"], _KINDS))["commit_number"]).as_py() or 0


def _changed(rows: list[Row], commit: int, end_us: int) -> Changed:
    """What was collected after a commit and is in force before the days are over."""
    return {(row["kind"], row["id"]) for row in rows if row["commit_number"] > commit and _begins_before(row, end_us)}


def _begins_before(row: Row, end_us: int) -> bool:
    try:
        begin, _ = usable_contract(row["kind"], row["body"])
    except BadReference:
        # whatever it was to say: it blocks who uses it
        return True
    return begin < end_us
