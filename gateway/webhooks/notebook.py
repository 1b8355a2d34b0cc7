"""What has to be known after a restart, in SQLite: what passed each rule lately, what was held back, and digests.

Written before a message is sent or acknowledged, in one transaction for many messages. What is held in memory is what
is on disk; one thread uses it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.webhooks.deciding import HOUR_MS, RuleHistory
from gateway.webhooks.digest import MAX_HELD, Digest, HeldBack
from gateway.webhooks.errors import StateUnusable

__all__ = ["NotificationBook"]

_VERSION: Final = 1
# a backup that reads the file lets go of it soon
_BUSY_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS passed (rule TEXT, key TEXT, at_ms INTEGER NOT NULL, PRIMARY KEY (rule, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS passed_at ON passed (at_ms);
CREATE TABLE IF NOT EXISTS held (
    rule TEXT, key TEXT, at_ms INTEGER NOT NULL, decision TEXT NOT NULL, tenant TEXT NOT NULL, device TEXT NOT NULL,
    kind TEXT, place TEXT, t_ms INTEGER NOT NULL, PRIMARY KEY (rule, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more (rule TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS digests (
    key TEXT PRIMARY KEY, rule TEXT NOT NULL, webhook TEXT NOT NULL, tenant TEXT NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
"""


class NotificationBook:
    """Used in a `with` block by one thread. Raises StateUnusable wherever the disk does not take or give something."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._histories: dict[str, RuleHistory] = {}
        self._held: dict[str, dict[str, HeldBack]] = {}
        self._more: dict[str, int] = {}
        self.digests: dict[str, Digest] = {}
        """Those that are to be delivered, or are on their way, by their keys."""

    def __enter__(self) -> Self:
        with self._faults():
            self._database = database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            # Two processes with one file would each forget what the other sent.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (found,) = database.execute("PRAGMA user_version").fetchone()
            if found not in {0, _VERSION}:
                raise StateUnusable(f"{self._path}: it is of version {found}, and this program knows {_VERSION}")
            database.executescript(_SCHEMA)
            database.execute(f"PRAGMA user_version = {_VERSION}")
            self._load(database)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _load(self, database: sqlite3.Connection) -> None:
        passed = defaultdict[str, list[tuple[str, int]]](list)
        for rule, key, at_ms in database.execute("SELECT rule, key, at_ms FROM passed"):
            passed[rule].append((key, at_ms))
        self._histories = {rule: RuleHistory(found) for rule, found in passed.items()}
        for rule, *row in database.execute(
            "SELECT rule, key, at_ms, decision, tenant, device, kind, place, t_ms FROM held"
        ):
            self._held.setdefault(rule, {})[row[0]] = HeldBack(*row)
        self._more = dict(database.execute("SELECT rule, count FROM more"))
        for row in database.execute("SELECT key, rule, webhook, tenant, body FROM digests"):
            self.digests[row[0]] = Digest(*row)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is noted inside is on disk afterwards. Nothing is sent or acknowledged by it before."""
        with self._faults():
            self._open.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._open.execute("ROLLBACK")
                raise
            self._open.execute("COMMIT")

    def history(self, rule: str) -> RuleHistory:
        """What passed a rule."""
        return self._histories.setdefault(rule, RuleHistory())

    def note_passed(self, rule: str, key: str, now_ms: int) -> None:
        """A message passes a rule now; one that passed before changes nothing. In a transaction."""
        history = self.history(rule)
        if key not in history:
            history.note(key, now_ms)
            self._open.execute("REPLACE INTO passed VALUES (?, ?, ?)", (rule, key, now_ms))

    def note_held(self, rule: str, held: HeldBack) -> bool:
        """A message was held back from a rule; whether for the first time, as far as is known. In a transaction."""
        # a message that comes again after a crash was held back once
        known = self._held.setdefault(rule, {})
        if held.key in known:
            return False
        if len(known) >= MAX_HELD:
            self._more[rule] = self._more.get(rule, 0) + 1
            self._open.execute("REPLACE INTO more VALUES (?, ?)", (rule, self._more[rule]))
            return True
        known[held.key] = held
        self._open.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (rule, *held))
        return True

    def rules_with_held(self) -> list[str]:
        """The rules from which something was held back."""
        return sorted(rule for rule, held in self._held.items() if held)

    def held(self, rule: str) -> tuple[list[HeldBack], int]:
        """What was held back from a rule, and how much more was only counted."""
        return [*self._held.get(rule, {}).values()], self._more.get(rule, 0)

    def forget_held(self, rule: str, digest: Digest | None) -> None:
        """What was held back from a rule is summarised in a digest, or nobody wants it any more. In a transaction."""
        self._held.pop(rule, None)
        self._more.pop(rule, None)
        for table in ("held", "more"):
            self._open.execute(f"DELETE FROM {table} WHERE rule = ?", (rule,))  # noqa: S608 - one of two words
        if digest is not None:
            self.digests[digest.key] = digest
            self._open.execute("REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", digest)

    def forget_digest(self, key: str) -> None:
        """A digest was delivered, or is among the undelivered messages. In a transaction."""
        self.digests.pop(key, None)
        self._open.execute("DELETE FROM digests WHERE key = ?", (key,))

    def forget_before(self, now_ms: int) -> None:
        """What passed longer than an hour ago is of no more use. In a transaction."""
        for rule, history in [*self._histories.items()]:
            # a rule that sends seldom is not kept in memory for good
            if not history.count(now_ms):
                del self._histories[rule]
        # what a clock that was ahead wrote counts as now, once
        self._open.execute("UPDATE passed SET at_ms = ? WHERE at_ms > ?", (now_ms, now_ms))
        self._open.execute("DELETE FROM passed WHERE at_ms <= ?", (now_ms - HOUR_MS,))

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._database is not None, "used in its `with` block"
        return self._database

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StateUnusable(
                f"{self._path}: {error}; a file that is damaged is moved away, and what it had is then forgotten: "
                "limits begin anew, and what was held back is not summarised"
            ) from error
