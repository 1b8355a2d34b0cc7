"""What each rule decided about each message, and the digests of held-back messages. Kept in SQLite across restarts.

A message that comes again within a day gets the same decision. Decisions are written in one transaction for many
messages, before any of them is sent or acknowledged. One thread uses it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from gateway.errors import GatewayError
from geo.alerts import AlertRule, VerdictKind

HOUR_MS: Final = 3_600_000
KNOWN_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * KNOWN_MS
"""How long a decision is remembered; that of a message in no digest yet is remembered until the digest."""
MAX_HELD: Final = 1000
"""Held-back messages of a rule and a tenant that a digest takes; others are counted."""
# a person can read so many; the rest is counted
MAX_LISTED: Final = 100
# as many as fit a screen
_MAX_PLACES: Final = 50


class PassDecision(StrEnum):
    SEND = "send"
    QUIET = "quiet"
    """Held back: it is a quiet time of the rule."""
    LIMIT = "limit"
    """Held back: as many as the rule allows were sent within the last hour."""


class HeldBack(NamedTuple):
    """One held-back message: its key, time (ms since 1970) and reason. `verdict`: None for an alert."""

    key: str
    at_ms: int
    decision: str
    tenant: str
    device: str
    kind: str | None
    place: str | None
    t_ms: int
    verdict: str | None = None

    @property
    def is_announced(self) -> bool:
        """Whether it announces an event for the first time: as an alert, or as a verdict `late`."""
        return self.verdict is None or self.verdict == VerdictKind.LATE


class Digest(NamedTuple):
    """A digest that is to be delivered. `tenant`: the tenant of all messages in it."""

    key: str
    rule: str
    webhook: str
    tenant: str
    body: bytes


def is_digest_due(rule: AlertRule, held: Sequence[HeldBack], now_ms: int) -> bool:
    """Whether held-back messages are summarised now: after the quiet hours or a week, and an hour after the first
    message that exceeded the limit. So each tenant gets at most one digest an hour.
    """
    # a rule that is always quiet must not keep its messages for ever
    if not held or (rule.is_quiet_at(now_ms) and now_ms - min(one.at_ms for one in held) < WEEK_MS):
        return False
    limited = [one.at_ms for one in held if one.decision == PassDecision.LIMIT]
    # even if the clock is set back, a digest waits no longer than an hour
    return not limited or not min(limited) <= now_ms < min(limited) + HOUR_MS


def digests_of(rule: AlertRule, held: Iterable[HeldBack], more: Mapping[str, int]) -> list[Digest]:
    """One digest for each tenant, as no tenant may read about another. `more`: messages that were only counted, by
    tenant.
    """
    by_tenant: dict[str, list[HeldBack]] = {}
    for one in held:
        by_tenant.setdefault(one.tenant, []).append(one)
    return [_digest_of(rule, mine, more.get(tenant, 0)) for tenant, mine in sorted(by_tenant.items())]


def _digest_of(rule: AlertRule, held: Sequence[HeldBack], more: int) -> Digest:
    # the key follows from the content, so that a digest has the same key after a crash; not from the time alone,
    # as a clock that is set back reaches the same moment again
    first = min(held, key=lambda one: (one.at_ms, one.key))
    what = "".join(f"{one}\n" for one in sorted(one.key for one in held))
    mark = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
    key = f"digest/{rule.id}/{first.tenant}/{first.at_ms}-{mark}"
    content: dict[str, Any] = {
        "type": "digest",
        "key": key,
        "rules": [rule.id],
        "digest": {
            "since_ms": first.at_ms,
            "until_ms": max(one.at_ms for one in held),
            "held_back": len(held) + more,
            "by_reason": _counted(one.decision for one in held),
            # an alert and its verdict are one event
            "by_kind": _counted(one.kind or "" for one in held if one.is_announced),
            "by_verdict": _counted(one.verdict for one in held if one.verdict is not None),
            "by_place": _counted(one.place or "" for one in held),
            "messages": [
                {name: value for name, value in one._asdict().items() if name != "decision" and value is not None}
                for one in sorted(held, key=lambda one: (one.at_ms, one.key))[:MAX_LISTED]
            ],
        },
    }
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return Digest(key, rule.id, rule.webhook, first.tenant, body)


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).most_common(_MAX_PLACES)))


_VERSION: Final = 4
# a backup may hold the file for a moment
_BUSY_S: Final = 5.0
# `decision`: a PassDecision; `waits`: held back, and in no digest yet
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS decided (
    rule TEXT, key TEXT, at_ms INTEGER NOT NULL, decision TEXT NOT NULL, tenant TEXT NOT NULL, device TEXT NOT NULL,
    kind TEXT, place TEXT, t_ms INTEGER NOT NULL, verdict TEXT, waits INTEGER NOT NULL, PRIMARY KEY (rule, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS decided_at ON decided (rule, decision, at_ms);
CREATE INDEX IF NOT EXISTS decided_waits ON decided (rule, at_ms) WHERE waits;
CREATE TABLE IF NOT EXISTS digests (
    key TEXT PRIMARY KEY, rule TEXT NOT NULL, webhook TEXT NOT NULL, tenant TEXT NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
"""


