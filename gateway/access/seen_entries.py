"""The newest entry of each device that a daemon has taken, on disk: after a restart it goes back to no older one.

Whoever may write to the registry's topic can publish an older signed message again, and compaction keeps that one. A
daemon that has seen the newer one holds to it, and publishes it again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from identity.registry_messages import CheckSigned, DevicePublication
from identity.registry_reader import DeviceRegistry, Taken
from runtime.compacted_topic import TopicMessage

__all__ = ["SeenEntries"]

_LOG = structlog.get_logger("access")
_BUSY_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    name TEXT PRIMARY KEY, body BLOB NOT NULL, properties TEXT NOT NULL, published_ms INTEGER NOT NULL
) WITHOUT ROWID
"""


class SeenEntries:
    """Messages of the registry by the names of their devices, as signed. `restore` first; then threads keep and ask.

    What the disk does not take is a `problem`; the registry is followed all the same.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self.problem = ""

    def __enter__(self) -> Self:
        try:
            self._database = self._open()
        except sqlite3.DatabaseError as error:
            kept = self._path.with_suffix(".damaged")
            _LOG.error("the entries seen before cannot be read, and are begun anew", kept=str(kept), error=str(error))
            self._path.replace(kept)
            self._database = self._open()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def restore(self, registry: DeviceRegistry[Any], check_signed: CheckSigned | None) -> Iterator[DevicePublication]:
        """Has an empty registry take them; returns those that it took: what nobody is trusted for any more is none."""
        for message in self._messages("SELECT name, body, properties, published_ms FROM entries"):
            if isinstance(became := registry.take(message, check_signed), Taken):
                yield became.publication

    def message(self, name: str) -> TopicMessage | None:
        """The newest message of `tenant/device`; None: none was taken."""
        query = "SELECT name, body, properties, published_ms FROM entries WHERE name = ?"
        with self._lock:
            return next(iter([*self._messages(query, name)]), None)

    def keep(self, message: TopicMessage) -> None:
        """A message that was taken, in place of the former one of its device."""
        assert self._database is not None, "it is open"
        row = (message.key, message.body, json.dumps(dict(message.properties)), message.published_ms)
        try:
            with self._lock:
                self._database.execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
            self.problem = ""
        except sqlite3.Error as error:
            self.problem = f"{self._path}: {error}"

    def _messages(self, query: str, *parameters: str) -> Iterator[TopicMessage]:
        assert self._database is not None, "it is open"
        try:
            for name, body, properties, published_ms in self._database.execute(query, parameters):
                yield TopicMessage(name, body, json.loads(properties), published_ms)
        except (sqlite3.Error, ValueError, RecursionError) as error:
            self.problem = f"{self._path}: {error}"

    def _open(self) -> sqlite3.Connection:
        # Opened by who starts, used by who reads the topic.
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            # It has to outlive the process; what a power cut takes is in the topic, if nobody replaced it there.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_SCHEMA)
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database
