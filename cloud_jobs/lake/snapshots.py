"""A snapshot: one id for states of the tables that belong together. What is read at it is the same for years.

A snapshot names commits by numbers that were counted, and no moment: no clock has a say in what a bill is made of.
Maintenance keeps what a snapshot names, so whatever is merged, swept or cut short, a read at it gives the same rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.errors import UnknownSnapshot
from cloud_jobs.lake.applied_tracks import applied_tracks
from cloud_jobs.lake.derived import covering
from cloud_jobs.lake.shared_append import Row, append_missing
from cloud_jobs.lake.tables import FENCES, QUARANTINED, Lake, row_fault_as_error
from cloud_jobs.lake.transactions import counter_of, newest_number, stated

TABLE: Final = "snapshots"
_DIGITS: Final = 12
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """What a snapshot stands for: numbers of commits, each 0 or None where there was none yet.

    `ingest_commit`, `usage_commit`: with their random bits, so that another history of the lake is another snapshot.
    `covers`: the ingest number up to which usage covers the records, never beyond `ingest_number`. `usage_fences`: the
    number of the fences that usage was last computed with, as its table states it. `usage_tracks`: the track settings
    and the engine version that it was computed with (JSON); None: it stated none.
    """

    ingest_commit: int | None = None
    usage_commit: int | None = None
    usage_fences: int | None = None
    usage_tracks: str | None = None
    covers: int = 0
    reference_commit: int = 0
    erasures_number: int = 0
    decisions_number: int = 0
    quarantine_commit: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.covers <= self.ingest_number, "usage never covers what the records lack"

    @property
    def ingest_number(self) -> int:
        """The highest ingest number of the records in it."""
        return counter_of(self.ingest_commit)

    @property
    def usage_number(self) -> int:
        """The highest commit number of the usage rows in it."""
        return counter_of(self.usage_commit)

    def digest(self) -> str:
        """SHA-256 of what it stands for, in hex."""
        text = json.dumps(_columns(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(LakeState):
    """A state of the lake that can be read for years. `number`: counted from 1. `taken_at`: of no importance to it."""

    number: int
    taken_at: datetime

    @property
    def id(self) -> str:
        """Its number, and the beginning of the digest of what it stands for: `12-0a1b2c3d4e5f`."""
        return f"{self.number}-{self.digest()[:_DIGITS]}"


_STATE: Final = tuple(LakeState.__dataclass_fields__)


def take_snapshot(lake: Lake, now: datetime) -> Snapshot:
    """The snapshot of the lake as it is: the newest one if nothing has changed since, else a new row.

    Any number of takers at one moment get one. Raises LakeError, CommitConflict, StoreUnavailable.
    """
    assert now.utcoffset() is not None, "a moment"
    taken: list[Snapshot] = []

    def missing(rows: pa.Table) -> list[Row]:
        # after the snapshots: one that is committed before this was read later, and holds no less
        state = newest_state(lake)
        newest = rows.filter(pc.equal(rows["number"], pc.max(rows["number"]))).to_pylist()
        last = _snapshot(newest[0]) if newest else None
        if last is not None and last.digest() == state.digest():
            taken[:] = [last]
            return []
        number = 1 if last is None else last.number + 1
        taken[:] = [Snapshot(**_columns(state), number=number, taken_at=now.astimezone(UTC))]
        return [_columns(taken[0]) | {"number": number, "id": taken[0].id, "taken_at": taken[0].taken_at}]

    append_missing(lake, TABLE, ["number", "id", "taken_at", *_STATE], missing)
    return taken[0]


def snapshots(lake: Lake) -> list[Snapshot]:
    """All that were taken, in their order. Raises LakeError."""
    return sorted((_snapshot(row) for row in lake.rows(TABLE).to_pylist()), key=lambda one: one.number)


def read_snapshot(lake: Lake, snapshot_id: str) -> Snapshot:
    """The snapshot of an id. Raises UnknownSnapshot, LakeError."""
    found = lake.rows(TABLE, where=[("id", "=", snapshot_id)]).to_pylist()
    if not found:
        newest = [one.id for one in snapshots(lake)[-_MAX_NAMED:]]
        raise UnknownSnapshot(snapshot_id, newest)
    return _snapshot(found[0])


def commits_of_snapshots(lake: Lake) -> set[int]:
    """The commits of the ingest whose coverage a snapshot needs. Raises LakeError."""
    commits = lake.rows(TABLE, ["ingest_commit"])["ingest_commit"].drop_null().unique()
    return {*commits.to_pylist()}


def newest_state(lake: Lake) -> LakeState:
    """What the lake is now. Usage first: what is ingested or published meanwhile is more than it covers, never less."""
    usage = lake.open("usage")
    covered = covering(usage, "usage", lake.open("records"))
    return LakeState(
        ingest_commit=covered.newest,
        usage_commit=newest_number(usage, "usage"),
        usage_fences=stated(usage, FENCES),
        usage_tracks=applied_tracks(lake, usage),
        covers=covered.since or 0,
        reference_commit=_highest(lake, "reference", "commit_number"),
        # after the records: positions are gone from no version of them without the erasure that says so
        erasures_number=_highest(lake, "erasures", "number"),
        decisions_number=_highest(lake, "decisions", "number"),
        quarantine_commit=counter_of(newest_number(lake.open("quarantine"), QUARANTINED)),
    )


def _highest(lake: Lake, table: str, column: str) -> int:
    return int(pc.max(lake.rows(table, [column])[column]).as_py() or 0)


def _columns(state: LakeState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in _STATE}


def _snapshot(row: Row) -> Snapshot:
    with row_fault_as_error(TABLE, row):
        made = Snapshot(
            **{name: row[name] for name in _STATE},
            number=row["number"],
            taken_at=row["taken_at"].astimezone(UTC),
        )
        if made.id != row["id"]:
            raise ValueError("its id is not that of what it stands for")
        return made