class NotificationBook:
    """Used in a `with` block by one thread. Raises GatewayError if the file cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        with self._faults():
            self._database = database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            # two processes with one file would miss each other's sends
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (found,) = database.execute("PRAGMA user_version").fetchone()
            if found not in {0, _VERSION}:
                raise GatewayError(f"{self._path}: it is of version {found}, and this program knows {_VERSION}")
            database.executescript(_SCHEMA)
            database.execute(f"PRAGMA user_version = {_VERSION}")
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is on disk afterwards."""
        with self._faults():
            self._open.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._open.execute("ROLLBACK")
                raise
            self._open.execute("COMMIT")

    def decide(self, rule: AlertRule, message: HeldBack, now_ms: int) -> tuple[PassDecision, bool]:
        """What a rule decides about a message now, and whether it is decided for the first time. In a transaction.

        A message that passed before passes again at any time, as nobody knows whether it arrived. A message that was
        held back before is in a digest, or will be.
        """
        before = self._open.execute("SELECT decision FROM decided WHERE rule = ? AND key = ?", (rule.id, message.key))
        if (known := before.fetchone()) is not None:
            return PassDecision(known[0]), False
        decision = PassDecision.SEND
        # quiet hours first, so that messages held back at night do not count towards the limit
        if rule.is_quiet_at(now_ms):
            decision = PassDecision.QUIET
        elif rule.max_per_hour is not None and self._passed(rule.id, now_ms) >= rule.max_per_hour:
            decision = PassDecision.LIMIT
        # a rule without both needs no write for each message
        if rule.max_per_hour is not None or rule.quiet is not None:
            waits = decision is not PassDecision.SEND and rule.digest
            row = message._replace(at_ms=now_ms, decision=decision)
            values = (rule.id, *row, waits)
            self._open.execute("INSERT INTO decided VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        return decision, True

    def _passed(self, rule: str, now_ms: int) -> int:
        # any 60 minutes: with clock hours, twice the limit could pass around a full hour
        query = "SELECT count(*) FROM decided WHERE rule = ? AND decision = 'send' AND at_ms > ? AND at_ms <= ?"
        (count,) = self._open.execute(query, (rule, now_ms - HOUR_MS, now_ms)).fetchone()
        return int(count)

    def rules_with_held(self) -> list[str]:
        """The rules with held-back messages that are in no digest yet."""
        with self._faults():
            return [
                rule for (rule,) in self._open.execute("SELECT DISTINCT rule FROM decided WHERE waits ORDER BY rule")
            ]

    def held(self, rule: str) -> tuple[list[HeldBack], dict[str, int]]:
        """The messages of a rule that wait for a digest, oldest first, and how many more there are by tenant."""
        query = (
            "SELECT key, at_ms, decision, tenant, device, kind, place, t_ms, verdict FROM decided "
            "WHERE rule = ? AND waits AND tenant = ? ORDER BY at_ms, key LIMIT ?"
        )
        counts = "SELECT tenant, count(*) FROM decided WHERE rule = ? AND waits GROUP BY tenant"
        held, more = list[HeldBack](), dict[str, int]()
        with self._faults():
            for tenant, count in self._open.execute(counts, (rule,)).fetchall():
                held += [HeldBack(*row) for row in self._open.execute(query, (rule, tenant, MAX_HELD))]
                more[tenant] = max(count - MAX_HELD, 0)
        return held, more

    def summarise(self, rule: str, digests: Sequence[Digest]) -> None:
        """Store the digests of all waiting messages of a rule; none: no digest is wanted any more. In a transaction."""
        self._open.execute("UPDATE decided SET waits = 0 WHERE rule = ? AND waits", (rule,))
        self._open.executemany("REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", digests)

    def digests(self) -> list[Digest]:
        with self._faults():
            return [Digest(*row) for row in self._open.execute("SELECT * FROM digests ORDER BY key")]

    def forget_digests(self, keys: Iterable[str]) -> None:
        with self.transaction():
            self._open.executemany("DELETE FROM digests WHERE key = ?", ((key,) for key in keys))

    def forget_before(self, now_ms: int) -> None:
        """Delete decisions older than KNOWN_MS that wait for no digest."""
        with self.transaction():
            self._open.execute("DELETE FROM decided WHERE at_ms <= ? AND NOT waits", (now_ms - KNOWN_MS,))

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._database is not None, "used in its `with` block"
        return self._database

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise GatewayError(
                f"{self._path}: {error}; if the file is damaged, it is moved away: hourly limits start "
                "again and held-back alerts are lost"
            ) from error
