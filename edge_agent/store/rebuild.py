"""Rebuilds a damaged buffer: readable rows keep their ids, the rest is declared lost, and a new epoch begins.

    buffer.db damaged ─▶ buffer.rebuilding beside it ─synced, renamed─▶ buffer.rebuilt ─┬─ buffer.db to buffer.damaged-N
                                                                                        └─ buffer.rebuilt to buffer.db

Interrupted before `buffer.rebuilt` exists, nothing has changed; afterwards, the next start completes it.

If the file's structure is sound and only some batches are not, exactly those are lost. Otherwise a batch may be missing
without a trace, so every id that was not found and is not known to be acknowledged is declared lost. A received record
stays received, although the device declares it lost.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.config import MAX_CLASSES
from edge_agent.errors import StoreForeign
from edge_agent.process import notify
from edge_agent.store.batch_rows import (
    batch_row_id,
    first_of,
    insert_tombstones,
    ordinal_of,
)
from edge_agent.store.connection import Connection, create_tables, is_sound
from edge_agent.store.database import UNCOUNTED, BufferOptions, mapped_errors, transaction
from edge_agent.store.epochs import Lineage, read_lineage
from waybill.daemon.durable_file import sync_folder
from waybill.record import Batch, IntervalSet, WireError, validate

# Database files that were moved aside.

_LOG_OF = "log-of-"
"""Prefix of a moved log until its file has the name that follows."""
FOREIGN = "foreign"
"""Part of the name of a kept file of another device or tenant."""


def archive_database(database: Path, why: str = "damaged") -> Path:
    """Moves a file and its log out of the way; returns the new path. `finish_archiving` completes it after a crash.

    The log goes first, under a name that says where both belong: a file without its log would be an older buffer, and
    SQLite deletes a log without its file.
    """
    before = archived_databases(database, why)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    archived = database.with_name(f"{database.stem}.{why}-{number}")
    log = database.with_name(database.name + "-wal")
    if log.exists():
        log.rename(database.with_name(_LOG_OF + archived.name))
        # Between the renames: a power cut may keep the second and undo the first.
        sync_folder(database.parent)
        finish_archiving(database)
    else:
        _move(database, archived)
    return archived


def archived_databases(database: Path, why: str = "damaged") -> list[Path]:
    """The archived files, the oldest first."""
    paths = [
        path for path in database.parent.glob(f"{database.stem}.{why}-*") if path.name.rpartition("-")[2].isdigit()
    ]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def finish_archiving(database: Path) -> None:
    """Completes an interrupted `archive_database`, before the file is opened. Raises OSError."""
    for log in database.parent.glob(f"{_LOG_OF}{database.stem}.*"):
        archived = database.with_name(log.name.removeprefix(_LOG_OF))
        if not archived.exists():
            _move(database, archived)
        log.rename(archived.with_name(archived.name + "-wal"))
        sync_folder(database.parent)


def _move(database: Path, archived: Path) -> None:
    for suffix in ("-shm", ""):
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(archived.with_name(archived.name + suffix))
    sync_folder(database.parent)


def delete_damaged(database: Path, keep: int) -> int:
    """Deletes the oldest archived damaged files except `keep`; returns how many."""
    old = archived_databases(database)[: -keep or None]
    for path in old:
        delete_database(path)
    return len(old)


def delete_database(database: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


# Invariants of the counters: each record id waits, is acknowledged or is declared lost.


def count_missing(connection: Connection, head: int, counters: Mapping[str, int]) -> int:
    """The number of ids that neither wait nor are acknowledged nor declared; 0 unless something is wrong. `head`: of
    this epoch.
    """
    (before,) = connection.execute(
        "SELECT coalesce(sum(head), 0) FROM epochs WHERE ordinal < (SELECT max(ordinal) FROM epochs)"
    ).fetchone()
    (waiting,) = connection.execute(
        "SELECT coalesce(sum(records + lost), 0) FROM batches WHERE batch IS NOT NULL"
    ).fetchone()
    return int(before + head - waiting - counters.get("acknowledged", 0) - counters.get(UNCOUNTED, 0))


CORRUPT = "corrupt"
"""The tombstone reason of unreadable records."""
REBUILDING, REBUILT = "rebuilding", "rebuilt"
"""Names of the new file: until it is complete and synced, and then until it is in place."""
ROWS_PER_NOTIFY = 256
EXTEND_TIMEOUT_S = 60
"""The extension of systemd's start timeout with each notification."""
_ROW = "id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch"


@dataclass(slots=True)
class Salvage:
    """The content of a damaged file, by ordinal. `epochs`: number and head. `lost_seqs`: unreadable ids.
    `known_seqs`: ids that wait or are acknowledged.
    """

    lineage: Lineage | None
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    lost_seqs: defaultdict[int, IntervalSet] = field(default_factory=lambda: defaultdict(IntervalSet))
    known_seqs: defaultdict[int, IntervalSet] = field(default_factory=lambda: defaultdict(IntervalSet))
    subscriptions: set[str] = field(default_factory=set)
    batches: int = 0

    def bound_of(self, ordinal: int) -> int:
        """The highest id that the epoch can have given."""
        head = self.epochs.get(ordinal, (0, 0))[1]
        is_known = self.lineage is not None and self.lineage.ordinal == ordinal
        return max(head, self.lineage.head_limit) if self.lineage and is_known else head

    def add_lost(self, ordinal: int, first: int, last: int) -> None:
        if first <= last:
            self.lost_seqs[ordinal] |= IntervalSet([(first, last)])


