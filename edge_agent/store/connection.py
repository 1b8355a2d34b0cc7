"""The SQLite connection and the tables.

- `epochs`: one row for each epoch of the buffer: ordinal, number, owner (`tenant/device`), and the head of ended ones
- `batches`: one row for each stored batch. `batch` is NULL once it was acknowledged; the row then keeps `arrivals`
  (10 bytes a message: id and digest) for as long as a broker may deliver those again
- `boots`: wall minus monotonic time of each boot of the device, and the progress of a correction
- `counters`: survive a restart
- `subscriptions`: topic filters that the session at the vehicle's broker may have
- `dead_letter_batches`: waiting batches that the region refused too often, and why
- `mark`: one row: what the buffer knows of its lineage file (`edge_agent.store.epochs`)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from edge_agent.errors import StoreVersion

DATABASE = "buffer.db"
PAGE_BYTES = 4096
BUSY_TIMEOUT_MS = 5000
WAL_PAGES = 1000
"""Pages in the write-ahead log before they are moved to the main file."""

SCHEMA_VERSION = 9

_TABLES = (
    """CREATE TABLE IF NOT EXISTS epochs (
        ordinal INTEGER PRIMARY KEY, epoch INTEGER NOT NULL UNIQUE, owner TEXT NOT NULL, head INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS batches (
        id INTEGER PRIMARY KEY, last INTEGER NOT NULL, class INTEGER NOT NULL, records INTEGER NOT NULL,
        lost INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, wall_ms INTEGER NOT NULL, boot TEXT NOT NULL,
        sent INTEGER NOT NULL DEFAULT 0,
        arrivals BLOB, batch BLOB)""",
    """CREATE TABLE IF NOT EXISTS boots (
        boot TEXT PRIMARY KEY, offset_us INTEGER NOT NULL, delta_us INTEGER NOT NULL, at_us INTEGER NOT NULL,
        after INTEGER NOT NULL, through INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS subscriptions (filter TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS dead_letter_batches (id INTEGER PRIMARY KEY, reason TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS mark (
        id INTEGER PRIMARY KEY, token INTEGER NOT NULL, following INTEGER NOT NULL, changed_ns INTEGER NOT NULL)""",
)


class Cursor(Protocol):
    def fetchone(self) -> Any:
        """The next row, or None."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """The statements that the buffer needs; each is its own transaction unless BEGIN was executed."""

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> Cursor:
        """Runs one statement. Raises sqlite3.Error."""

    def close(self) -> None:
        """Gives the file back."""


class Connector(Protocol):
    """Opens connections; tests use one that loses power."""

    def __call__(self, path: Path) -> Connection:
        """A connection for reading and writing; a missing file is created. Raises sqlite3.Error."""


def connect_sqlite(path: Path) -> Connection:
    """The standard library's SQLite. The buffer has its own lock, so threads may share the connection."""
    # With isolation_level None `sqlite3` never begins a transaction itself.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000)


def prepare(connection: Connection) -> None:
    """Makes a connection durable: every commit is synced before it returns."""
    for pragma in (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        # Before WAL mode, which fixes the page size.
        f"page_size = {PAGE_BYTES}",
        "journal_mode = WAL",
        # In WAL mode NORMAL syncs at checkpoints only: a power cut would undo commits whose PUBACK was sent.
        "synchronous = FULL",
        f"wal_autocheckpoint = {WAL_PAGES}",
        # Without a limit the log's file never shrinks.
        "journal_size_limit = 8388608",
        "cache_size = -1024",
        "temp_store = MEMORY",
        # Detects a damaged page when it is read, before the damage spreads.
        "cell_size_check = ON",
        # Overwriting deleted content with zeros wears the flash, and needs log space on a full disk.
        "secure_delete = FAST",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def has_tables(connection: Connection) -> bool:
    """Whether the file has tables. Raises StoreVersion for those of another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, SCHEMA_VERSION}:
        raise StoreVersion(
            f"the buffer has version {version}, and this agent reads version {SCHEMA_VERSION}:"
            " let the agent that wrote it deliver its records, then move its files away"
        )
    return bool(version)


def create_tables(connection: Connection) -> None:
    """Creates the tables of a new file. Raises StoreVersion for a buffer of another version."""
    if has_tables(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    # In the same transaction: a file with a version has all tables.
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def is_sound(connection: Connection) -> bool:
    """Whether the file's structure is intact, whatever its batches contain."""
    try:
        # Reads every page in linear time; integrity_check would also look up each row in each index.
        return bool(connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
    except (sqlite3.Error, UnicodeDecodeError):
        return False
