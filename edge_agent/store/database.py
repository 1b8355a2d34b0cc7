"""An open file: transactions, the meaning of their errors, totals and counters, and reads."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from edge_agent.config import MAX_CLASSES
from edge_agent.errors import StoreDamaged, StoreError, StoreFailing, StoreForeign, StoreFull, StoreInUse
from edge_agent.store.batch_rows import (
    SEQ_MASK,
    BatchOwner,
    StoredBatch,
    TransactionTotals,
    batch_row_id,
    first_of,
    ordinal_of,
)
from edge_agent.store.connection import (
    PAGE_BYTES,
    WAL_PAGES,
    Connection,
    Connector,
    connect_sqlite,
    create_tables,
    is_sound,
    prepare,
)
from waybill.identity.names import device_name

CHECKED_BYTES = 16 << 20
"""Files up to this size are checked page by page when opened; a larger one would delay the start."""
UNCOUNTED = "uncounted"
"""A counter: record ids that a rebuilt buffer cannot account for, because it lost its counters."""

SENDING, SENT_THROUGH = "sending", "sent_through"
"""Counters; see `edge_agent.store.clock_correction`."""
_MEANING: dict[int, type[StoreError]] = {
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_IOERR: StoreFailing,
    sqlite3.SQLITE_READONLY: StoreFailing,
    sqlite3.SQLITE_CANTOPEN: StoreFailing,
    sqlite3.SQLITE_PROTOCOL: StoreFailing,
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
    sqlite3.SQLITE_NOTADB: StoreDamaged,
    sqlite3.SQLITE_FORMAT: StoreDamaged,
    sqlite3.SQLITE_BUSY: StoreInUse,
    sqlite3.SQLITE_LOCKED: StoreInUse,
}
_COLUMNS = "id, last, class, records, size, wall_ms"


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Executes all statements inside or none, and syncs at the end. Raises StoreError."""
    with mapped_errors():
        try:
            # A deferred transaction may fail with BUSY at its first write; IMMEDIATE waits for the lock.
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            # After a full disk or an I/O error SQLite has already rolled back, and ROLLBACK fails.
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


@contextmanager
def without_checkpoints(connection: Connection) -> Iterator[None]:
    """Keeps commits inside in the log until a later commit. Raises StoreError."""
    with mapped_errors():
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        try:
            yield
        finally:
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}").fetchall()


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turns SQLite's errors into StoreError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"text that is not valid: {error}") from error
    except sqlite3.Error as error:
        raise meaning_of(error) from error


