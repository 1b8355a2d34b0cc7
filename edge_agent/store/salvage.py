"""Reading what can be read of a damaged file, and saying what cannot.

If the structure of the file is sound and only the content of some batches is not, exactly those are lost. Otherwise a
batch may be missing without a trace, so every record id that was not found, and is not known to be acknowledged, is
declared lost: who has received a record does not mind hearing that it was lost on the device.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.config import MAX_CLASSES
from edge_agent.store.connection import Connection
from edge_agent.store.lineage import Lineage
from edge_agent.store.message_dead_letters import MAX_DEAD_LETTERS
from edge_agent.store.stored_batch import batch_row_id, first_of, ordinal_of
from runtime import sync_folder
from telemetry import IntervalSet, WireError, validate

CORRUPT = "corrupt"
_DEAD_LETTERS = "SELECT wall_ms, topic, bytes, payload, reason FROM dead_letters ORDER BY id DESC LIMIT ?"
_ROW = "id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch"


@dataclass(slots=True)
class Salvage:
    """What came out of a damaged file. `lost_seqs`: by ordinal, ids that cannot be read.

    `known_seqs`: by ordinal, the ids that wait or are acknowledged.
    """

    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    boots: list[Any] = field(default_factory=list)
    dead_letters: list[Any] = field(default_factory=list)
    lost_seqs: dict[int, IntervalSet] = field(default_factory=dict)
    known_seqs: dict[int, IntervalSet] = field(default_factory=dict)
    batches: int = 0
    tail: int | None = None

    def add_known(self, ordinal: int, seqs: IntervalSet) -> None:
        """Ids that wait or are acknowledged."""
        self.known_seqs[ordinal] = self.known_seqs.get(ordinal, IntervalSet()) | seqs

    def add_lost(self, ordinal: int, first: int, last: int) -> None:
        """Ids whose records cannot be read."""
        if first <= last:
            self.lost_seqs[ordinal] = self.lost_seqs.get(ordinal, IntervalSet()) | IntervalSet([(first, last)])


def archive_database(database: Path, why: str = "damaged") -> Path:
    """Moves a file and its log out of the way; where to. Interrupted, it is ended by `finish_archiving`.

    The file goes first: without its log it would be an older buffer, and give ids a second time.
    """
    before = archived_databases(database, why)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    archived = database.with_name(f"{database.stem}.{why}-{number}")
    if database.exists():
        database.rename(archived)
        sync_folder(database.parent)
    finish_archiving(database, archived)
    return archived


def archived_databases(database: Path, why: str = "damaged") -> list[Path]:
    """The files that were archived, the oldest first."""
    paths = [
        path for path in database.parent.glob(f"{database.stem}.{why}-*") if path.name.rpartition("-")[2].isdigit()
    ]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def finish_archiving(database: Path, archived: Path) -> None:
    """Moves what belongs to an archived file, so that no new file takes it for its own."""
    for suffix in ("-wal", "-shm"):
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(archived.with_name(archived.name + suffix))
    sync_folder(database.parent)


def read_tables(damaged: Connection, lineage: Lineage | None) -> Salvage:
    """Everything but the batches, as far as it can be read."""
    salvage = Salvage()
    with suppress(sqlite3.Error, TypeError, ValueError):
        for ordinal, epoch, head in damaged.execute("SELECT ordinal, epoch, head FROM epochs").fetchall():
            salvage.epochs[int(ordinal)] = (int(epoch), int(head))
    with suppress(sqlite3.Error, TypeError, ValueError):
        for name, value in damaged.execute("SELECT name, value FROM counters").fetchall():
            salvage.counters[str(name)] = int(value)
    with suppress(sqlite3.Error, ValueError):
        salvage.boots = damaged.execute("SELECT * FROM boots").fetchall()
    with suppress(sqlite3.Error, ValueError):
        salvage.dead_letters.extend(damaged.execute(_DEAD_LETTERS, (MAX_DEAD_LETTERS,)))
    if lineage is not None:
        salvage.epochs.setdefault(lineage.ordinal, (lineage.epoch, 0))
    return salvage


def owners(damaged: Connection) -> set[str]:
    """The devices that the file says it belongs to; none where it cannot be read."""
    with suppress(sqlite3.Error, UnicodeDecodeError):
        return {str(device) for (device,) in damaged.execute("SELECT DISTINCT device FROM epochs").fetchall()}
    return set()


def is_sound(damaged: Connection) -> bool:
    """Whether the structure of the file is whole, whatever its batches hold."""
    try:
        return bool(damaged.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def readable_rows(damaged: Connection, device: str, salvage: Salvage) -> Iterator[tuple[Any, ...]]:
    """The rows of `batches` whose batch is whole, ascending. The ids of the others go to `lost_seqs`.

    A row that is not whole may be wrong about its end too: what lies between it and the next whole row goes with it.
    """
    distrusted: int | None = None
    for row in _rows(damaged, max(salvage.epochs, default=1)):
        seqs = _seqs_in(row, device, salvage)
        if seqs is None:
            distrusted = row[0] if distrusted is None else distrusted
            continue
        if distrusted is not None:
            _declare_lost_up_to(salvage, distrusted, row[0])
            distrusted = None
        salvage.batches += row[10] is not None
        salvage.add_known(ordinal_of(row[0]), seqs)
        yield row
    if distrusted is not None:
        salvage.tail = distrusted


def declare_tail_lost(salvage: Salvage, lineage: Lineage | None) -> None:
    """Declares what followed the last whole row, if rows that are not whole did."""
    if salvage.tail is None:
        return
    ordinal = ordinal_of(salvage.tail)
    bound = lineage.head_limit if lineage and lineage.ordinal == ordinal else salvage.epochs.get(ordinal, (0, 0))[1]
    salvage.add_lost(ordinal, first_of(salvage.tail), max(bound, first_of(salvage.tail)))


def _declare_lost_up_to(salvage: Salvage, identity: int, following: int) -> None:
    ordinal = ordinal_of(identity)
    head = salvage.epochs.get(ordinal, (0, 0))[1]
    last = first_of(following) - 1 if ordinal_of(following) == ordinal else max(head, first_of(identity))
    salvage.add_lost(ordinal, first_of(identity), last)


def declare_rest_lost(salvage: Salvage, lineage: Lineage | None) -> None:
    """Declares every record id that was not found and is not known to have been acknowledged."""
    for ordinal, (_, head) in salvage.epochs.items():
        first, last = 1, max(head, salvage.known_seqs.get(ordinal, IntervalSet()).last or 0)
        if lineage is not None and lineage.ordinal == ordinal:
            first, last = lineage.pruned_through + 1, max(last, lineage.head_limit)
        salvage.add_lost(ordinal, first, last)


def _seqs_in(row: tuple[Any, ...], device: str, salvage: Salvage) -> IntervalSet | None:
    """The record ids that a row covers; None when it cannot be trusted."""
    identity, last, class_index, records, lost, data = *row[:5], row[10]
    try:
        span = IntervalSet([(first_of(identity), last)])
        if data is None:
            return span if records == lost == 0 else None
        header = validate(data)
        counts = (header.record_seqs.count, header.lost_seqs.count, len(data))
        if counts != (records, lost, row[5]) or class_index not in range(MAX_CLASSES):
            return None
        epoch = salvage.epochs.get(ordinal_of(identity), (header.epoch, 0))[0]
        seqs = header.seqs
        return seqs if span.covers(seqs) and (header.device, header.epoch) == (device, epoch) else None
    except (WireError, TypeError, ValueError):
        return None


def _rows(damaged: Connection, newest: int) -> Iterator[tuple[Any, ...]]:
    """Every row that can be read, ascending; at an error one of an id and ten times None, and a step that grows."""
    end = batch_row_id(newest + 1, 0)
    at, step = 0, 1
    while at < end:
        try:
            row = damaged.execute(
                f"SELECT {_ROW} FROM batches WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608 - fixed columns
                (at,),
            ).fetchone()
        except (sqlite3.Error, UnicodeDecodeError):
            yield (max(at + 1, batch_row_id(1, 1)), *(None,) * 10)
            at, step = max(at + step, batch_row_id(1, 0)), step * 2
            continue
        if row is None:
            return
        at, step = max(row[0], at + 1), 1
        yield tuple(row)
