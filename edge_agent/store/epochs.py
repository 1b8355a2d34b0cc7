"""Detects with small files beside the buffer whether it was replaced, and begins a new epoch then."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import structlog

from edge_agent.store.batch_rows import batch_row_id, insert_tombstones
from edge_agent.store.connection import Connection
from edge_agent.store.database import (
    SENDING,
    SENT_THROUGH,
    UNCOUNTED,
    BufferOptions,
    OpenDatabase,
    transaction,
    without_checkpoints,
)
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.record import Batch, IntervalSet, new_epoch

# The owner and identity of a buffer: files next to it and a mark inside it.

LINEAGE, HIGH_WATER = "lineage.json", "head"
_MAX_BYTES = 16 << 10
HEAD_STEP = 65_536
_VERSION = 4
_HIGH_WATER = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The content of the small file: what it remembers of the buffer's epoch.

    `owner`: `tenant/device`. `head_limit`: `head` was never above it. `pruned_through`: ids up to this were
    acknowledged or declared.
    """

    owner: str
    ordinal: int
    epoch: int
    head_limit: int
    pruned_through: int
    token: int = 0


@dataclass(frozen=True, slots=True)
class LineageMark:
    """What the buffer knows of the lineage file. `next_token`: the token that the file may have by now; 0: none."""

    token: int
    next_token: int
    changed_ns: int


def read_lineage(folder: Path) -> Lineage | None:
    """The file's content; None if it cannot be read."""
    try:
        version, owner, ordinal, epoch, head_limit, pruned_through, token = json.loads(
            read_bounded(folder / LINEAGE, _MAX_BYTES)
        )
        lineage = Lineage(str(owner), int(ordinal), int(epoch), int(head_limit), int(pruned_through), int(token))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        # A damaged file may contain anything: `Infinity` overflows int(), nested brackets the recursion limit.
        return None
    return lineage if version == _VERSION else None


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file and syncs it. Raises OSError."""
    fields = (lineage.owner, lineage.ordinal, lineage.epoch, lineage.head_limit, lineage.pruned_through)
    text = json.dumps([_VERSION, *fields, lineage.token])
    replace_durably(folder / LINEAGE, text.encode("ascii"), mode=0o600)
    descriptor = os.open(folder / LINEAGE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # the rename changed its change time
    finally:
        os.close(descriptor)


def next_epoch(least: int, wall_ms: int) -> int:
    """The number of a new epoch above `least`, which no copy of this buffer may draw too.

    A clock that is not set or behind says nothing. Then 35 random bits (17 minutes of epochs) distinguish the copies.
    """
    drawn = new_epoch(wall_ms, secrets.randbits(15))
    return drawn if drawn > least else least + 1 + secrets.randbits(35)


def read_mark(connection: Connection) -> LineageMark | None:
    """The buffer's mark; None in a new buffer. Raises sqlite3.Error."""
    row = connection.execute("SELECT token, following, changed_ns FROM mark").fetchone()
    return LineageMark(*row) if row else None


def replace_lineage(connection: Connection, folder: Path, lineage: Lineage) -> None:
    """Writes the file with its new token, and the mark before and after. Raises StoreError, OSError."""
    before = read_mark(connection) or LineageMark(0, 0, 0)
    present = read_lineage(folder)
    if present is not None and present.token == before.next_token:
        # The last attempt ended between file and mark; this one may end before the file.
        before = LineageMark(present.token, 0, _changed_ns(folder))
    with without_checkpoints(connection):
        _set_mark(connection, LineageMark(before.token, lineage.token, before.changed_ns))
        write_lineage(folder, lineage)
        _set_mark(connection, LineageMark(lineage.token, 0, _changed_ns(folder)))


def resume_lineage(connection: Connection, lineage: Lineage | None, folder: Path) -> bool:
    """Whether the buffer continues its epoch; a buffer without a mark is new. Raises StoreError."""
    mark = read_mark(connection)
    if mark is None:
        return True
    if lineage is None:
        return False
    if lineage.token == mark.next_token:
        # A crash came between file and mark; another may come before the next token.
        _set_mark(connection, LineageMark(lineage.token, 0, _changed_ns(folder)))
        return True
    return lineage.token == mark.token and _changed_ns(folder) == mark.changed_ns


def _changed_ns(folder: Path) -> int:
    return (folder / LINEAGE).stat().st_ctime_ns


def _set_mark(connection: Connection, mark: LineageMark) -> None:
    with transaction(connection):
        row = (1, mark.token, mark.next_token, mark.changed_ns)
        connection.execute("INSERT OR REPLACE INTO mark VALUES (?, ?, ?, ?)", row)


def read_high_water(folder: Path, epoch: int) -> int:
    """The highest known head of an epoch; 0 if none is."""
    with suppress(OSError, ValueError):
        data = read_bounded(folder / HIGH_WATER, _HIGH_WATER.size)
        if len(data) == _HIGH_WATER.size and _HIGH_WATER.unpack(data)[0] == epoch:
            return int(_HIGH_WATER.unpack(data)[1])
    return 0