def meaning_of(error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    # An I/O error by its number, a full disk by its cause.
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"{error}: no room for the 32 KiB that SQLite shares between connections")
    # The low byte is the primary code of an extended one.
    kind = _MEANING.get(code & 0xFF, StoreDamaged if isinstance(error, sqlite3.IntegrityError) else StoreFailing)
    if "Could not decode" in str(error) or (code == sqlite3.SQLITE_ERROR and "transaction" not in str(error)):
        # Our statements are correct, so a missing table or column means damage.
        kind = StoreDamaged
    return kind(f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferOptions:
    """`epoch_for(least)`: the number of a new epoch, above `least`. `reserve_bytes`: space kept for the log on a full
    disk.
    """

    tenant: str
    device: str
    recent_size: int
    epoch_for: Callable[[int], int]
    connect: Connector = connect_sqlite
    reserve_bytes: int = 0

    @property
    def owner(self) -> str:
        """Another tenant's device with this name is another device."""
        return device_name(self.tenant, self.device)


@dataclass(slots=True)
class Depth:
    records: int = 0
    size: int = 0


class BufferCounters:
    """Counters that survive a restart. Any thread may use them.

    `lock`: the buffer's, so that nothing is counted while a transaction stores them.
    """

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self._lock = lock or threading.RLock()
        self.stored: dict[str, int] = {}
        self.unstored: Counter[str] = Counter()
        """Increases since the last transaction."""
        self.is_due = False
        """Whether an increase calls for a transaction."""

    def value(self, name: str) -> int:
        """A counter, including increases that are not stored yet."""
        with self._lock:
            return self.stored.get(name, 0) + self.unstored[name]

    def add(self, name: str, increase: int, *, lazily: bool = False) -> None:
        """Increases a counter; the next transaction stores it.

        `lazily`: the increase alone causes no transaction; a crash loses the last few seconds of counting.
        """
        with self._lock:
            if increase:
                self.unstored[name] += increase
                self.is_due = self.is_due or not lazily

    def store(self, connection: Connection, increases: Mapping[str, int]) -> None:
        """Writes the grown counters inside the caller's transaction."""
        for name, increase in increases.items():
            if increase:
                row = (name, self.stored.get(name, 0) + increase)
                connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", row)

    def on_stored(self, increases: Mapping[str, int]) -> None:
        """The transaction that stored these increases has ended."""
        for name, increase in increases.items():
            self.stored[name] = self.stored.get(name, 0) + increase
        self.unstored.clear()
        self.is_due = False


@dataclass(slots=True)
class OpenDatabase:
    """All state that changes when the file is opened again.

    `epochs` and `heads`: by ordinal. `acked_rows`: (id, last), ascending. `counters`: as stored in the file.
    """

    device: str
    writer: Connection
    reader: Connection
    ordinal: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    acked_rows: deque[tuple[int, int]] = field(default_factory=deque)
    depth: dict[int, Depth] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    is_new: bool = False

    @property
    def epoch(self) -> int:
        return self.epochs[self.ordinal]

    @property
    def head(self) -> int:
        return self.heads[self.ordinal]

    def head_of(self, epoch: int) -> int:
        return next((self.heads[ordinal] for ordinal, number in self.epochs.items() if number == epoch), 0)

    def last_id(self) -> int:
        return batch_row_id(self.ordinal, self.head)

    def owner_of(self, identity: int) -> BatchOwner:
        ordinal = ordinal_of(identity)
        return BatchOwner(self.device, self.epochs[ordinal], self.heads[ordinal])

    def expired_rows(self, recent_size: int) -> list[tuple[int, int]]:
        """The acknowledged rows whose messages cannot be delivered again."""

        def is_expired(row: tuple[int, int]) -> bool:
            identity, last = row
            return self.head - recent_size >= (last if ordinal_of(identity) == self.ordinal else 0)

        return list(takewhile(is_expired, self.acked_rows))

    def add(self, batches: Iterable[StoredBatch]) -> None:
        """Counts batches whose commit is stored."""
        for batch in batches:
            assert batch.first == self.head + 1, "record ids are given without a hole"
            self.heads[self.ordinal] = batch.last
            depth = self.depth.setdefault(batch.class_index, Depth())
            depth.records += batch.records
            depth.size += batch.size

    def apply(self, changes: TransactionTotals) -> None:
        """Counts what a stored transaction changed."""
        for _ in changes.expired:
            self.acked_rows.popleft()
        self.acked_rows.extend(changes.acked_rows)
        for index, (records, size) in changes.removed.items():
            depth = self.depth.setdefault(index, Depth())
            depth.records -= records
            depth.size -= size
            assert depth.records >= 0, "more was taken out than waited"

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        with mapped_errors():
            rows = self.reader.execute(
                f"SELECT {_COLUMNS} FROM batches WHERE id > ? AND class = ? AND batch IS NOT NULL"  # noqa: S608
                " AND id NOT IN (SELECT id FROM dead_letter_batches) ORDER BY id LIMIT ?",
                (identity, class_index, limit),
            ).fetchall()
            return [self._stored_batch(row) for row in rows]

    def find(self, identity: int) -> StoredBatch:
        row = self.query_one(f"SELECT {_COLUMNS} FROM batches WHERE id = ?", (identity,))  # noqa: S608
        return self._stored_batch(row)

    def load(self, identity: int) -> bytes | None:
        row = self.query_one("SELECT batch FROM batches WHERE id = ?", (identity,))
        return row[0] if row else None

    def pruned_through(self) -> int:
        """No record of this epoch up to this seq waits any more."""
        after = (batch_row_id(self.ordinal, 0),)
        (least,) = self.query_one("SELECT min(id) FROM batches WHERE id > ? AND batch IS NOT NULL", after)
        return self.head if least is None else first_of(least) - 1

    def subscriptions(self) -> set[str]:
        with mapped_errors():
            return {topic for (topic,) in self.reader.execute("SELECT filter FROM subscriptions").fetchall()}

    def free_pages_bytes(self) -> int:
        return int(self.query_one("PRAGMA freelist_count", ())[0]) * PAGE_BYTES

    def query_one(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        with mapped_errors():
            return self.reader.execute(sql, parameters).fetchone()

    def close(self) -> None:
        for connection in (self.reader, self.writer):
            _close(connection)

    def _stored_batch(self, row: tuple[int, int, int, int, int, int]) -> StoredBatch:
        identity, last, class_index, records, size, wall_ms = row
        return StoredBatch(identity, self.epochs[ordinal_of(identity)], last, class_index, records, size, wall_ms)


def _close(connection: Connection) -> None:
    with suppress(sqlite3.Error):
        connection.close()


def open_database(path: Path, options: BufferOptions, least: int = 0) -> OpenDatabase:
    """Opens the file and creates what is missing; the epoch of a new file is above `least`.

    Raises StoreError; StoreForeign for the buffer of another owner.
    """
    with mapped_errors(), ExitStack() as on_error:
        _make_private(path)
        writer = options.connect(path)
        on_error.callback(_close, writer)
        prepare(writer)
        create_tables(writer)
        if path.exists() and path.stat().st_size <= CHECKED_BYTES and not is_sound(writer):
            raise StoreDamaged(f"{path}: its pages contradict each other")
        # In WAL mode a second connection can read while a commit is synced.
        reader = options.connect(path)
        on_error.callback(_close, reader)
        for pragma in ("query_only = ON", "cache_size = -512"):
            reader.execute(f"PRAGMA {pragma}").fetchall()
        database = OpenDatabase(options.device, writer, reader)
        _read_epochs(database, path, options, least)
        _read_totals(database)
        on_error.pop_all()
        return database


def _make_private(path: Path) -> None:
    """Gives the file to its owner alone; SQLite gives its log the same rights."""
    with suppress(OSError):
        path.touch(mode=0o600, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _read_epochs(database: OpenDatabase, path: Path, options: BufferOptions, least: int) -> None:
    for ordinal, epoch, owner, head in database.writer.execute("SELECT ordinal, epoch, owner, head FROM epochs"):
        if owner != options.owner:
            raise StoreForeign(f"{path} belongs to {owner!r}, not to {options.owner!r}")
        database.epochs[ordinal], database.heads[ordinal] = epoch, head
    database.ordinal = max(database.epochs, default=0)
    newest = database.writer.execute("SELECT id, last FROM batches ORDER BY id DESC LIMIT 1").fetchone()
    if newest and ordinal_of(newest[0]) not in database.epochs:
        raise StoreDamaged(f"{path}: batch {newest[0]} is of an epoch that it does not know")
    if not database.epochs:
        database.is_new = True
        database.ordinal, database.epochs[1], database.heads[1] = 1, options.epoch_for(least), 0
        row = (1, database.epochs[1], options.owner, 0)
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", row)
    # The present epoch's row is outdated: its head is stored with its newest batch, in one write.
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
    """Raises StoreDamaged for a row that the agent never writes: damage that SQLite does not detect."""
    row = connection.execute(
        "SELECT id FROM batches WHERE class NOT BETWEEN 0 AND ? OR last < id & ? OR records < 0 OR lost < 0"
        " OR (batch IS NULL AND records + lost > 0) OR (batch IS NOT NULL AND size <> length(batch)) LIMIT 1",
        (MAX_CLASSES - 1, SEQ_MASK),
    ).fetchone()
    if row:
        raise StoreDamaged(f"batch {row[0]} contradicts itself")
