"""The newest entry of each device that a daemon has taken, on disk: after a restart it goes back to no older one.

Whoever may write to the registry's topic can publish an older signed message again, and compaction keeps that one. A
daemon that has seen the newer one holds to it, and publishes it again. So one of lower rank never takes the place of
what is kept, whatever clock or key it was judged by.

What the disk does not take now, or does not give (locked, full, no right), is tried again, and named until it is done:
what was taken meanwhile is kept in memory. A file that is damaged is moved away, what can be read of it is taken over,
and the damaged one is named until somebody has looked and removes it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from gateway.access.kept_entries import rank_of
from waybill.pulsar.compacted_topic import TopicMessage

_LOG = structlog.get_logger("access")
SEEN_FILE: Final = "seen-entries.sqlite"
"""In the folder of the region's authority, which is the daemon's alone."""
MAX_WAITING: Final = 100_000
"""Messages in memory that the disk has not taken; after more the topic is read again once it takes them."""
# a sync of the disk for each would take minutes at the first start
_AT_ONCE: Final = 1000
_RETRY_S: Final = 1.0
_BUSY_S: Final = 0.2
"""While the registry's reader waits for the disk no revocation is heard of."""
_MAX_DAMAGED: Final = 9
_BESIDE: Final = ("", "-wal", "-shm")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    name TEXT PRIMARY KEY, body BLOB NOT NULL, properties TEXT NOT NULL, published_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
_REPLACE: Final = "REPLACE INTO entries (name, body, properties, published_ms) VALUES (?, ?, ?, ?)"
_ALL: Final = "SELECT name, body, properties, published_ms FROM entries"
_BY_NAME: Final = "SELECT name, body, properties, published_ms FROM entries WHERE name = ?"
_FORGET: Final = "DELETE FROM entries WHERE name = ?"
_FROM_BOTH_ENDS: Final = (
    "SELECT name, body, properties, published_ms FROM entries ORDER BY name",
    "SELECT name, body, properties, published_ms FROM entries ORDER BY name DESC",
)


class SeenUnreadable(Exception):
    """The file cannot be read now: what it has of a device is not known."""


