"""Reading what can be read of a damaged file, and saying what cannot.

The ids of blocks ascend with the names they hold, so a hole in what can be read is a range of names. Between two blocks
that follow each other without an error, what is missing was acknowledged; across an error it is declared lost, even if
it was acknowledged: who has received a record does not mind hearing that it was lost on the device.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.store.block import SEQ_BITS, block_id, first_of, ordinal_of
from edge_agent.store.connection import Connection
from telemetry import IntervalSet, WireError, decode

LINEAGE = "lineage.json"
HEAD_STEP = 65_536
REASON = "corrupt"
_ROW = "id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a small file beside the buffer remembers of its present epoch. `bound`: `head` never was beyond this."""

    device: str
    ordinal: int
    epoch: int
    bound: int


@dataclass(slots=True)
class Salvage:
    """What came out of a damaged file. `lost`: names by ordinal that were there and cannot be read."""

    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)
    boots: list[Any] = field(default_factory=list)
    lost: dict[int, IntervalSet] = field(default_factory=dict)
    blocks: int = 0

    def lose(self, ordinal: int, first: int, last: int) -> None:
        """Names that cannot be read."""
        if first <= last:
            self.lost[ordinal] = self.lost.get(ordinal, IntervalSet()) | IntervalSet([(first, last)])


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file, synced. Raises OSError."""
    beside = folder / f"{LINEAGE}.new"
    with beside.open("w", encoding="ascii") as file:
        json.dump([lineage.device, lineage.ordinal, lineage.epoch, lineage.bound], file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / LINEAGE)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lineage(folder: Path) -> Lineage | None:
    """What the file says; None if there is none that can be read."""
    try:
        device, ordinal, epoch, bound = json.loads((folder / LINEAGE).read_text(encoding="ascii"))
        return Lineage(str(device), int(ordinal), int(epoch), int(bound))
    except (OSError, ValueError, TypeError):
        return None


def set_aside(database: Path) -> Path:
    """Moves a damaged file and its log out of the way; where to."""
    number = 1
    while (aside := database.with_name(f"{database.stem}.damaged-{number}")).exists():
        number += 1
    for suffix in ("-shm", "-wal", ""):
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def read_tables(damaged: Connection, lineage: Lineage | None) -> Salvage:
    """Everything but the blocks, as far as it can be read."""
    found = Salvage()
    with suppress(sqlite3.Error, TypeError, ValueError):
        for ordinal, epoch, head in damaged.execute("SELECT ordinal, epoch, head FROM epochs").fetchall():
            found.epochs[int(ordinal)] = (int(epoch), int(head))
    with suppress(sqlite3.Error, TypeError, ValueError):
        for name, value in damaged.execute("SELECT name, value FROM tallies").fetchall():
            found.tallies[str(name)] = int(value)
    with suppress(sqlite3.Error):
        found.boots = damaged.execute("SELECT * FROM boots").fetchall()
    if lineage is not None:
        found.epochs.setdefault(lineage.ordinal, (lineage.epoch, 0))
    return found


def readable_rows(damaged: Connection, device: str, found: Salvage, bound: int) -> Iterator[tuple[Any, ...]]:
    """The rows of `blocks` whose batch is whole, ascending. What lies in between goes to `found.lost`.

    `bound`: the newest epoch never had a head beyond this.
    """
    newest = max(found.epochs, default=1)
    walk = _Walk(damaged, newest)
    for row in walk.rows():
        if _is_whole(row, device, found):
            found.blocks += 1
            yield row
        elif row[10] is not None:
            found.lose(ordinal_of(row[0]), first_of(row[0]), row[1])
    for after, before in walk.holes:
        _lose_between(found, after, before, newest, bound)


def _is_whole(row: tuple[Any, ...], device: str, found: Salvage) -> bool:
    identity, last, data = row[0], row[1], row[10]
    if data is None:
        return True
    try:
        batch = decode(data)
        epoch = found.epochs.get(ordinal_of(identity), (batch.epoch, 0))[0]
        names = batch.header.accounted
        inside = IntervalSet([(first_of(identity), last)]).covers(names)
        return inside and (batch.device, batch.epoch) == (device, epoch)
    except (WireError, TypeError, ValueError):
        return False


def _lose_between(found: Salvage, after: tuple[int, int], before: int | None, newest: int, bound: int) -> None:
    """Declares the names between a row (id, last) and the id of the next one that could be read; None: the end."""
    ordinal = ordinal_of(after[0]) or min(found.epochs, default=newest)
    end = newest if before is None else ordinal_of(before)
    first = after[1] + 1
    while ordinal <= end:
        last = first_of(before) - 1 if before is not None and ordinal == end else _head(found, ordinal, newest, bound)
        found.lose(ordinal, first, last)
        ordinal, first = ordinal + 1, 1


def _head(found: Salvage, ordinal: int, newest: int, bound: int) -> int:
    return bound if ordinal == newest else found.epochs.get(ordinal, (0, 0))[1]


class _Walk:
    """Reads rows upward; at an error it steps over what cannot be read, by steps that grow."""

    def __init__(self, damaged: Connection, newest: int) -> None:
        self._damaged = damaged
        self._end = block_id(newest, (1 << SEQ_BITS) - 1)
        self.holes: list[tuple[tuple[int, int], int | None]] = []

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row that can be read, ascending. Fills `holes`: ((id, last) before, id after or None for the end)."""
        before, at, step = (0, 0), 0, 1
        hole = False
        while at < self._end:
            try:
                row = self._damaged.execute(
                    f"SELECT {_ROW} FROM blocks WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608 - fixed columns
                    (at,),
                ).fetchone()
            except sqlite3.Error:
                hole, at, step = True, max(at + step, block_id(ordinal_of(before[0]) or 1, 0)), step * 2
                continue
            if row is None:
                break
            if hole:
                self.holes.append((before, row[0]))
            hole, step, at = False, 1, row[0]
            before = (row[0], row[1] if isinstance(row[1], int) else first_of(row[0]))
            yield tuple(row)
        if hole:
            self.holes.append((before, None))
