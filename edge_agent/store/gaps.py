"""What the counters prove: each record id that was given waits, is acknowledged or declared lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_agent.store.batch_rows import SEQ_MASK, batch_row_id
from edge_agent.store.connection import Connection
from edge_agent.store.database import UNCOUNTED
from waybill.record import WireError, read_header

MAX_GAP_RANGES = 20


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