class SeenEntries:
    """Messages of the registry by the names of their devices, as signed. Read `all` first; then one thread keeps.

    Any thread may ask. What the disk does not take is a `problem`; the registry is followed all the same.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path, self._monotonic = path, monotonic
        self._database: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._waiting: dict[str, TopicMessage] = {}
        self._unreadable: set[str] = set()
        self._has_missed = False
        self._fault = ""
        self._retry_at_s = 0.0

    def __enter__(self) -> Self:
        self._begin()
        # The topic is read from its beginning anyway.
        self._has_missed = False
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with self._lock:
            if self._database is not None:
                if self._waiting:
                    self._write_waiting()
                self._close()

    @property
    def problem(self) -> str:
        """What is not on disk, or was lost there, and is not known again; "" if all is well."""
        found = []
        if self._fault:
            found.append(f"{self._path}: {self._fault}; {len(self._waiting)} entries are in memory alone")
        if self._unreadable:
            found.append(f"{self._path}: {len(self._unreadable)} entries in it are damaged: {min(self._unreadable)}")
        if damaged := [path for path in self._damaged_names() if path.exists()]:
            what = "was damaged: changes that the topic has lost too are to be made again"
            found.append(f"{damaged[0]} {what}; see `waybill device list`, then remove the file")
        return "; ".join(found)

    def all(self) -> Iterator[TopicMessage]:
        """What the file has of every device. What cannot be read now is a problem, and the end of it."""
        with contextlib.suppress(SeenUnreadable):
            yield from self._messages(_ALL)

    def note_damaged(self, name: str) -> None:
        """What is kept of this device is no entry: a problem until it is kept again."""
        self._unreadable.add(name)

    def message(self, name: str) -> TopicMessage | None:
        """The newest message of `tenant/device` that is kept; None: there is none. Raises SeenUnreadable."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None and (self._fault or self._database is None):
                return waiting
            kept = next(iter([*self._messages(_BY_NAME, name)]), None)
            return waiting if waiting is not None and (kept is None or _may_replace(waiting, kept)) else kept

    def keep(self, message: TopicMessage) -> None:
        """A message that was taken, in place of the former one of its device, unless that ranks above it."""
        name = message.key or ""
        with self._lock:
            if name not in self._waiting and len(self._waiting) >= MAX_WAITING:
                self._has_missed = True
                return
            is_first, waiting = not self._waiting, self._waiting.get(name)
            if waiting is None or _may_replace(message, waiting):
                self._waiting[name] = message
            # Behind those that wait, and not each after the time that a locked file takes.
            if is_first and self._database is not None:
                self._write_waiting()

    def forget(self, name: str) -> None:
        """Give up what is kept of a device. Raises SeenUnreadable."""
        if self._database is None:
            raise SeenUnreadable(self._fault)
        try:
            self._database.execute(_FORGET, (name,))
        except sqlite3.Error as error:
            raise SeenUnreadable(str(error)) from error

    def look(self) -> bool:
        """Try again what failed, from time to time; whether the file could be opened only now: read `all`."""
        with self._lock:
            if not (self._fault or self._waiting) or self._monotonic() < self._retry_at_s:
                return False
            if self._database is None:
                self._begin()
                return self._database is not None
            self._write_waiting()
            return False

    def take_missed(self) -> bool:
        """Whether the topic is to be read again, because not all that came was kept; once."""
        with self._lock:
            is_due = self._has_missed and self._database is not None and not self._waiting
            self._has_missed &= not is_due
            return is_due

    def _write_waiting(self) -> None:
        assert self._database is not None, "it is open"
        messages = [*islice(self._waiting.values(), _AT_ONCE)]
        try:
            self._database.execute("BEGIN")
            with self._database:
                # What ranks above them came before a file that could not be read, or by other keys than today's.
                self._database.executemany(_REPLACE, map(_row, filter(self._is_newest, messages)))
        except sqlite3.Error as error:
            self._failed(error)
            return
        self._fault = ""
        for message in messages:
            del self._waiting[message.key or ""]
            self._unreadable.discard(message.key or "")

    def _is_newest(self, message: TopicMessage) -> bool:
        """Whether a message may take the place of what is on disk. Raises sqlite3.Error."""
        assert self._database is not None, "it is open"
        row = self._database.execute(_BY_NAME, (message.key,)).fetchone()
        kept = None if row is None else _message(*row)
        return kept is None or _may_replace(message, kept)

    def _messages(self, query: str, *parameters: str) -> Iterator[TopicMessage]:
        if self._database is None:
            raise SeenUnreadable(self._fault)
        try:
            for row in self._database.execute(query, parameters):
                if (message := _message(*row)) is None:
                    self._unreadable.add(str(row[0]))
                else:
                    yield message
        except sqlite3.Error as error:
            self._failed(error)
            raise SeenUnreadable(str(error)) from error

    def _failed(self, error: Exception) -> None:
        if not self._fault:
            _LOG.error("the entries seen cannot be kept or read", file=str(self._path), problem=str(error))
        self._fault, self._retry_at_s = str(error), self._monotonic() + _RETRY_S
        # It is looked at when it is opened again.
        if _is_damage(error):
            self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _begin(self) -> None:
        try:
            try:
                self._database = _open(self._path)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._begin_anew(str(error))
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        else:
            self._fault = ""

    def _begin_anew(self, why: str) -> None:
        kept = next((path for path in self._damaged_names() if not path.exists()), None)
        if kept is None:
            raise OSError(f"it is damaged ({why}), and so were {_MAX_DAMAGED} before it: remove those")
        for beside in reversed(_BESIDE):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + beside).replace(kept.with_name(kept.name + beside))
        self._database, self._has_missed = _open(self._path), True
        rows = [*_rows_left(kept)]
        _LOG.error("the entries seen before are damaged", kept=str(kept), problem=why, taken_over=len(rows))
        self._database.execute("BEGIN")
        with self._database:
            self._database.executemany(_REPLACE, rows)

    def _damaged_names(self) -> list[Path]:
        first = self._path.with_suffix(".damaged")
        return [first, *(first.with_suffix(f".damaged-{number}") for number in range(2, _MAX_DAMAGED + 1))]


class _Damaged(sqlite3.DatabaseError):
    """The pages of a file do not fit each other."""


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, _Damaged) or code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _open(path: Path) -> sqlite3.Connection:
    # Opened by who starts, used by who reads the topic.
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # It has to outlive the process; what a power cut takes is in the topic, if nobody replaced it there.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(_SCHEMA)
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise _Damaged(found)
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


def _rows_left(damaged: Path) -> Iterator[tuple[str, bytes, str, int]]:
    """What can be read of a damaged file, from both ends."""
    for query in _FROM_BOTH_ENDS:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"{damaged.absolute().as_uri()}?mode=ro", uri=True)) as database,
        ):
            for row in database.execute(query):
                if [type(value) for value in row] == [str, bytes, str, int]:
                    yield row


def _message(name: str, body: bytes, properties: str, published_ms: int) -> TopicMessage | None:
    """A row as a message; None: it is damaged."""
    try:
        return TopicMessage(name, body, dict(json.loads(properties)), published_ms)
    except (ValueError, TypeError, RecursionError):
        return None


def _may_replace(message: TopicMessage, kept: TopicMessage) -> bool:
    rank, kept_rank = rank_of(message), rank_of(kept)
    return kept_rank is None or (rank is not None and rank >= kept_rank)


def _row(message: TopicMessage) -> tuple[str | None, bytes, str, int]:
    return message.key, message.body, json.dumps(dict(message.properties)), message.published_ms