def write_high_water(folder: Path, epoch: int, head: int) -> None:
    """Writes the head of an epoch in place, if the file system allows it."""
    with suppress(OSError):
        descriptor = os.open(folder / HIGH_WATER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # In place and not synced: it follows every commit, and a sync would double the wear.
            os.pwrite(descriptor, _HIGH_WATER.pack(epoch, head), 0)
        finally:
            os.close(descriptor)


log = structlog.get_logger("edge_agent.store")

RESTORED, MISSING = "restored", "missing"
"""What happened to a buffer. RESTORED is also the tombstone reason of ids given after the image was made."""
_NOTHING = (1, 0)
"""No id: from 1 to 0."""


class BufferIdentity:
    """Maintains the small files beside a buffer. Used under the buffer's lock."""

    def __init__(self, path: Path, options: BufferOptions) -> None:
        self._path = path
        self._options = options
        self._lineage = read_lineage(path.parent)
        self._renewed_at_ns = 0

    def forget(self) -> int:
        """The lineage describes another file; returns the epoch that new epochs must exceed."""
        known, self._lineage = self._lineage, None
        return known.epoch if known and known.owner == self._options.owner else 0

    def begin_own_epoch(self, database: OpenDatabase) -> bool:
        """Begins an epoch if the buffer was replaced; returns whether it did. Then the file must be opened again.
        Raises StoreError.
        """
        reason, lost = self._try_resume(database)
        if not reason:
            return False
        if reason == MISSING and self._lineage:
            _adopt_lineage(database, self._lineage)
        log.error("the buffer was replaced: a new epoch begins", reason=reason, former=database.epoch)
        _begin_epoch(database, self._options, reason, lost)
        return True

    def _try_resume(self, database: OpenDatabase) -> tuple[str, tuple[int, int]]:
        """Continues the epoch (""), or returns what happened to the buffer, and the first and last id that may be
        lost.
        """
        lineage, options, folder = self._lineage, self._options, self._path.parent
        mark = read_mark(database.writer)
        if mark is None:
            return self._compare_new(database)
        is_cut = read_high_water(folder, database.epoch) > database.head
        if resume_lineage(database.writer, lineage, folder) and not is_cut:
            return "", _NOTHING
        if lineage is None:
            return RESTORED, _NOTHING
        same = (lineage.owner, lineage.epoch) == (options.owner, database.epoch)
        # If the small files are newer, ids up to the bound may have been given.
        is_younger = same and (is_cut or lineage.token != mark.token)
        return RESTORED, (database.head + 1, lineage.head_limit) if is_younger else _NOTHING

    def _compare_new(self, database: OpenDatabase) -> tuple[str, tuple[int, int]]:
        """A new file beside a lineage of this owner replaces a lost one."""
        lineage, options = self._lineage, self._options
        if not database.is_new or lineage is None:
            return "", _NOTHING
        if lineage.owner != options.owner:
            return "", _NOTHING
        return MISSING, (lineage.pruned_through + 1, lineage.head_limit)

    def raise_head_limit(self, database: OpenDatabase, records: int) -> None:
        """Before a commit: keeps the lineage ahead of the head, so that it bounds the ids of a lost buffer.

        Only a checkpoint writes to the main file. The first commit after one gets a new token, which is in the log
        alone, so a main file without its log has an older one.
        """
        known = self._lineage
        same = known and (known.ordinal, known.epoch) == (database.ordinal, database.epoch)
        is_ahead = known and same and database.head + records <= known.head_limit
        # A full disk for the small file must not refuse a record; the next commit tries again.
        with suppress(OSError):
            if not is_ahead or self._path.stat().st_mtime_ns != self._renewed_at_ns:
                self.renew(database, records)

    def renew(self, database: OpenDatabase, records: int = 0) -> None:
        """Writes the lineage with a new token. Raises StoreError, OSError."""
        written_ns = self._path.stat().st_mtime_ns
        lineage = Lineage(
            self._options.owner,
            database.ordinal,
            database.epoch,
            database.head + records + HEAD_STEP,
            database.pruned_through(),
            secrets.randbits(62) + 1,
        )
        replace_lineage(database.writer, self._path.parent, lineage)
        self._lineage, self._renewed_at_ns = lineage, written_ns

    def on_committed(self, database: OpenDatabase) -> None:
        write_high_water(self._path.parent, database.epoch, database.head)


def _begin_epoch(database: OpenDatabase, options: BufferOptions, reason: str, lost: tuple[int, int]) -> None:
    """Ends the epoch, begins another, and declares the ids from lost[0] to lost[1] of the former lost.

    Waiting records keep their ids and are sent. They may have been sent before, so their times are not corrected any
    more.
    """
    ordinal, head = database.ordinal, database.head
    epoch = options.epoch_for(max(database.epochs.values()))
    counted = {f"epochs_{reason}": 1, SENDING: -database.counters.get(SENDING, 0)}
    with transaction(database.writer):
        if lost[0] <= lost[1]:
            # The lost file accounted for the ids between this file's head and the first declared one.
            counted |= {f"lost_{RESTORED}": lost[1] - lost[0] + 1, UNCOUNTED: lost[0] - 1 - head}
            head = lost[1]
            empty = Batch(options.device, database.epochs[ordinal], head)
            insert_tombstones(database.writer, ordinal, empty, IntervalSet([lost]), RESTORED)
        counted[SENT_THROUGH] = batch_row_id(ordinal, head) - database.counters.get(SENT_THROUGH, 0)
        database.writer.execute("UPDATE epochs SET head = ? WHERE ordinal = ?", (head, ordinal))
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (ordinal + 1, epoch, options.owner))
        for name, increase in counted.items():
            value = database.counters.get(name, 0) + increase
            database.writer.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))


def _adopt_lineage(database: OpenDatabase, lineage: Lineage) -> None:
    """Gives a new file the lineage's epoch, because its buffer is gone. The caller then begins another epoch."""
    with transaction(database.writer):
        database.writer.execute("DELETE FROM epochs")
        row = (lineage.ordinal, lineage.epoch, lineage.owner)
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", row)
    database.ordinal = lineage.ordinal
    database.epochs, database.heads = {lineage.ordinal: lineage.epoch}, {lineage.ordinal: 0}
