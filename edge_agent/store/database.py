"""An open file and its totals, and the beginning of a new epoch in it."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.config import MAX_CLASSES
from edge_agent.errors import StoreDamaged, StoreForeign
from edge_agent.intake.redelivery import Arrival, unpack_arrivals
from edge_agent.store.connection import Connection, Connector, connect_sqlite, mapped_errors, prepare, transaction
from edge_agent.store.gaps import UNCOUNTED
from edge_agent.store.lineage import Lineage, machine_id
from edge_agent.store.salvage import is_sound
from edge_agent.store.schema import create_tables
from edge_agent.store.stored_batch import SEQ_MASK, batch_row_id, ordinal_of
from telemetry import Batch, Tombstone, encode

CHECKED_BYTES = 16 << 20
"""A file up to this size is checked page by page when it is opened; a larger one would keep the start waiting."""
RESTORED = "restored"
"""Why ids are lost that were given after the image was made from which the buffer was put back."""
SENDING, SENT_THROUGH = "sending", "sent_through"
"""Counters of what may have been sent; see `edge_agent.store.clock_correction`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferOptions:
    """What a buffer is for. `epoch_for(least)`: a new epoch's number, above `least`. `machine`: see `machine_id`.

    `reserve_bytes`: space that is kept for the log on a full file system.
    """

    device: str
    recent_size: int
    epoch_for: Callable[[int], int]
    connect: Connector = connect_sqlite
    machine: str = field(default_factory=machine_id)
    reserve_bytes: int = 0


@dataclass(slots=True)
class Depth:
    """What waits in one class."""

    records: int = 0
    size: int = 0


@dataclass(slots=True)
class OpenDatabase:
    """The state that a damaged or re-opened file replaces as a whole."""

    writer: Connection
    reader: Connection
    ordinal: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    acked_rows: deque[tuple[int, int]] = field(default_factory=deque)
    depth: dict[int, Depth] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    is_new: bool = False

    def close(self) -> None:
        """Gives the file back."""
        for connection in (self.reader, self.writer):
            _close(connection)


def _close(connection: Connection) -> None:
    with suppress(sqlite3.Error):
        connection.close()


def private_folder(folder: Path) -> None:
    """Makes the folder, for its owner alone: what a vehicle did is nobody else's. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def open_database(path: Path, options: BufferOptions, least: int = 0) -> OpenDatabase:
    """Opens the file, making what is missing; the epoch of a new file is above `least`.

    Raises StoreError; StoreForeign for the buffer of another device.
    """
    with mapped_errors(), ExitStack() as on_error:
        _make_private(path)
        writer = options.connect(path)
        on_error.callback(_close, writer)
        prepare(writer)
        create_tables(writer)
        if path.exists() and path.stat().st_size <= CHECKED_BYTES and not is_sound(writer):
            raise StoreDamaged(f"{path}: its pages contradict each other")
        reader = options.connect(path)
        on_error.callback(_close, reader)
        for pragma in ("query_only = ON", "cache_size = -512"):
            reader.execute(f"PRAGMA {pragma}").fetchall()
        database = OpenDatabase(writer, reader)
        _read_epochs(database, path, options, least)
        _read_totals(database)
        on_error.pop_all()
        return database


def _make_private(path: Path) -> None:
    """The file is its owner's; SQLite gives its log the same rights."""
    with suppress(OSError):
        path.touch(mode=0o600, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def begin_epoch(database: OpenDatabase, options: BufferOptions, reason: str, lost: tuple[int, int]) -> None:
    """Ends the present epoch and begins another, and declares the ids from lost[0] to lost[1] of the former.

    What waits keeps its ids and is sent. It may have been sent before, so no clock is corrected in it any more.
    """
    ordinal, head = database.ordinal, database.heads[database.ordinal]
    epoch = options.epoch_for(max(database.epochs.values()))
    counted = {f"epochs_{reason}": 1, SENDING: -database.counters.get(SENDING, 0)}
    with transaction(database.writer):
        if lost[0] <= lost[1]:
            counted |= {f"lost_{RESTORED}": lost[1] - lost[0] + 1, UNCOUNTED: lost[0] - 1 - head}
            head = lost[1]
            _declare(database.writer, ordinal, Batch(options.device, database.epochs[ordinal], head), lost)
        counted[SENT_THROUGH] = batch_row_id(ordinal, head) - database.counters.get(SENT_THROUGH, 0)
        database.writer.execute("UPDATE epochs SET head = ? WHERE ordinal = ?", (head, ordinal))
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (ordinal + 1, epoch, options.device))
        for name, increase in counted.items():
            value = database.counters.get(name, 0) + increase
            database.writer.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))


