"""Messages that no record can carry: kept with their bytes for whoever has to find out why, up to a bound."""

from __future__ import annotations

from collections.abc import Iterable

from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.packing import DeadLetter

MAX_DEAD_LETTERS = 256
MAX_DEAD_LETTER_BYTES = 4 << 20
"""Of all payloads together; the oldest go first."""
MAX_KEPT_BYTES = 1 << 20
"""Of one payload; `bytes` says how long it was."""


def add_dead_letters(connection: Connection, letters: Iterable[DeadLetter], wall_ms: int, changes: Changes) -> None:
    """Stores and counts dead letters, and drops the oldest beyond the bounds. Inside the caller's transaction."""
    added = 0
    for letter in letters:
        topic = letter.topic.encode("utf-8", "backslashreplace").decode("utf-8")
        row = (wall_ms, topic, len(letter.payload), letter.payload[:MAX_KEPT_BYTES], letter.reason)
        connection.execute(
            "INSERT INTO dead_letters (wall_ms, topic, bytes, payload, reason) VALUES (?, ?, ?, ?, ?)", row
        )
        added += 1
    if not added:
        return
    changes.counts["dead_letters"] += added
    (before,) = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
    connection.execute(
        "DELETE FROM dead_letters WHERE id NOT IN (SELECT id FROM (SELECT id, count(*) OVER newest AS place,"
        " sum(length(payload)) OVER newest AS size FROM dead_letters WINDOW newest AS (ORDER BY id DESC))"
        " WHERE place <= ? AND size <= ?)",
        (MAX_DEAD_LETTERS, MAX_DEAD_LETTER_BYTES),
    )
    (after,) = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
    changes.counts["dead_letters_dropped"] += before - after
