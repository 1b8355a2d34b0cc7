"""Whether a buffer is the one that was left, by small files beside it, and the new epoch of one that is not."""

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
    """What a small file beside the buffer remembers of its present epoch.

    `owner`: `tenant/device`. `head_limit`: `head` never was beyond this. `pruned_through`: ids up to this had been
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
    """What the buffer remembers of the file. `next_token`: the token that it may have by now; 0: none."""

    token: int
    next_token: int
    changed_ns: int


def read_lineage(folder: Path) -> Lineage | None:
    """What the file says; None if there is none that can be read."""
    try:
        version, owner, ordinal, epoch, head_limit, pruned_through, token = json.loads(
            read_bounded(folder / LINEAGE, _MAX_BYTES)
        )
        lineage = Lineage(str(owner), int(ordinal), int(epoch), int(head_limit), int(pruned_through), int(token))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        # A damaged file may hold anything: int() of `Infinity` overflows, and nothing but brackets is too deep.
        return None
    return lineage if version == _VERSION else None


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file, synced. Raises OSError."""
    fields = (lineage.owner, lineage.ordinal, lineage.epoch, lineage.head_limit, lineage.pruned_through)
    text = json.dumps([_VERSION, *fields, lineage.token])
    replace_durably(folder / LINEAGE, text.encode("ascii"), mode=0o600)
    descriptor = os.open(folder / LINEAGE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # the rename changed its change time
    finally:
        os.close(descriptor)


def next_epoch(least: int, wall_ms: int) -> int:
    """The number of a new epoch, above `least`, which no other life that an image of this buffer had may draw too.

    While the clock is not set, or behind, the time says nothing, so chance has to: 35 bits, or 17 minutes of epochs.
    """
    drawn = new_epoch(wall_ms, secrets.randbits(15))
    return drawn if drawn > least else least + 1 + secrets.randbits(35)


def new_token() -> int:
    """A number that no image has."""
    return secrets.randbits(62) + 1


def read_mark(connection: Connection) -> LineageMark | None:
    """The buffer's mark; None in a new one. Raises sqlite3.Error."""
    row = connection.execute("SELECT token, following, changed_ns FROM mark").fetchone()
    return LineageMark(*row) if row else None


def replace_lineage(connection: Connection, folder: Path, lineage: Lineage) -> None:
    """Writes the file under its new token, and the mark before and after. Raises StoreError, OSError."""
    before = read_mark(connection) or LineageMark(0, 0, 0)
    present = read_lineage(folder)
    if present is not None and present.token == before.next_token:
        # The last time failed between the file and the mark; this time may fail before the file.
        before = LineageMark(present.token, 0, _changed_ns(folder))
    with without_checkpoints(connection):
        _set_mark(connection, LineageMark(before.token, lineage.token, before.changed_ns))
        write_lineage(folder, lineage)
        _set_mark(connection, LineageMark(lineage.token, 0, _changed_ns(folder)))


def resume_lineage(connection: Connection, lineage: Lineage | None, folder: Path) -> bool:
    """Whether a buffer goes on in its epoch; one without a mark is new. Raises StoreError."""
    mark = read_mark(connection)
    if mark is None:
        return True
    if lineage is None:
        return False
    if lineage.token == mark.next_token:
        # A crash came between the file and the mark; another may come before the next token.
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
    """The highest head that is known of an epoch; 0 if none is."""
    with suppress(OSError, ValueError):
        data = read_bounded(folder / HIGH_WATER, _HIGH_WATER.size)
        if len(data) == _HIGH_WATER.size and _HIGH_WATER.unpack(data)[0] == epoch:
            return int(_HIGH_WATER.unpack(data)[1])
    return 0


def write_high_water(folder: Path, epoch: int, head: int) -> None:
    """Notes the head of an epoch, in place, as far as the file system lets it."""
    with suppress(OSError):
        descriptor = os.open(folder / HIGH_WATER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # In place and not synced: it is written behind every commit, and a sync for it would double the wear.
            os.pwrite(descriptor, _HIGH_WATER.pack(epoch, head), 0)
        finally:
            os.close(descriptor)


log = structlog.get_logger("edge_agent.store")

RESTORED, MISSING = "restored", "missing"
"""What happened to a buffer. RESTORED is also the reason of ids that are lost: given after the image was made."""
_NOTHING = (1, 0)
"""No id: from 1 to 0."""


class BufferIdentity:
    """Keeps the small files beside a buffer; see `edge_agent.store.epochs`. Used under the buffer's lock."""

    def __init__(self, path: Path, options: BufferOptions) -> None:
        self._path = path
        self._options = options
        self._lineage = read_lineage(path.parent)
        self._renewed_at_ns = 0

    def forget(self) -> int:
        """The file is another one than the lineage is of; the epoch that its own have to be above."""
        known, self._lineage = self._lineage, None
        return known.epoch if known and known.owner == self._options.owner else 0

    def begin_own_epoch(self, database: OpenDatabase) -> bool:
        """Begins an epoch in a buffer that is not the one that was left; whether it did. Raises StoreError.

        Then the file has to be opened anew.
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
        """Goes on in the buffer's epoch (""), or says what happened to it, and the first and last id it may cost."""
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
        # Are the small files younger, then ids up to the bound may have been given away.
        is_younger = same and (is_cut or lineage.token != mark.token)
        return RESTORED, (database.head + 1, lineage.head_limit) if is_younger else _NOTHING

    def _compare_new(self, database: OpenDatabase) -> tuple[str, tuple[int, int]]:
        """A new file beside a lineage of this owner replaces one that is gone."""
        lineage, options = self._lineage, self._options
        if not database.is_new or lineage is None:
            return "", _NOTHING
        if lineage.owner != options.owner:
            return "", _NOTHING
        return MISSING, (lineage.pruned_through + 1, lineage.head_limit)

    def raise_head_limit(self, database: OpenDatabase, records: int) -> None:
        """Before a commit: the lineage stays ahead of the head, so it says what a lost buffer may have held.

        Only a checkpoint writes to the main file. The first commit after one is under a new token, which is in the log
        alone: a main file whose log was lost has an older one.
        """
        known = self._lineage
        same = known and (known.ordinal, known.epoch) == (database.ordinal, database.epoch)
        is_ahead = known and same and database.head + records <= known.head_limit
        # No room for the small file is no reason to refuse a record; the next commit tries again.
        with suppress(OSError):
            if not is_ahead or self._path.stat().st_mtime_ns != self._renewed_at_ns:
                self.renew(database, records)

    def renew(self, database: OpenDatabase, records: int = 0) -> None:
        """Writes the lineage anew, under a new token. Raises StoreError, OSError."""
        written_ns = self._path.stat().st_mtime_ns
        lineage = Lineage(
            self._options.owner,
            database.ordinal,
            database.epoch,
            database.head + records + HEAD_STEP,
            database.pruned_through(),
            new_token(),
        )
        replace_lineage(database.writer, self._path.parent, lineage)
        self._lineage, self._renewed_at_ns = lineage, written_ns

    def on_committed(self, database: OpenDatabase) -> None:
        """Notes the head behind a commit."""
        write_high_water(self._path.parent, database.epoch, database.head)


def _begin_epoch(database: OpenDatabase, options: BufferOptions, reason: str, lost: tuple[int, int]) -> None:
    """Ends the present epoch and begins another, and declares the ids from lost[0] to lost[1] of the former.

    What waits keeps its ids and is sent. It may have been sent before, so no clock is corrected in it any more.
    """
    ordinal, head = database.ordinal, database.head
    epoch = options.epoch_for(max(database.epochs.values()))
    counted = {f"epochs_{reason}": 1, SENDING: -database.counters.get(SENDING, 0)}
    with transaction(database.writer):
        if lost[0] <= lost[1]:
            # Ids between this file's head and the first declared one were accounted for in a file that is gone.
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
    """Gives a new file the epoch that the lineage knows of: its buffer is gone. Another epoch has to begin."""
    with transaction(database.writer):
        database.writer.execute("DELETE FROM epochs")
        row = (lineage.ordinal, lineage.epoch, lineage.owner)
        database.writer.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", row)
    database.ordinal = lineage.ordinal
    database.epochs, database.heads = {lineage.ordinal: lineage.epoch}, {lineage.ordinal: 0}
