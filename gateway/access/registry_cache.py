"""The newest entry of each device that a region's daemon has accepted, on disk. It never goes back to an older one.

A writer on the registry's topic can publish an older signed message again, and compaction keeps that one. A daemon that
has seen the newer entry keeps it and publishes it again. Precedence alone decides which entry is newer, so reading the
topic in any order gives the same entries.

A damaged file is moved away and rebuilt from the topic. An accepted entry stays in force if its key is no longer
trusted: nothing of lower rank replaces it, and a locked-out device stays locked out.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from waybill.identity.errors import IdentityError, SignatureFault
from waybill.identity.registry_messages import (
    AHEAD,
    ARGUABLE,
    ENTRY_PROPERTIES,
    CheckSigned,
    DevicePublication,
    EntryRefused,
    read_entry,
    tenant_of,
)
from waybill.identity.registry_topic import DeviceRegistry, EntryDuplicate, EntryInForce, EntryResult
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

CACHE_FILE: Final = "seen-entries.sqlite"
"""In the folder of the region's authority, which only the daemon uses."""
AGAIN_S: Final = 60.0
"""Between two publications of an entry that another message displaces. Two regions with different keys or clocks
displace each other's, and mostly not for long: so the first one waits too, where another reader may be right."""
_BUSY_S: Final = 0.2
"""Short, because the registry's reader waits for the disk."""
_BY_KEYS: Final = frozenset(
    {SignatureFault.UNSIGNED, SignatureFault.UNKNOWN_KEY, SignatureFault.NOT_VALID_THEN, SignatureFault.NO_RIGHT}
)
"""Faults of an accepted signature that come from a change of the trusted keys."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    name TEXT PRIMARY KEY, body BLOB NOT NULL, properties TEXT NOT NULL, published_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
_REPLACE: Final = "REPLACE INTO entries (name, body, properties, published_ms) VALUES (?, ?, ?, ?)"
_AFTER: Final = "SELECT name, body, properties, published_ms FROM entries WHERE name > ? ORDER BY name LIMIT 1000"
_BY_NAME: Final = "SELECT name, body, properties, published_ms FROM entries WHERE name = ?"
_LOG = structlog.get_logger("access")


class CacheUnavailable(IdentityError):
    """The file cannot be read or written now."""


class RegistryCache:
    """Signed registry messages by device. The registry's reader calls `take`; any thread may read.

    `is_read`: whether a tenant's topic is read to its end; before, a device's last message is not known. An entry that
    the disk does not take is a `problem`, and is written when the topic is read again.
    """

    def __init__(
        self,
        path: Path,
        registry: DeviceRegistry[Any],
        check_signed: CheckSigned | None,
        is_read: Callable[[str], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._registry, self._check_signed = path, registry, check_signed
        self._is_read, self._monotonic = is_read, monotonic
        self._database: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self._fault = ""
        self._untrusted: set[str] = set()
        self._to_come: defaultdict[str, set[str]] = defaultdict(set)
        self._missing: set[str] = set()
        self._due: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._last_s: dict[str, float] = {}
        self.published_again = 0

    @property
    def problem(self) -> str:
        """What is not on disk, missing or displaced on the topic, or no longer trusted; "" if all is well."""
        found = [f"{self._path}: {self._fault}"] if self._fault else []
        if missing := len(self._missing):
            found.append(f"registry: {missing} devices are missing on the topic; this daemon publishes them again")
        if untrusted := sorted(self._untrusted.copy()):
            more = f", and {len(untrusted) - 1} more devices" if len(untrusted) > 1 else ""
            found.append(
                f"registry: the last entry of {untrusted[0]}{more} is signed with a key that is not trusted now: the"
                " entry stays in force; trust the key again, sign the entry with another key (`waybill device sign`),"
                " or change the device"
            )
        return "; ".join(found)

    def restore(self) -> Iterator[DevicePublication]:
        """The entries that were accepted before; the topic may have older ones by now, or none.

        Raises CacheUnavailable. A damaged file is moved away, and the next start rebuilds it from the topic.
        """
        last = ""
        while rows := self._execute(_AFTER, last):
            last = rows[-1][0]
            yield from filter(None, map(self._restored, rows))

    def take_read_again(self) -> bool:
        """Whether the topic must be read again, because the disk did not take an entry and works now. Once."""
        if self._fault:
            with contextlib.suppress(CacheUnavailable):
                self._execute("BEGIN IMMEDIATE")
                self._execute("ROLLBACK")
                self._fault = ""
                return True
        return False

    def on_begin(self, tenant: str) -> None:
        """The topic of a tenant is read from its beginning."""
        self._to_come[tenant] = self._registry.names(tenant)

    def on_standing(self, tenant: str, standing: TopicStanding) -> None:
        """How far a tenant's topic is read. Entries that did not come by its end are lost there and are published
        again.
        """
        if not standing.is_current:
            return
        if missing := self._to_come.pop(tenant, set()):
            _LOG.error("the topic has lost devices that this daemon knows", devices=len(missing))
            self._missing |= missing
            for name in missing:
                self._queue(name, 0)

    def take(self, message: TopicMessage, became: EntryResult) -> None:
        """The reader's result for the last message of the topic."""
        name = became.key if isinstance(became, EntryRefused) else became.publication.entry.name
        message = _signed_part(message)
        self._to_come[tenant_of(name)].discard(name)
        if isinstance(became, EntryInForce | EntryDuplicate):
            if isinstance(became, EntryInForce) or not self._has(message):
                self._keep(message)
            with self._lock:
                self._missing.discard(name)
                self._untrusted.discard(name)
                self._due[tenant_of(name)].pop(name, None)
        elif self._registry.precedence(name) is None:
            return
        elif isinstance(became, EntryRefused) and self._has(message):
            # The accepted entry stays in force although its key is no longer trusted.
            self._missing.discard(name)
            self._untrusted |= {name} if became.reason in _BY_KEYS else set()
        elif not (isinstance(became, EntryRefused) and became.reason == AHEAD and self._is_right(message)):
            # An entry dated ahead of our clock is not displaced by an older one.
            is_arguable = isinstance(became, EntryRefused) and became.reason in ARGUABLE
            self._queue(name, AGAIN_S if is_arguable else 0)

    def message(self, name: str) -> TopicMessage | None:
        """The message in force of a device; None if unknown. Raises CacheUnavailable if it is not on disk."""
        rank = self._registry.precedence(name)
        if rank is None:
            return None
        found = [_message(row) for row in self._execute(_BY_NAME, name)]
        if not found or found[0] is None or _read(found[0], None).precedence != rank:
            raise CacheUnavailable(f"{self._path}: the entry of {name} is not on disk")
        return found[0]

    def publication(self, name: str) -> DevicePublication | None:
        """The publication in force of a device; None if unknown. Raises CacheUnavailable."""
        message = self.message(name)
        return None if message is None else _read(message, None)

    def take_due(self, tenant: str, limit: int) -> list[str]:
        """At most `limit` of a tenant's devices that must be published again now. `put_back` the unsent ones."""
        if not self._due[tenant] or not self._is_read(tenant):
            return []
        now_s = self._monotonic()
        with self._lock:
            due = [name for name, at_s in self._due[tenant].items() if at_s <= now_s][:limit]
            for name in due:
                del self._due[tenant][name]
                self._last_s[name] = now_s
            self.published_again += len(due)
        return due

    def put_back(self, names: list[str]) -> None:
        with self._lock:
            self.published_again -= len(names)
            for name in names:
                self._last_s.pop(name, None)
                self._due[tenant_of(name)][name] = self._monotonic()

    def _queue(self, name: str, wait_s: float) -> None:
        """Publish a device's entry again after `wait_s`, and at most once in `AGAIN_S`."""
        now_s = self._monotonic()
        with self._lock:
            last_s = self._last_s.get(name)
            at_s = now_s + wait_s if last_s is None else max(now_s, last_s + AGAIN_S)
            due = self._due[tenant_of(name)]
            due[name] = min(at_s, due.get(name, math.inf))

    def _restored(self, row: tuple[Any, ...]) -> DevicePublication | None:
        """Put a row into force, if it may be."""
        message = _message(row)
        if message is None:
            return None
        try:
            made = _read(message, self._check_signed)
        except EntryRefused as refused:
            if refused.reason not in _BY_KEYS:
                return None
            made = _read(message, None)
            self._untrusted.add(made.entry.name)
            if made.entry.may_connect:
                # A key that is no longer trusted lets no device in, and no locked-out device comes back.
                self._registry.bar(made.entry.name, made.precedence)
                return None
        return made if isinstance(self._registry.hold(made, message), EntryInForce) else None

    def _is_right(self, message: TopicMessage) -> bool:
        """Whether a message is an entry signed with a trusted key, whatever its date."""
        with contextlib.suppress(EntryRefused):
            return bool(_read(message, self._check_signed))
        return False

    def _keep(self, message: TopicMessage) -> None:
        row = message.key, message.body, json.dumps(dict(message.properties)), message.published_ms
        with contextlib.suppress(CacheUnavailable):
            self._execute(_REPLACE, *row)

    def _has(self, message: TopicMessage) -> bool:
        with contextlib.suppress(CacheUnavailable):
            kept = [_message(row) for row in self._execute(_BY_NAME, message.key)]
            return bool(kept) and kept[0] is not None and kept[0][:3] == message[:3]
        return False

    def _execute(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                if self._database is None:
                    self._database = _open(self._path)
                return self._database.execute(query, parameters).fetchall()
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
                raise CacheUnavailable(f"{self._path}: {error}") from error

    def _failed(self, error: Exception) -> None:
        if not self._fault:
            _LOG.error("the registry cache cannot be read or written", file=str(self._path), problem=str(error))
        self._fault = str(error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            self.close()
            for beside in ("-shm", "-wal", ""):
                with contextlib.suppress(OSError):
                    file = self._path.with_name(self._path.name + beside)
                    file.replace(self._path.with_name(f"{self._path.stem}.damaged{beside}"))

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


def _open(path: Path) -> sqlite3.Connection:
    # Several threads use it.
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # It must survive the process. After a power cut the topic has the rest, unless it was displaced there.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _read(message: TopicMessage, check_signed: CheckSigned | None) -> DevicePublication:
    """The entry of a message that was accepted before, so its date is not checked again. Raises EntryRefused."""
    return read_entry(message.key, message.body, message.properties, math.inf, check_signed)


def _message(row: tuple[Any, ...]) -> TopicMessage | None:
    try:
        name, body, properties, published_ms = row
        message = TopicMessage(name, body, dict(json.loads(properties)), published_ms)
        _read(message, None)
    except (ValueError, TypeError, RecursionError, EntryRefused):
        return None
    return message


def _signed_part(message: TopicMessage) -> TopicMessage:
    """A message with the signed properties only; others are unbounded."""
    kept = {key: message.properties[key] for key in ENTRY_PROPERTIES & message.properties.keys()}
    return message._replace(properties=kept)
