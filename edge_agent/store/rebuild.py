"""A new buffer from a damaged one: what can be read keeps its ids, the rest is declared lost, a new epoch begins.

    buffer.db damaged ─▶ buffer.rebuilding beside it ─synced, renamed─▶ buffer.rebuilt ─┬─ buffer.db to buffer.damaged-N
                                                                                        └─ buffer.rebuilt to buffer.db

Broken off on the left of `buffer.rebuilt` nothing has happened; on its right the next start goes on.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from edge_agent.errors import StoreFull
from edge_agent.notify import notify
from edge_agent.store.connection import Connection, Connector, mapped_errors, transaction
from edge_agent.store.gaps import UNCOUNTED, count_missing
from edge_agent.store.lineage import Lineage, read_lineage
from edge_agent.store.salvage import (
    CORRUPT,
    Salvage,
    archive_database,
    archived_databases,
    declare_rest_lost,
    declare_tail_lost,
    finish_archiving,
    is_sound,
    owners,
    read_tables,
    readable_rows,
)
from edge_agent.store.schema import create_tables
from edge_agent.store.stored_batch import batch_row_id, ordinal_of
from runtime import sync_folder
from telemetry import Batch, IntervalSet, Tombstone, encode

REBUILDING, REBUILT = "rebuilding", "rebuilt"
"""What the new file is called until it is complete and synced, and then until it has its place."""
_UNFIT = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Errors of a row that cannot be taken over, and not of the disk."""
COPY_OVERHEAD_BYTES = 1 << 20
"""Room for what is not a copy: other tables, tombstones."""
ROWS_PER_NOTIFY = 256
EXTEND_TIMEOUT_S = 60
"""systemd is asked for so long with each sign of life."""


def rebuild(database: Path, device: str, epoch_for: Callable[[int], int], connect: Connector) -> Salvage:
    """Puts a new file, with what can be read, in the place of a damaged one, which is archived.

    The damaged file stays where it is until the new one is complete: whatever breaks this off before has changed
    nothing, and `finish_rebuild` ends it after. Raises StoreError: StoreFull where a second copy has no room.
    """
    beside = database.with_name(f"{database.stem}.{REBUILDING}")
    _remove(beside)
    _check_room(database, connect)
    lineage = read_lineage(database.parent)
    if lineage is not None and lineage.device != device:
        lineage = None
    try:
        with mapped_errors(), closing(connect(beside)) as new:
            _prepare_copy(new)
            create_tables(new)
            salvage = _fill(new, database, device, epoch_for, connect, lineage)
    except BaseException:
        _remove(beside)
        raise
    beside.replace(beside.with_name(f"{database.stem}.{REBUILT}"))
    sync_folder(database.parent)
    finish_rebuild(database)
    return salvage


def finish_rebuild(database: Path) -> None:
    """Gives a complete new file its place, if there is one; of the damaged ones the last stays. Raises OSError."""
    rebuilt = database.with_name(f"{database.stem}.{REBUILT}")
    if not rebuilt.exists():
        return
    if database.exists():
        archive_database(database)
    elif archived := archived_databases(database):
        finish_archiving(database, archived[-1])
    rebuilt.replace(database)
    sync_folder(database.parent)
    delete_damaged(database, keep=1)


def delete_damaged(database: Path, keep: int) -> int:
    """Deletes the oldest of the files that were rebuilt: what can be read of them was taken over. How many."""
    old = archived_databases(database)[: -keep or None]
    for path in old:
        _remove(path)
    return len(old)


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _check_room(database: Path, connect: Connector) -> None:
    needed = _waiting_bytes(database, connect) * 9 // 8 + COPY_OVERHEAD_BYTES
    system = os.statvfs(database.parent)
    free = system.f_bavail * system.f_frsize
    if free < needed:
        raise StoreFull(f"{database} is damaged; to rebuild it takes {needed} bytes, and {free} are free")


def _waiting_bytes(database: Path, connect: Connector) -> int:
    """What a copy takes: of a file that cannot say it, as much as the file has."""
    with suppress(sqlite3.Error, UnicodeDecodeError, TypeError), closing(connect(database)) as damaged:
        (size,) = damaged.execute("SELECT sum(size + 100 + coalesce(length(arrivals), 0)) FROM batches").fetchone()
        return int(size or 0)
    parts = [database.with_name(database.name + suffix) for suffix in ("", "-wal")]
    return sum(part.stat().st_size for part in parts if part.exists())


def _prepare_copy(new: Connection) -> None:
    """No log: a copy that is not complete is thrown away. The end of its one transaction is synced all the same."""
    for pragma in ("page_size = 4096", "journal_mode = OFF", "synchronous = FULL", "temp_store = MEMORY"):
        new.execute(f"PRAGMA {pragma}").fetchall()


