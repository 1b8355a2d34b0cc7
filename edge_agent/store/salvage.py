"""Reading what can be read of a damaged file, and saying what cannot.

If the structure of the file is sound and only the content of some batches is not, exactly those are lost. Otherwise a
batch may be missing without a trace, so every name that was not found, and is not known to have been acknowledged, is
declared lost: who has received a record does not mind hearing that it was lost on the device.
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

from edge_agent.store.block import block_id, first_of, ordinal_of
from edge_agent.store.connection import Connection
from telemetry import IntervalSet, WireError, decode

LINEAGE = "lineage.json"
HEAD_STEP = 65_536
REASON = "corrupt"
_ROW = "id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a small file beside the buffer remembers of its present epoch.

    `bound`: `head` never was beyond this. `settled`: names up to this had been acknowledged or declared.
    """

    device: str
    ordinal: int
    epoch: int
    bound: int
    settled: int


@dataclass(slots=True)
class Salvage:
    """What came out of a damaged file. `lost`: names by ordinal that were there, or may have been, and cannot be read.

    `found`: names by ordinal that are accounted for, waiting or acknowledged.
    """

    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)
    boots: list[Any] = field(default_factory=list)
    lost: dict[int, IntervalSet] = field(default_factory=dict)
    found: dict[int, IntervalSet] = field(default_factory=dict)
    blocks: int = 0

    def find(self, ordinal: int, names: IntervalSet) -> None:
        """Names that are accounted for."""
        self.found[ordinal] = self.found.get(ordinal, IntervalSet()) | names

    def lose(self, ordinal: int, first: int, last: int) -> None:
        """Names that cannot be read."""
        if first <= last:
            self.lost[ordinal] = self.lost.get(ordinal, IntervalSet()) | IntervalSet([(first, last)])


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file, synced. Raises OSError."""
    beside = folder / f"{LINEAGE}.new"
    with beside.open("w", encoding="ascii") as file:
        json.dump([lineage.device, lineage.ordinal, lineage.epoch, lineage.bound, lineage.settled], file)
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
        device, ordinal, epoch, bound, settled = json.loads((folder / LINEAGE).read_text(encoding="ascii"))
        return Lineage(str(device), int(ordinal), int(epoch), int(bound), int(settled))
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


def is_sound(damaged: Connection) -> bool:
    """Whether the structure of the file is whole, whatever its batches hold."""
    try:
        return bool(damaged.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
    except sqlite3.Error:
        return False


def readable_rows(damaged: Connection, device: str, found: Salvage) -> Iterator[tuple[Any, ...]]:
    """The rows of `blocks` whose batch is whole, ascending. The names of the others go to `found.lost`."""
    for row in _rows(damaged, max(found.epochs, default=1)):
        names = _names_in(row, device, found)
        if names is not None:
            found.blocks += row[10] is not None
            found.find(ordinal_of(row[0]), names)
            yield row
        elif isinstance(row[1], int):
            found.lose(ordinal_of(row[0]), first_of(row[0]), row[1])


def lose_the_rest(found: Salvage, lineage: Lineage | None) -> None:
    """Declares every name that was not found and is not known to have been acknowledged."""
    for ordinal, (_, head) in found.epochs.items():
        first, last = 1, max(head, found.found.get(ordinal, IntervalSet()).last or 0)
        if lineage is not None and lineage.ordinal == ordinal:
            first, last = lineage.settled + 1, max(last, lineage.bound)
        missing = IntervalSet([(first, last)] if first <= last else []) - found.found.get(ordinal, IntervalSet())
        found.lost[ordinal] = (found.lost.get(ordinal, IntervalSet()) | missing) - found.found.get(
            ordinal, IntervalSet()
        )


def _names_in(row: tuple[Any, ...], device: str, found: Salvage) -> IntervalSet | None:
    """The names that a row accounts for; None when it cannot be trusted."""
    identity, last, data = row[0], row[1], row[10]
    try:
        span = IntervalSet([(first_of(identity), last)])
        if data is None:
            return span
        batch = decode(data)
        epoch = found.epochs.get(ordinal_of(identity), (batch.epoch, 0))[0]
        names = batch.header.accounted
        return names if span.covers(names) and (batch.device, batch.epoch) == (device, epoch) else None
    except (WireError, TypeError, ValueError):
        return None


def _rows(damaged: Connection, newest: int) -> Iterator[tuple[Any, ...]]:
    """Every row that can be read, ascending; at an error it steps over what cannot be read, by steps that grow."""
    end = block_id(newest + 1, 0)
    at, step = 0, 1
    while at < end:
        try:
            row = damaged.execute(
                f"SELECT {_ROW} FROM blocks WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608 - fixed columns
                (at,),
            ).fetchone()
        except sqlite3.Error:
            at, step = max(at + step, block_id(1, 0)), step * 2
            continue
        if row is None:
            return
        at, step = max(row[0], at + 1), 1
        yield tuple(row)
