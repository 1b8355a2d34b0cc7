"""Are all names accounted for? Each was given to a record that waits, was acknowledged, or is declared lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_agent.store.block import SEQ_MASK, block_id
from edge_agent.store.connection import Connection
from telemetry import WireError, read_header

MOST_RANGES = 20
EXPLAINED = "explained"
"""A tally: names that a rebuilt buffer cannot count any more, because it lost the counters with the file."""


def unaccounted(connection: Connection, head: int, tallies: Mapping[str, int]) -> int:
    """How many names are missing; 0 as long as everything is right. `head`: of the present epoch."""
    (before,) = connection.execute(
        "SELECT coalesce(sum(head), 0) FROM epochs WHERE ordinal < (SELECT max(ordinal) FROM epochs)"
    ).fetchone()
    (waiting,) = connection.execute(
        "SELECT coalesce(sum(records + lost), 0) FROM blocks WHERE batch IS NOT NULL"
    ).fetchone()
    return int(before + head - waiting - tallies.get("acknowledged", 0) - tallies.get(EXPLAINED, 0))


def gaps(connection: Connection, ordinal: int, head: int, tallies: Mapping[str, int]) -> dict[str, Any]:
    """How many names are missing, the ranges of which some must be those, and the ranges that are declared lost.

    At most `MOST_RANGES` each, the oldest; an acknowledged row is forgotten after a while, so a range alone is no gap.
    """
    missing = unaccounted(connection, head, tallies)
    return {
        "gaps": missing,
        "gap_ranges": _holes(connection, ordinal) if missing else [],
        "tombstones": _tombstones(connection),
    }


def _holes(connection: Connection, ordinal: int) -> list[list[int]]:
    rows = connection.execute(
        "SELECT before + 1, first - 1 FROM (SELECT id & ? AS first, max(last) OVER"
        " (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM blocks WHERE id > ?)"
        " WHERE first > coalesce(before, 0) + 1 LIMIT ?",
        (SEQ_MASK, block_id(ordinal, 0), MOST_RANGES),
    ).fetchall()
    return [[first or 1, last] for first, last in rows]


def _tombstones(connection: Connection) -> list[list[Any]]:
    rows = connection.execute(
        "SELECT batch FROM blocks WHERE lost > 0 AND batch IS NOT NULL ORDER BY id LIMIT ?", (MOST_RANGES,)
    ).fetchall()
    ranges: list[list[Any]] = []
    for (data,) in rows:
        try:
            ranges.extend([first, last, reason] for first, last, reason in read_header(data).tombstones)
        except WireError:
            continue
    return ranges[:MOST_RANGES]
