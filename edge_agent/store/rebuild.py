"""A new buffer from a damaged one: what can be read keeps its names, the rest is declared lost, a new epoch begins.

The new file is built beside and takes its place in one rename. After a crash in between there is no buffer, only the
damaged file that was set aside, and the work is done again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from edge_agent.store.block import block_id, ordinal_of
from edge_agent.store.connection import Connection, Connector, mapped_errors, prepare, transaction
from edge_agent.store.gaps import EXPLAINED, unaccounted
from edge_agent.store.lineage import Lineage, read_lineage
from edge_agent.store.salvage import (
    REASON,
    Salvage,
    finish_setting_aside,
    is_sound,
    lose_the_rest,
    lose_the_tail,
    owners,
    read_tables,
    readable_rows,
    set_aside,
)
from edge_agent.store.schema import create_tables
from telemetry import Batch, IntervalSet, Tombstone, encode


def interrupted_rebuild(database: Path) -> Path | None:
    """The damaged file whose rebuilding was interrupted, if there is one."""
    if database.exists():
        return None
    aside = [path for path in database.parent.glob(f"{database.stem}.damaged-*") if path.suffix != ".wal"]
    numbered = [path for path in aside if path.name.rpartition("-")[2].isdigit()]
    return max(numbered, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def rebuild(
    database: Path, device: str, epoch_for: Callable[[int], int], connect: Connector, aside: Path | None = None
) -> Salvage:
    """Sets the file aside (unless `aside` names it already) and puts a new one in its place. Raises StoreError."""
    aside = aside or set_aside(database)
    finish_setting_aside(database, aside)
    lineage = read_lineage(database.parent)
    if lineage is not None and lineage.device != device:
        lineage = None
    beside = database.with_name(f"{database.stem}.rebuilding")
    for suffix in ("", "-wal", "-shm"):
        beside.with_name(beside.name + suffix).unlink(missing_ok=True)
    with mapped_errors(), closing(connect(beside)) as new:
        prepare(new)
        create_tables(new)
        found = _fill(new, aside, device, epoch_for, connect, lineage)
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    beside.rename(database)
    return found


def _fill(  # noqa: PLR0917 - the parts of one step
    new: Connection,
    aside: Path,
    device: str,
    epoch_for: Callable[[int], int],
    connect: Connector,
    lineage: Lineage | None,
) -> Salvage:
    found = Salvage()
    with transaction(new):
        try:
            with closing(connect(aside)) as damaged:
                sound = is_sound(damaged)
                if owners(damaged) - {device}:
                    # Another device's ids are not ours to send, nor to declare.
                    found = Salvage()
                    _write_tables(new, device, found, epoch_for)
                    return found
                found = read_tables(damaged, lineage)
                if lineage is not None and found.epochs[lineage.ordinal][0] != lineage.epoch:
                    lineage = None
                _copy_rows(new, damaged, device, found)
                lose_the_tail(found, lineage)
                if not sound:
                    lose_the_rest(found, lineage)
        except (sqlite3.Error, UnicodeDecodeError):
            # Not one page can be read: all that the small file beside it knows of is lost.
            found = found if found.epochs else _nothing_but(lineage)
        for ordinal, names in found.lost.items():
            found.lost[ordinal] = names - found.found.get(ordinal, IntervalSet())
        _write_tables(new, device, found, epoch_for)
    return found


def _copy_rows(new: Connection, damaged: Connection, device: str, found: Salvage) -> None:
    for row in readable_rows(damaged, device, found):
        new.execute(
            "INSERT OR IGNORE INTO blocks"
            " (id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )


def _nothing_but(lineage: Lineage | None) -> Salvage:
    found = Salvage()
    if lineage is not None:
        found.epochs[lineage.ordinal] = (lineage.epoch, 0)
        found.lose(lineage.ordinal, lineage.settled + 1, lineage.bound)
    return found


def _write_tables(new: Connection, device: str, found: Salvage, epoch_for: Callable[[int], int]) -> None:
    heads = {ordinal: head for ordinal, (_, head) in found.epochs.items()}
    for identity, last in new.execute("SELECT max(id), max(last) FROM blocks GROUP BY id >> 44").fetchall():
        heads[ordinal_of(identity)] = max(last, heads.get(ordinal_of(identity), 0))
    for ordinal, names in found.lost.items():
        heads[ordinal] = max(names.last or 0, heads.get(ordinal, 0))
    for ordinal, (epoch, _) in sorted(found.epochs.items()):
        new.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", (ordinal, epoch, device, heads[ordinal]))
        names = found.lost.get(ordinal, IntervalSet())
        _declare(new, ordinal, Batch(device, epoch, heads[ordinal]), names)
    newest = max(found.epochs, default=0) + 1
    least = max((epoch for epoch, _ in found.epochs.values()), default=0)
    new.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (newest, epoch_for(least), device))
    found.tallies["rebuilt"] = found.tallies.get("rebuilt", 0) + 1
    lost = sum(names.count for names in found.lost.values())
    found.tallies[f"lost_{REASON}"] = found.tallies.get(f"lost_{REASON}", 0) + lost
    known = {**found.tallies, EXPLAINED: 0}
    found.tallies[EXPLAINED] = unaccounted(new, 0, known)
    for name, value in found.tallies.items():
        new.execute("INSERT OR REPLACE INTO tallies VALUES (?, ?)", (name, value))
    for row in found.boots:
        with suppress(sqlite3.Error):
            new.execute("INSERT OR REPLACE INTO boots VALUES (?, ?, ?, ?, ?, ?)", tuple(row))
    _write_dead_letters(new, found)


def _write_dead_letters(new: Connection, found: Salvage) -> None:
    for row in reversed(found.dead_letters):
        with suppress(sqlite3.Error):
            new.execute(
                "INSERT INTO dead_letters (wall_ms, topic, bytes, payload, reason) VALUES (?, ?, ?, ?, ?)", tuple(row)
            )


def _declare(new: Connection, ordinal: int, empty: Batch, names: IntervalSet) -> None:
    for first, last in names.ranges:
        data = encode(replace(empty, tombstones=(Tombstone(first, last, REASON),)))
        new.execute(
            "INSERT OR REPLACE INTO blocks (id, last, class, records, lost, size, wall_ms, boot, batch)"
            " VALUES (?, ?, 0, 0, ?, ?, 0, '', ?)",
            (block_id(ordinal, first), last, last - first + 1, len(data), data),
        )
