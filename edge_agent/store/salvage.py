"""Reading what can be read of a damaged file, and saying what cannot.

If the structure of the file is sound and only the content of some batches is not, exactly those are lost. Otherwise a
batch may be missing without a trace, so every name that was not found, and is not known to have been acknowledged, is
declared lost: who has received a record does not mind hearing that it was lost on the device.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_agent.config import MAX_CLASSES
from edge_agent.store.block import block_id, first_of, ordinal_of
from edge_agent.store.connection import Connection
from edge_agent.store.lineage import Lineage
from edge_agent.store.message_dead_letters import MAX_DEAD_LETTERS
from runtime import sync_folder
from telemetry import IntervalSet, WireError, validate

REASON = "corrupt"
_DEAD_LETTERS = "SELECT wall_ms, topic, bytes, payload, reason FROM dead_letters ORDER BY id DESC LIMIT ?"
_ROW = "id, last, class, records, lost, size, wall_ms, boot, sent, arrivals, batch"


@dataclass(slots=True)
class Salvage:
    """What came out of a damaged file. `lost`: names by ordinal that were there, or may have been, and cannot be read.

    `found`: names by ordinal that are accounted for, waiting or acknowledged.
    """

    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)
    boots: list[Any] = field(default_factory=list)
    dead_letters: list[Any] = field(default_factory=list)
    lost: dict[int, IntervalSet] = field(default_factory=dict)
    found: dict[int, IntervalSet] = field(default_factory=dict)
    blocks: int = 0
    tail: int | None = None

    def find(self, ordinal: int, names: IntervalSet) -> None:
        """Names that are accounted for."""
        self.found[ordinal] = self.found.get(ordinal, IntervalSet()) | names

    def lose(self, ordinal: int, first: int, last: int) -> None:
        """Names that cannot be read."""
        if first <= last:
            self.lost[ordinal] = self.lost.get(ordinal, IntervalSet()) | IntervalSet([(first, last)])


def set_aside(database: Path, why: str = "damaged") -> Path:
    """Moves a file and its log out of the way; where to. Interrupted, it is ended by `finish_setting_aside`.

    The file goes first: without its log it would be an older buffer, and give ids a second time.
    """
    before = kept_aside(database, why)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    aside = database.with_name(f"{database.stem}.{why}-{number}")
    if database.exists():
        database.rename(aside)
        sync_folder(database.parent)
    finish_setting_aside(database, aside)
    return aside


def kept_aside(database: Path, why: str = "damaged") -> list[Path]:
    """The files that were set aside, the oldest first."""
    found = [
        path for path in database.parent.glob(f"{database.stem}.{why}-*") if path.name.rpartition("-")[2].isdigit()
    ]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def finish_setting_aside(database: Path, aside: Path) -> None:
    """Moves what belongs to a file that was set aside, so that no new file takes it for its own."""
    for suffix in ("-wal", "-shm"):
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    sync_folder(database.parent)


def read_tables(damaged: Connection, lineage: Lineage | None) -> Salvage:
    """Everything but the blocks, as far as it can be read."""
    found = Salvage()
    with suppress(sqlite3.Error, TypeError, ValueError):
        for ordinal, epoch, head in damaged.execute("SELECT ordinal, epoch, head FROM epochs").fetchall():
            found.epochs[int(ordinal)] = (int(epoch), int(head))
    with suppress(sqlite3.Error, TypeError, ValueError):
        for name, value in damaged.execute("SELECT name, value FROM tallies").fetchall():
            found.tallies[str(name)] = int(value)
    with suppress(sqlite3.Error, ValueError):
        found.boots = damaged.execute("SELECT * FROM boots").fetchall()
    with suppress(sqlite3.Error, ValueError):
        found.dead_letters.extend(damaged.execute(_DEAD_LETTERS, (MAX_DEAD_LETTERS,)))
    if lineage is not None:
        found.epochs.setdefault(lineage.ordinal, (lineage.epoch, 0))
    return found


def owners(damaged: Connection) -> set[str]:
    """The devices that the file says it belongs to; none where it cannot be read."""
    with suppress(sqlite3.Error, UnicodeDecodeError):
        return {str(device) for (device,) in damaged.execute("SELECT DISTINCT device FROM epochs").fetchall()}
    return set()


def is_sound(damaged: Connection) -> bool:
    """Whether the structure of the file is whole, whatever its batches hold."""
    try:
        return bool(damaged.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def readable_rows(damaged: Connection, device: str, found: Salvage) -> Iterator[tuple[Any, ...]]:
    """The rows of `blocks` whose batch is whole, ascending. The names of the others go to `found.lost`.

    A row that is not whole may be wrong about its end too: what lies between it and the next whole row goes with it.
    """
    distrusted: int | None = None
    for row in _rows(damaged, max(found.epochs, default=1)):
        names = _names_in(row, device, found)
        if names is None:
            distrusted = row[0] if distrusted is None else distrusted
            continue
        if distrusted is not None:
            _lose_up_to(found, distrusted, row[0])
            distrusted = None
        found.blocks += row[10] is not None
        found.find(ordinal_of(row[0]), names)
        yield row
    if distrusted is not None:
        found.tail = distrusted


def lose_the_tail(found: Salvage, lineage: Lineage | None) -> None:
    """Declares what followed the last whole row, if rows that are not whole did."""
    if found.tail is None:
        return
    ordinal = ordinal_of(found.tail)
    bound = lineage.bound if lineage and lineage.ordinal == ordinal else found.epochs.get(ordinal, (0, 0))[1]
    found.lose(ordinal, first_of(found.tail), max(bound, first_of(found.tail)))


def _lose_up_to(found: Salvage, identity: int, following: int) -> None:
    ordinal = ordinal_of(identity)
    head = found.epochs.get(ordinal, (0, 0))[1]
    last = first_of(following) - 1 if ordinal_of(following) == ordinal else max(head, first_of(identity))
    found.lose(ordinal, first_of(identity), last)


def lose_the_rest(found: Salvage, lineage: Lineage | None) -> None:
    """Declares every name that was not found and is not known to have been acknowledged."""
    for ordinal, (_, head) in found.epochs.items():
        first, last = 1, max(head, found.found.get(ordinal, IntervalSet()).last or 0)
        if lineage is not None and lineage.ordinal == ordinal:
            first, last = lineage.settled + 1, max(last, lineage.bound)
        found.lose(ordinal, first, last)


def _names_in(row: tuple[Any, ...], device: str, found: Salvage) -> IntervalSet | None:
    """The names that a row accounts for; None when it cannot be trusted."""
    identity, last, class_index, records, lost, data = *row[:5], row[10]
    try:
        span = IntervalSet([(first_of(identity), last)])
        if data is None:
            return span if records == lost == 0 else None
        header = validate(data)
        counts = (header.ranges.count, header.declared.count, len(data))
        if counts != (records, lost, row[5]) or class_index not in range(MAX_CLASSES):
            return None
        epoch = found.epochs.get(ordinal_of(identity), (header.epoch, 0))[0]
        names = header.accounted
        return names if span.covers(names) and (header.device, header.epoch) == (device, epoch) else None
    except (WireError, TypeError, ValueError):
        return None


def _rows(damaged: Connection, newest: int) -> Iterator[tuple[Any, ...]]:
    """Every row that can be read, ascending; at an error one of an id and ten times None, and a step that grows."""
    end = block_id(newest + 1, 0)
    at, step = 0, 1
    while at < end:
        try:
            row = damaged.execute(
                f"SELECT {_ROW} FROM blocks WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608 - fixed columns
                (at,),
            ).fetchone()
        except (sqlite3.Error, UnicodeDecodeError):
            yield (max(at + 1, block_id(1, 1)), *(None,) * 10)
            at, step = max(at + step, block_id(1, 0)), step * 2
            continue
        if row is None:
            return
        at, step = max(row[0], at + 1), 1
        yield tuple(row)