def rebuild(database: Path, options: BufferOptions) -> Salvage:
    """Replaces a damaged file with a new one that has its readable rows, and archives the damaged one.

    The damaged file stays in place until the new one is complete. Raises StoreError: StoreFull without room for a copy,
    StoreForeign for another owner's file, whose ids are not ours to send or declare.
    """
    beside = database.with_name(f"{database.stem}.{REBUILDING}")
    # An interrupted attempt may have left an incomplete file.
    delete_database(beside)
    lineage = read_lineage(database.parent)
    _refuse_foreign(database, options, lineage)
    try:
        with mapped_errors(), closing(options.connect(beside)) as new:
            _prepare_copy(new)
            create_tables(new)
            salvage = _fill(new, database, options, lineage)
    except BaseException:
        delete_database(beside)
        raise
    beside.replace(beside.with_name(f"{database.stem}.{REBUILT}"))
    # Before the damaged file moves: after a power cut one of the two must be in place.
    sync_folder(database.parent)
    finish_rebuild(database)
    return salvage


def finish_rebuild(database: Path) -> None:
    """Moves a complete new file into place, if there is one, and keeps the last damaged file. Raises OSError."""
    rebuilt = database.with_name(f"{database.stem}.{REBUILT}")
    if not rebuilt.exists():
        return
    if database.exists():
        archive_database(database)
    rebuilt.replace(database)
    sync_folder(database.parent)
    delete_damaged(database, keep=1)


def _prepare_copy(new: Connection) -> None:
    """Without a log, because an incomplete copy is deleted. The end of its one transaction is synced."""
    for pragma in ("page_size = 4096", "journal_mode = OFF", "synchronous = FULL", "temp_store = MEMORY"):
        new.execute(f"PRAGMA {pragma}").fetchall()


def _fill(new: Connection, damaged_file: Path, options: BufferOptions, lineage: Lineage | None) -> Salvage:
    salvage = Salvage(lineage)
    with transaction(new):
        try:
            with closing(options.connect(damaged_file)) as damaged:
                sound = is_sound(damaged)
                _read_tables(damaged, salvage)
                _copy_rows(new, damaged, options.device, salvage)
                if not sound:
                    _declare_rest_lost(salvage)
        except (sqlite3.Error, UnicodeDecodeError):
            # Not one page can be read: everything that the lineage knows of is lost.
            if not salvage.epochs and lineage is not None:
                salvage.epochs[lineage.ordinal] = (lineage.epoch, 0)
                salvage.add_lost(lineage.ordinal, lineage.pruned_through + 1, lineage.head_limit)
        for ordinal in salvage.lost_seqs:
            # Last, when all rows were seen: an id that waits or is acknowledged is not declared.
            salvage.lost_seqs[ordinal] -= salvage.known_seqs[ordinal]
        _write_tables(new, options, salvage)
    return salvage


def _copy_rows(new: Connection, damaged: Connection, device: str, salvage: Salvage) -> None:
    for number, row in enumerate(_readable_rows(damaged, device, salvage)):
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


def _write_tables(new: Connection, options: BufferOptions, salvage: Salvage) -> None:
    heads = {ordinal: head for ordinal, (_, head) in salvage.epochs.items()}
    # The table of epochs may be outdated or unreadable: no head is below a stored or declared id.
    for identity, last in new.execute("SELECT max(id), max(last) FROM batches GROUP BY id >> 44").fetchall():
        heads[ordinal_of(identity)] = max(last, heads.get(ordinal_of(identity), 0))
    for ordinal, seqs in salvage.lost_seqs.items():
        heads[ordinal] = max(seqs.last or 0, heads.get(ordinal, 0))
    for ordinal, (epoch, _) in sorted(salvage.epochs.items()):
        new.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", (ordinal, epoch, options.owner, heads[ordinal]))
        empty = Batch(options.device, epoch, heads[ordinal])
        insert_tombstones(new, ordinal, empty, salvage.lost_seqs[ordinal], CORRUPT)
    # A new epoch: the damaged file may have given ids that are lost without a trace.
    newest = max(salvage.epochs, default=0) + 1
    least = max((epoch for epoch, _ in salvage.epochs.values()), default=0)
    new.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (newest, options.epoch_for(least), options.owner))
    salvage.counters["rebuilt"] += 1
    salvage.counters[f"lost_{CORRUPT}"] += sum(seqs.count for seqs in salvage.lost_seqs.values())
    salvage.counters[UNCOUNTED] = 0
    salvage.counters[UNCOUNTED] = count_missing(new, 0, salvage.counters)
    for name, value in salvage.counters.items():
        new.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))
    for one in salvage.subscriptions:
        new.execute("INSERT OR IGNORE INTO subscriptions VALUES (?)", (one,))