def _fill(  # noqa: PLR0917 - the parts of one step
    new: Connection,
    damaged_file: Path,
    device: str,
    epoch_for: Callable[[int], int],
    connect: Connector,
    lineage: Lineage | None,
) -> Salvage:
    salvage = Salvage()
    with transaction(new):
        try:
            with closing(connect(damaged_file)) as damaged:
                sound = is_sound(damaged)
                if owners(damaged) - {device}:
                    # Another device's ids are not ours to send, nor to declare.
                    with mapped_errors():
                        _write_tables(new, device, Salvage(), epoch_for)
                    return Salvage()
                salvage = read_tables(damaged, lineage)
                if lineage is not None and salvage.epochs[lineage.ordinal][0] != lineage.epoch:
                    lineage = None
                _copy_rows(new, damaged, device, salvage)
                declare_tail_lost(salvage, lineage)
                if not sound:
                    declare_rest_lost(salvage, lineage)
        except (sqlite3.Error, UnicodeDecodeError):
            # Not one page can be read: all that the small file beside it knows of is lost.
            salvage = salvage if salvage.epochs else _nothing_but(lineage)
        for ordinal, seqs in salvage.lost_seqs.items():
            salvage.lost_seqs[ordinal] = seqs - salvage.known_seqs.get(ordinal, IntervalSet())
        _write_tables(new, device, salvage, epoch_for)
    return salvage


def _copy_rows(new: Connection, damaged: Connection, device: str, salvage: Salvage) -> None:
    for number, row in enumerate(readable_rows(damaged, device, salvage)):
        if number % ROWS_PER_NOTIFY == 0:
            notify(
                f"EXTEND_TIMEOUT_USEC={EXTEND_TIMEOUT_S * 1_000_000}", f"STATUS=rebuilding the buffer: {number} batches"
            )
        with mapped_errors():  # an error of the new file says nothing of what can be read in the other
            new.execute(
                "INSERT OR IGNORE INTO batches"
                " (id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )


def _nothing_but(lineage: Lineage | None) -> Salvage:
    salvage = Salvage()
    if lineage is not None:
        salvage.epochs[lineage.ordinal] = (lineage.epoch, 0)
        salvage.add_lost(lineage.ordinal, lineage.pruned_through + 1, lineage.head_limit)
    return salvage


def _write_tables(new: Connection, device: str, salvage: Salvage, epoch_for: Callable[[int], int]) -> None:
    heads = {ordinal: head for ordinal, (_, head) in salvage.epochs.items()}
    for identity, last in new.execute("SELECT max(id), max(last) FROM batches GROUP BY id >> 44").fetchall():
        heads[ordinal_of(identity)] = max(last, heads.get(ordinal_of(identity), 0))
    for ordinal, seqs in salvage.lost_seqs.items():
        heads[ordinal] = max(seqs.last or 0, heads.get(ordinal, 0))
    for ordinal, (epoch, _) in sorted(salvage.epochs.items()):
        new.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", (ordinal, epoch, device, heads[ordinal]))
        seqs = salvage.lost_seqs.get(ordinal, IntervalSet())
        _declare(new, ordinal, Batch(device, epoch, heads[ordinal]), seqs)
    newest = max(salvage.epochs, default=0) + 1
    least = max((epoch for epoch, _ in salvage.epochs.values()), default=0)
    new.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (newest, epoch_for(least), device))
    salvage.counters["rebuilt"] = salvage.counters.get("rebuilt", 0) + 1
    lost = sum(seqs.count for seqs in salvage.lost_seqs.values())
    salvage.counters[f"lost_{CORRUPT}"] = salvage.counters.get(f"lost_{CORRUPT}", 0) + lost
    known = {**salvage.counters, UNCOUNTED: 0}
    salvage.counters[UNCOUNTED] = count_missing(new, 0, known)
    for name, value in salvage.counters.items():
        new.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))
    for row in salvage.boots:
        with suppress(*_UNFIT):
            new.execute("INSERT OR REPLACE INTO boots VALUES (?, ?, ?, ?, ?, ?)", tuple(row))
    _write_dead_letters(new, salvage)


def _write_dead_letters(new: Connection, salvage: Salvage) -> None:
    for row in reversed(salvage.dead_letters):
        with suppress(*_UNFIT):
            new.execute(
                "INSERT INTO dead_letters (wall_ms, topic, bytes, payload, reason) VALUES (?, ?, ?, ?, ?)", tuple(row)
            )


def _declare(new: Connection, ordinal: int, empty: Batch, seqs: IntervalSet) -> None:
    for first, last in seqs.ranges:
        data = encode(replace(empty, tombstones=(Tombstone(first, last, CORRUPT),)))
        new.execute(
            "INSERT OR REPLACE INTO batches (id, last, class, records, lost, size, wall_ms, boot, batch)"
            " VALUES (?, ?, 0, 0, ?, ?, 0, '', ?)",
            (batch_row_id(ordinal, first), last, last - first + 1, len(data), data),
        )
