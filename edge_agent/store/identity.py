"""Whether a buffer is the one that was left, and the beginning of a new epoch in one that is not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import structlog

from edge_agent.store.batch_rows import batch_row_id, insert_tombstones
from edge_agent.store.database import SENDING, SENT_THROUGH, UNCOUNTED, BufferOptions, OpenDatabase, transaction
from edge_agent.store.lineage import (
    HEAD_STEP,
    Lineage,
    new_token,
    read_high_water,
    read_lineage,
    read_mark,
    replace_lineage,
    resume_lineage,
    write_high_water,
)
from waybill.record import Batch, IntervalSet

log = structlog.get_logger("edge_agent.store")

RESTORED, MOVED, MISSING = "restored", "moved", "missing"
"""What happened to a buffer. RESTORED is also the reason of ids that are lost: given after the image was made."""
_NOTHING = (1, 0)
"""No id: from 1 to 0."""


class BufferIdentity:
    """Keeps the small files beside a buffer; see `edge_agent.store.lineage`. Used under the buffer's lock."""

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
        log.error("the buffer is not the one that was left: a new epoch begins", reason=reason, former=database.epoch)
        _begin_epoch(database, self._options, reason, lost)
        return True

    def _try_resume(self, database: OpenDatabase) -> tuple[str, tuple[int, int]]:
        """Goes on in the buffer's epoch (""), or says what happened to it, and the first and last id it may cost."""
        lineage, options, folder = self._lineage, self._options, self._path.parent
        mark = read_mark(database.writer)
        if mark is None:
            return self._compare_new(database)
        is_cut = read_high_water(folder, database.epoch) > database.head
        if resume_lineage(database.writer, lineage, folder, options.machine) and not is_cut:
            return "", _NOTHING
        if lineage is None:
            return RESTORED, _NOTHING
        if lineage.machine != options.machine:
            return MOVED, _NOTHING
        same = (lineage.owner, lineage.epoch) == (options.owner, database.epoch)
        # Are the small files younger, then ids up to the bound may have been given away.
        is_younger = same and (is_cut or lineage.token != mark.token)
        return RESTORED, (database.head + 1, lineage.head_limit) if is_younger else _NOTHING

    def _compare_new(self, database: OpenDatabase) -> tuple[str, tuple[int, int]]:
        """A new file beside a lineage of this owner and machine is in the place of one that is gone."""
        lineage, options = self._lineage, self._options
        if not database.is_new or lineage is None:
            return "", _NOTHING
        if (lineage.owner, lineage.machine) != (options.owner, options.machine):
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
            self._options.machine,
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
