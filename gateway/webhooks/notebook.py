"""What has to be known after a restart, in SQLite: what passed each rule, what was held back, and digests.

Two times: that of the clock, by which limits and quiet hours go, and a steady one, which no step of the clock changes
while the process runs. What is forgotten goes by the latter.

What passed is known until the broker does not give it any more: it comes again for as long as it is not acknowledged,
however long that is. `MAX_OPEN_MS` is for what was acknowledged when the process died, and never comes.

Written before a message is sent or acknowledged, in one transaction for many messages. What is held in memory is what
is on disk; one thread uses it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.webhooks.deciding import HOUR_MS, RuleHistory
from gateway.webhooks.digest import MAX_HELD, Digest, HeldBack
from gateway.webhooks.errors import StateUnusable

__all__ = ["NotificationBook"]

_VERSION: Final = 3
MAX_OPEN_MS: Final = 31 * 24 * HOUR_MS
"""For so long a message that passed and is not known to be acknowledged is known."""
MAX_SUMMARISED: Final = 10_000
"""Of a rule so many messages are known that stand in a summary, or are counted for one: the latest. What comes again is
what was acknowledged last."""
# a backup that reads the file lets go of it soon
_BUSY_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS passed (
    rule TEXT, key TEXT, at_ms INTEGER NOT NULL, ended_ms INTEGER, PRIMARY KEY (rule, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS passed_at ON passed (at_ms);
CREATE TABLE IF NOT EXISTS held (
    rule TEXT, key TEXT, at_ms INTEGER NOT NULL, decision TEXT NOT NULL, tenant TEXT NOT NULL, device TEXT NOT NULL,
    kind TEXT, place TEXT, t_ms INTEGER NOT NULL, verdict TEXT, PRIMARY KEY (rule, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more (
    rule TEXT, tenant TEXT, count INTEGER NOT NULL, PRIMARY KEY (rule, tenant)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS summarised (
    rule TEXT, key TEXT, at_ms INTEGER NOT NULL, PRIMARY KEY (rule, key)
) WITHOUT ROWID;
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
        self._rules_of_open: dict[str, set[str]] = {}
        self._is_fresh = True
        self._held: dict[str, dict[str, HeldBack]] = {}
        self._held_of = Counter[tuple[str, str]]()
        self._more: dict[str, dict[str, int]] = {}
        self._summarised: dict[str, dict[str, int]] = {}
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
        for rule, key, at_ms, ended_ms in database.execute("SELECT rule, key, at_ms, ended_ms FROM passed"):
            passed[rule].append((key, at_ms))
            if ended_ms is None:
                self._rules_of_open.setdefault(key, set()).add(rule)
        self._histories = {rule: RuleHistory(found) for rule, found in passed.items()}
        for rule, *row in database.execute(
            "SELECT rule, key, at_ms, decision, tenant, device, kind, place, t_ms, verdict FROM held"
        ):
            held = HeldBack(*row)
            self._held.setdefault(rule, {})[held.key] = held
            self._held_of[rule, held.tenant] += 1
        for rule, tenant, count in database.execute("SELECT rule, tenant, count FROM more"):
            self._more.setdefault(rule, {})[tenant] = count
        for rule, key, at_ms in database.execute("SELECT rule, key, at_ms FROM summarised ORDER BY at_ms, key"):
            self._summarised.setdefault(rule, {})[key] = at_ms
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
            self._rules_of_open.setdefault(key, set()).add(rule)
            self._open.execute("REPLACE INTO passed VALUES (?, ?, ?, NULL)", (rule, key, now_ms))

    def note_ended(self, keys: Iterable[str], steady_ms: int) -> None:
        """Messages are acknowledged: from now on they need not be known for long."""
        found = [(steady_ms, rule, key) for key in keys for rule in self._rules_of_open.pop(key, ())]
        if found:
            with self.transaction():
                self._open.executemany("UPDATE passed SET ended_ms = ? WHERE rule = ? AND key = ?", found)

    def is_held(self, rule: str, key: str) -> bool:
        """Whether a message was held back from a rule, and is in a summary, or will be: it is not said twice."""
        return key in self._held.get(rule, ()) or key in self._summarised.get(rule, ())

    def note_held(self, rule: str, held: HeldBack, steady_ms: int) -> bool:
        """A message was held back from a rule; whether for the first time, as far as is known. In a transaction."""
        # a message that comes again after a crash was held back once
        if self.is_held(rule, held.key):
            return False
        if self._held_of[rule, held.tenant] >= MAX_HELD:
            more = self._more.setdefault(rule, {})
            more[held.tenant] = more.get(held.tenant, 0) + 1
            self._open.execute("REPLACE INTO more VALUES (?, ?, ?)", (rule, held.tenant, more[held.tenant]))
            self._note_summarised(rule, [held.key], steady_ms)
            return True
        self._held.setdefault(rule, {})[held.key] = held
        self._held_of[rule, held.tenant] += 1
        self._open.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (rule, *held))
        return True

    def _note_summarised(self, rule: str, keys: Sequence[str], steady_ms: int) -> None:
        known = self._summarised.setdefault(rule, {})
        known.update(dict.fromkeys(keys, steady_ms))
        rows = [(rule, key, steady_ms) for key in keys]
        self._open.executemany("REPLACE INTO summarised VALUES (?, ?, ?)", rows)
        self._forget_summarised(rule, [*islice(known, max(len(known) - MAX_SUMMARISED, 0))])

    def _forget_summarised(self, rule: str, keys: Sequence[str]) -> None:
        for key in keys:
            del self._summarised[rule][key]
        self._open.executemany("DELETE FROM summarised WHERE rule = ? AND key = ?", ((rule, key) for key in keys))

    def rules_with_held(self) -> list[str]:
        """The rules from which something was held back."""
        return sorted(rule for rule, held in self._held.items() if held)

    def held(self, rule: str) -> tuple[list[HeldBack], dict[str, int]]:
        """What was held back from a rule, and of each tenant how much more was only counted."""
        return [*self._held.get(rule, {}).values()], {**self._more.get(rule, {})}

    def forget_held(self, rule: str, digests: Sequence[Digest], steady_ms: int) -> None:
        """What was held back from a rule is summarised in digests, or, without any, nobody wants it any more. In a
        transaction."""
        held = self._held.pop(rule, {})
        for one in held.values():
            self._held_of.pop((rule, one.tenant), None)
        self._more.pop(rule, None)
        for table in ("held", "more"):
            self._open.execute(f"DELETE FROM {table} WHERE rule = ?", (rule,))  # noqa: S608 - one of two words
        for digest in digests:
            self.digests[digest.key] = digest
            self._open.execute("REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", digest)
        if digests:
            # acknowledged when it was held back, and that may have been lost: what comes again is in the summary
            self._note_summarised(rule, [*held], steady_ms)

    def forget_digest(self, key: str) -> None:
        """A digest was delivered, or is among the undelivered messages. In a transaction."""
        self.digests.pop(key, None)
        self._open.execute("DELETE FROM digests WHERE key = ?", (key,))

    def forget_before(self, now_ms: int, steady_ms: int, open_keys: Collection[str] = ()) -> None:
        """What passed longer than an hour ago, and was acknowledged as long ago, is of no more use; nor is what was
        summarised as long ago, unless it is open for another rule and may come again. In a transaction."""
        if self._is_fresh:
            # an acknowledgement may not have reached the broker before the process ended: then it comes after the start
            self._open.execute("UPDATE passed SET ended_ms = ? WHERE ended_ms IS NOT NULL", (steady_ms,))
            self._open.execute("UPDATE summarised SET at_ms = ?", (steady_ms,))
            self._summarised = {rule: dict.fromkeys(keys, steady_ms) for rule, keys in self._summarised.items()}
            self._is_fresh = False
        # what a clock that was ahead wrote counts as now, once
        for column, latest_ms in (("at_ms", now_ms), ("ended_ms", steady_ms)):
            self._open.execute(f"UPDATE passed SET {column} = ? WHERE {column} > ?", (latest_ms, latest_ms))  # noqa: S608
        # of what is open no clock alone says that it is old
        old = "ended_ms <= :old_ms AND at_ms <= :counted_ms OR at_ms <= :lost_ms"
        bounds = {
            "old_ms": steady_ms - HOUR_MS,
            "counted_ms": now_ms - HOUR_MS,
            "lost_ms": min(now_ms, steady_ms) - MAX_OPEN_MS,
        }
        for rule, key in self._open.execute(f"SELECT rule, key FROM passed WHERE {old}", bounds):  # noqa: S608
            self.history(rule).forget(key)
            self._rules_of_open.pop(key, None)
        self._open.execute(f"DELETE FROM passed WHERE {old}", bounds)  # noqa: S608
        for rule, known in self._summarised.items():
            # on disk not: after a start all of it counts as of then
            known.update({key: steady_ms for key in open_keys if key in known})
            self._forget_summarised(rule, [key for key, at_ms in known.items() if at_ms <= steady_ms - HOUR_MS])
        self._summarised = {rule: known for rule, known in self._summarised.items() if known}
        for rule, history in [*self._histories.items()]:
            # a rule that sends seldom is not kept in memory for good
            if not history.count(now_ms) and history.is_empty:
                del self._histories[rule]

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
