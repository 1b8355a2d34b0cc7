"""What was published since a closing was made, and on whom that has a say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from functools import cached_property, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.billing.contracts.published import MODEL_OF, usable_contract
from cloud_jobs.billing.contracts.versions import micros
from cloud_jobs.billing.errors import BadReference
from cloud_jobs.billing.register.ledger import BESIDE
from cloud_jobs.lake.snapshots import Snapshot, snapshots
from cloud_jobs.lake.tables import Condition, Lake

_MOST_TEXTS: Final = 64
"""So many things are looked for in the texts of accounts; of more, all accounts are parsed."""
Row = Mapping[str, Any]
Changed = frozenset[tuple[str, str]]
"""Kind and id of things that were published."""


class NewerContracts:
    """What was collected after the contracts of a snapshot, and is in force before some day is over.

    Contracts are named by their `commit`, that of the newest publication among them. What is asked for is read and
    parsed once. Each question raises LakeError, StoreUnavailable.
    """

    def __init__(self, lake: Lake, last_day: date, until: Snapshot | None = None) -> None:
        """`until`: what is now; None: all there is."""
        self._lake = lake
        self._end_us = micros(datetime.combine(last_day, time(), UTC) + BESIDE)
        self._snapshots = {one.number: one for one in snapshots(lake)}
        self.until = until
        self._newest = _newest_commit(lake, until)
        self._changed: dict[int, Changed] = {}
        self._payers: dict[tuple[int, Changed], set[str]] = {}
        self._before: dict[int, Contracts] = {}

    def commit_of(self, snapshot: int) -> int:
        """The commit of a snapshot's contracts; 0, the oldest there can be, of one that nobody knows any more."""
        known = self.snapshot(snapshot)
        return 0 if known is None else min(known.reference_commit, self._newest)

    def snapshot(self, number: int) -> Snapshot | None:
        """The snapshot of a number; None of one that nobody knows any more."""
        return self._snapshots.get(number)

    def changed(self, commit: int) -> Changed:
        """What was published since."""
        if commit >= self._newest:
            return frozenset()
        if commit not in self._changed:
            newer = self._published.filter(pc.greater(self._published["commit_number"], commit))
            self._changed[commit] = frozenset(
                (row["kind"], row["id"]) for row in newer.to_pylist() if _begins_before(row, self._end_us)
            )
        return self._changed[commit]

    def payers_of(self, changed: Changed, commit: int) -> set[str]:
        """On whom some things have a say that were changed since: by the contracts of then, or by those of now."""
        if changed and (commit, changed) not in self._payers:
            rows = _concerned(self._published, changed).to_pylist()
            names = {name for kind, name in changed if kind == "account"}
            # also those that are no payers any more, and those whose children went to others
            for known in (rows, (row for row in rows if row["commit_number"] <= commit)):
                names.update(Contracts(known).payers_of(changed))
            self._payers[commit, changed] = names
        return self._payers.get((commit, changed), set())

    def given_away(self, commit: int) -> set[str]:
        """On whom the accounts have a say that were changed since: nothing else says who pays for what."""
        return self.payers_of(frozenset(one for one in self.changed(commit) if one[0] == "account"), commit)

    @cached_property
    def now(self) -> Contracts:
        """The contracts with all that was published."""
        return Contracts(self._published.to_pylist())

    def before(self, commit: int) -> Contracts:
        """The contracts of then."""
        if commit not in self._before:
            known = self._published.filter(pc.less_equal(self._published["commit_number"], commit))
            self._before[commit] = Contracts(known.to_pylist())
        return self._before[commit]

    @cached_property
    def _published(self) -> pa.Table:
        return _reference(self._lake, self.until)


def _concerned(published: pa.Table, changed: Iterable[tuple[str, str]]) -> pa.Table:
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


def _reference(lake: Lake, until: Snapshot | None, columns: Sequence[str] | None = None) -> pa.Table:
    """The contracts that are known; fences have no say in who pays."""
    known: list[Condition] = [] if until is None else [("commit_number", "<=", until.reference_commit)]
    return lake.rows("reference", columns, where=[("kind", "in", [*MODEL_OF]), *known])


def _newest_commit(lake: Lake, until: Snapshot | None) -> int:
    return pc.max(_reference(lake, until, ["commit_number"])["commit_number"]).as_py() or 0


def _begins_before(row: Row, end_us: int) -> bool:
    try:
        begin, _ = usable_contract(row["kind"], row["body"])
    except BadReference:
        # whatever it was to say: it blocks who uses it
        return True
    return begin < end_us
