"""Counters that outlive a restart, and what they prove: each id given waits, is acknowledged or declared lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from edge_agent.store.connection import Connection
from edge_agent.store.stored_batch import SEQ_MASK, batch_row_id
from telemetry import WireError, read_header

MAX_GAP_RANGES = 20
UNCOUNTED = "uncounted"
"""A counter: record ids that a rebuilt buffer cannot count any more, because it lost the counters with the file."""

SENDING, SENT_THROUGH = "sending", "sent_through"
"""Counters of what may have been sent; see `edge_agent.store.clock_correction`."""


class BufferCounters:
    """Any thread may use them. `lock`: the buffer's, so that nothing is counted while a transaction stores them."""

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        self._lock = lock or threading.RLock()
        self.stored: dict[str, int] = {}
        self.unstored: Counter[str] = Counter()
        """Increases since the last transaction."""
        self.is_due = False
        """Whether an increase calls for a transaction."""

    def value(self, name: str) -> int:
        """A counter, with the increases that are not stored yet."""
        with self._lock:
            return self.stored.get(name, 0) + self.unstored[name]

    def add(self, name: str, increase: int, *, lazily: bool = False) -> None:
        """Increases a counter; it is stored with the next transaction.

        `lazily`: it does not call for a transaction of its own; at most the last few seconds of counting are lost.
        """
        with self._lock:
            if increase:
                self.unstored[name] += increase
                self.is_due = self.is_due or not lazily

    def store(self, connection: Connection, increases: Mapping[str, int]) -> None:
        """Writes the counters that grow, inside the caller's transaction."""
        for name, increase in increases.items():
            if increase:
                row = (name, self.stored.get(name, 0) + increase)
                connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", row)

    def on_stored(self, increases: Mapping[str, int]) -> None:
        """A transaction that stored these has ended; it had what was unstored in it."""
        for name, increase in increases.items():
            self.stored[name] = self.stored.get(name, 0) + increase
        self.unstored.clear()
        self.is_due = False


def count_missing(connection: Connection, head: int, counters: Mapping[str, int]) -> int:
    """How many record ids are missing; 0 as long as everything is right. `head`: of the present epoch."""
    (before,) = connection.execute(
        "SELECT coalesce(sum(head), 0) FROM epochs WHERE ordinal < (SELECT max(ordinal) FROM epochs)"
    ).fetchone()
    (waiting,) = connection.execute(
        "SELECT coalesce(sum(records + lost), 0) FROM batches WHERE batch IS NOT NULL"
    ).fetchone()
    return int(before + head - waiting - counters.get("acknowledged", 0) - counters.get(UNCOUNTED, 0))


def gaps(connection: Connection, ordinal: int, head: int, counters: Mapping[str, int]) -> dict[str, Any]:
    """How many record ids are missing, the ranges of which some must be those, and the ranges that are declared lost.

    At most `MAX_GAP_RANGES` each, the oldest; an acknowledged row is deleted later, so a range alone is no gap.
    """
    missing = count_missing(connection, head, counters)
    return {
        "gaps": missing,
        "gap_ranges": _holes(connection, ordinal) if missing else [],
        "tombstones": _tombstones(connection),
    }


def _holes(connection: Connection, ordinal: int) -> list[list[int]]:
    rows = connection.execute(
        "SELECT before + 1, first - 1 FROM (SELECT id & ? AS first, max(last) OVER"
        " (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM batches WHERE id > ?)"
        " WHERE first > coalesce(before, 0) + 1 LIMIT ?",
        (SEQ_MASK, batch_row_id(ordinal, 0), MAX_GAP_RANGES),
    ).fetchall()
    return [[first or 1, last] for first, last in rows]


def _tombstones(connection: Connection) -> list[list[Any]]:
    rows = connection.execute(
        "SELECT batch FROM batches WHERE lost > 0 AND batch IS NOT NULL ORDER BY id LIMIT ?", (MAX_GAP_RANGES,)
    ).fetchall()
    ranges: list[list[Any]] = []
    for (data,) in rows:
        try:
            ranges.extend([first, last, reason] for first, last, reason in read_header(data).tombstones)
        except WireError:
            continue
    return ranges[:MAX_GAP_RANGES]