def _read_tables(damaged: Connection, salvage: Salvage) -> None:
    """Reads everything but the batches, as far as possible."""
    with suppress(sqlite3.Error, TypeError, ValueError):
        for ordinal, epoch, head in damaged.execute("SELECT ordinal, epoch, head FROM epochs").fetchall():
            salvage.epochs[int(ordinal)] = (int(epoch), int(head))
    with suppress(sqlite3.Error, TypeError, ValueError):
        for name, value in damaged.execute("SELECT name, value FROM counters").fetchall():
            salvage.counters[str(name)] = int(value)
    with suppress(sqlite3.Error, TypeError, ValueError):
        salvage.subscriptions |= {str(one) for (one,) in damaged.execute("SELECT filter FROM subscriptions").fetchall()}
    lineage = salvage.lineage
    if lineage is not None and salvage.epochs.setdefault(lineage.ordinal, (lineage.epoch, 0))[0] != lineage.epoch:
        # The file knows this epoch by another number, so the lineage describes another buffer.
        salvage.lineage = None


def _refuse_foreign(database: Path, options: BufferOptions, lineage: Lineage | None) -> None:
    """Raises StoreForeign unless file or lineage names us as the owner and neither names another."""
    owners = set() if lineage is None else {lineage.owner}
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(options.connect(database)) as damaged:
        owners |= {str(owner) for (owner,) in damaged.execute("SELECT DISTINCT owner FROM epochs").fetchall()}
    if others := owners - {options.owner}:
        raise StoreForeign(f"{database} is damaged and belongs to {', '.join(sorted(others))}, not to {options.owner}")
    if not owners:
        raise StoreForeign(f"{database} is damaged, and neither it nor the file next to it names its owner")


def _readable_rows(damaged: Connection, device: str, salvage: Salvage) -> Iterator[tuple[Any, ...]]:
    """The intact rows of `batches`, ascending; the ids of others go to `lost_seqs`.

    A damaged row may have a wrong end, so everything up to the next intact row is lost with it.
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
        salvage.known_seqs[ordinal_of(row[0])] |= seqs
        yield row
    if distrusted is not None:
        _declare_lost_up_to(salvage, distrusted, batch_row_id(ordinal_of(distrusted) + 1, 0))


def _declare_lost_up_to(salvage: Salvage, identity: int, following: int) -> None:
    """Declares the ids between a damaged row and the next intact one, or the end of its epoch, as lost."""
    ordinal, first = ordinal_of(identity), first_of(identity)
    is_last = ordinal_of(following) != ordinal
    salvage.add_lost(ordinal, first, max(salvage.bound_of(ordinal), first) if is_last else first_of(following) - 1)


def _declare_rest_lost(salvage: Salvage) -> None:
    """Declares every id lost that was not found and is not known to be acknowledged."""
    for ordinal in salvage.epochs:
        last = max(salvage.bound_of(ordinal), salvage.known_seqs[ordinal].last or 0)
        is_known = salvage.lineage is not None and salvage.lineage.ordinal == ordinal
        salvage.add_lost(ordinal, salvage.lineage.pruned_through + 1 if salvage.lineage and is_known else 1, last)


def _seqs_in(row: tuple[Any, ...], device: str, salvage: Salvage) -> IntervalSet | None:
    """The record ids of a row; None if the row is damaged."""
    identity, last, class_index, records, lost, data = *row[:5], row[10]
    try:
        span = IntervalSet([(first_of(identity), last)])
        if data is None:
            return span if records == lost == 0 else None
        header = validate(data)
        counts = (header.record_seqs.count, header.lost_seqs.count, len(data))
        if counts != (records, lost, row[5]) or class_index not in range(MAX_CLASSES):
            return None
        # The owner of an unknown epoch is unknown too.
        epoch, seqs = salvage.epochs.get(ordinal_of(identity), (None, 0))[0], header.seqs
        return seqs if span.covers(seqs) and (header.device, header.epoch) == (device, epoch) else None
    except (WireError, TypeError, ValueError):
        return None


def _rows(damaged: Connection, newest: int) -> Iterator[tuple[Any, ...]]:
    """Every readable row, ascending; after an error an id with ten times None, and a growing step."""
    end = batch_row_id(newest + 1, 0)
    at, step = 0, 1
    while at < end:
        try:
            # Row by row: an error ends a query, and a longer query would lose its remaining rows.
            row = damaged.execute(
                f"SELECT {_ROW} FROM batches WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608 - fixed columns
                (at,),
            ).fetchone()
        except (sqlite3.Error, UnicodeDecodeError):
            yield (max(at + 1, batch_row_id(1, 1)), *(None,) * 10)
            # A bad page hides many rows, and ids have 44 bits: single steps would never end.
            at, step = max(at + step, batch_row_id(1, 0)), step * 2
            continue
        if row is None:
            return
        # A damaged tree may return an id that is not above `at`; the search must still advance.
        at, step = max(row[0], at + 1), 1
        yield tuple(row)