def adopt_lineage(database: OpenDatabase, lineage: Lineage, options: BufferOptions) -> None:
    """Gives a new file the epoch that the small file knows of: its buffer is gone. Another epoch has to begin."""
    with transaction(database.writer):
        database.writer.execute("DELETE FROM epochs")
        row = (lineage.ordinal, lineage.epoch, options.device)
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", row)
    database.epochs, database.heads, database.ordinal = (
        {lineage.ordinal: lineage.epoch},
        {lineage.ordinal: 0},
        lineage.ordinal,
    )


def stored_arrivals(connection: Connection, most: int) -> Iterator[Arrival]:
    """The last arrivals that the rows remember, at least `most` of them if there are, the oldest first."""
    newest_first: list[list[Arrival]] = []
    found, below = 0, (1 << 63) - 1
    while found < most:
        with mapped_errors():
            row = connection.execute(
                "SELECT id, arrivals FROM batches WHERE id < ? AND arrivals IS NOT NULL ORDER BY id DESC LIMIT 1",
                (below,),
            ).fetchone()
        if row is None:
            break
        below = row[0]
        newest_first.append(unpack_arrivals(row[1]))
        found += len(newest_first[-1])
    return (arrival for arrivals in reversed(newest_first) for arrival in arrivals)


def _declare(connection: Connection, ordinal: int, empty: Batch, lost: tuple[int, int]) -> None:
    first, last = lost
    data = encode(Batch(empty.device, empty.epoch, empty.head, (), (Tombstone(first, last, RESTORED),)))
    connection.execute(
        "INSERT INTO batches (id, last, class, records, lost, size, wall_ms, boot, batch)"
        " VALUES (?, ?, 0, 0, ?, ?, 0, '', ?)",
        (batch_row_id(ordinal, first), last, last - first + 1, len(data), data),
    )


def _read_epochs(database: OpenDatabase, path: Path, options: BufferOptions, least: int) -> None:
    for ordinal, epoch, device, head in database.writer.execute("SELECT ordinal, epoch, device, head FROM epochs"):
        if device != options.device:
            raise StoreForeign(f"{path} belongs to device {device!r}, not to {options.device!r}")
        database.epochs[ordinal], database.heads[ordinal] = epoch, head
    database.ordinal = max(database.epochs, default=0)
    if not database.epochs:
        database.is_new = True
        database.ordinal, database.epochs[1], database.heads[1] = 1, options.epoch_for(least), 0
        row = (1, database.epochs[1], options.device, 0)
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", row)
    newest = database.writer.execute("SELECT id, last FROM batches ORDER BY id DESC LIMIT 1").fetchone()
    if newest and ordinal_of(newest[0]) == database.ordinal:
        database.heads[database.ordinal] = max(newest[1], database.heads[database.ordinal])


def _read_totals(database: OpenDatabase) -> None:
    _refuse_nonsense(database.writer)
    for index, records, size in database.writer.execute(
        "SELECT class, sum(records), sum(size) FROM batches WHERE batch IS NOT NULL GROUP BY class"
    ):
        database.depth[index] = Depth(records, size)
    database.counters.update(database.writer.execute("SELECT name, value FROM counters").fetchall())
    rows = database.writer.execute("SELECT id, last FROM batches WHERE batch IS NULL ORDER BY id").fetchall()
    database.acked_rows.extend(rows)


def _refuse_nonsense(connection: Connection) -> None:
    """Raises StoreDamaged when a row says what is never written: a damage that SQLite itself does not see."""
    found = connection.execute(
        "SELECT id FROM batches WHERE class NOT BETWEEN 0 AND ? OR last < id & ? OR records < 0 OR lost < 0"
        " OR (batch IS NULL AND records + lost > 0) OR (batch IS NOT NULL AND size <> length(batch)) LIMIT 1",
        (MAX_CLASSES - 1, SEQ_MASK),
    ).fetchone()
    if found:
        raise StoreDamaged(f"batch {found[0]} contradicts itself")
