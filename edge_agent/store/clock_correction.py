"""Corrects the stored records of a boot whose clock jumped, batch by batch and safe against crashes.

A record that may have been sent keeps its time: one record id never has two contents. So the disk remembers what may
have been sent:

- `sending` (a counter) is 1 from the first connection of a run on. A run that finds it set counts everything stored as
  sent: `sent_through` becomes the last id.
- Within a run, the drain knows what it sent; those batches are marked (`sent`) when a correction begins.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from edge_agent.clocks import ClockJump, CorrectionRules
from edge_agent.errors import StoreDamaged
from edge_agent.store.batch_rows import TransactionTotals, read_batch, replace_batch
from edge_agent.store.buffer import Buffer
from edge_agent.store.connection import Connection
from edge_agent.store.database import SENDING, SENT_THROUGH
from waybill.record import WireError

log = structlog.get_logger("edge_agent.store")

BATCHES_PER_STEP = 32


class ClockCorrector:
    """Used by the drain's thread only, so nothing is sent meanwhile."""

    def __init__(self, buffer: Buffer, rules: CorrectionRules) -> None:
        self._buffer = buffer
        self._rules = rules
        if buffer.counters.value(SENDING):
            # In one transaction: with the first alone, the next run would correct sent records.
            self._set({SENDING: 0, SENT_THROUGH: buffer.last_id()})

    def mark_sending(self) -> None:
        """Records may be sent from now on. Raises StoreError."""
        if not self._buffer.counters.value(SENDING):
            self._set({SENDING: 1})

    def resume(self, boot: str, offset_us: int) -> tuple[int, int]:
        """Stores a new boot, or finishes a correction that a crash interrupted.

        Returns the wall clock's offset with which the boot's records were stamped, and the number of corrected batches.
        """
        known = self._buffer.database.query_one(
            "SELECT offset_us, delta_us, at_us, after, through FROM boots WHERE boot = ?", (boot,)
        )
        if known is None:
            row = (boot, offset_us)
            sql = "INSERT INTO boots VALUES (?, ?, 0, 0, 0, 0)"
            self._buffer.edit(lambda connection, _: connection.execute(sql, row))
            return offset_us, 0
        stored_offset_us, delta_us, at_us, after, through = known
        if through == 0:
            return stored_offset_us, 0
        corrected = self._run_through(ClockJump(boot, stored_offset_us, delta_us, at_us), after, through)
        return stored_offset_us + delta_us, corrected

    def correct(self, jump: ClockJump, through: int, sent: Collection[int]) -> int:
        """Corrects what is stored up to the id `through`, except what may have been sent; returns the number of changed
        batches.
        """
        after = self._buffer.counters.value(SENT_THROUGH)

        def begin(connection: Connection, _: TransactionTotals) -> None:
            for identity in sent:
                connection.execute("UPDATE batches SET sent = 1 WHERE id = ?", (identity,))
            connection.execute(
                "INSERT OR REPLACE INTO boots VALUES (?, ?, ?, ?, ?, ?)",
                (jump.boot, jump.offset_us, jump.delta_us, jump.at_us, after, through),
            )

        # One transaction: a correction that continues after a crash must know which batches were sent.
        self._buffer.edit(begin)
        return self._run_through(jump, after, through)

    def _run_through(self, jump: ClockJump, after: int, through: int) -> int:
        corrected = 0
        while after < through:
            after, changed = self._correct_some(jump, after, through)
            corrected += changed
        return corrected

    def _correct_some(self, jump: ClockJump, after: int, through: int) -> tuple[int, int]:
        reached, changed = through, 0

        def step(connection: Connection, changes: TransactionTotals) -> None:
            nonlocal reached, changed
            rows = connection.execute(
                "SELECT id, class, records, size, sent, boot FROM batches"
                " WHERE id > ? AND id <= ? AND batch IS NOT NULL ORDER BY id LIMIT ?",
                (after, through, BATCHES_PER_STEP),
            ).fetchall()
            for identity, class_index, records, size, sent, boot in rows:
                if not sent and boot == jump.boot and records:
                    changed += self._correct_batch(connection, identity, (class_index, records, size), jump, changes)
            reached = rows[-1][0] if len(rows) == BATCHES_PER_STEP else through
            # In the step's own transaction: after a crash no batch is corrected twice.
            if reached < through:
                connection.execute("UPDATE boots SET after = ? WHERE boot = ?", (reached, jump.boot))
            else:
                offset_us = jump.offset_us + jump.delta_us
                connection.execute("UPDATE boots SET offset_us = ?, through = 0 WHERE boot = ?", (offset_us, jump.boot))

        self._buffer.edit(step)
        return reached, changed

    def _correct_batch(
        self,
        connection: Connection,
        identity: int,
        before: tuple[int, int, int],
        jump: ClockJump,
        changes: TransactionTotals,
    ) -> int:
        try:
            corrected = self._rules.correct(read_batch(connection, identity), jump)
        except StoreDamaged:
            # The drain rebuilds the buffer when it sends this batch.
            return 0
        if corrected is None:
            return 0
        class_index, records, size = before
        try:
            new_records, new_size = replace_batch(connection, identity, corrected)
        except WireError as error:
            # For instance too large with its new times. It stays unchanged, or the step would fail at each start.
            log.error("a batch keeps the time of the clock that jumped", batch=identity, error=str(error))
            changes.counts["uncorrected"] += records
            return 0
        changes.count_removed(class_index, records - new_records, size - new_size)
        # The commit was stamped by the same clock.
        wall = "UPDATE batches SET wall_ms = wall_ms + ? WHERE id = ?"
        connection.execute(wall, (jump.delta_us // 1000, identity))
        changes.counts["corrected"] += new_records
        return 1

    def _set(self, counters: dict[str, int]) -> None:
        def change(_: Connection, changes: TransactionTotals) -> None:
            for name, value in counters.items():
                changes.counts[name] = value - self._buffer.counters.value(name)

        self._buffer.edit(change)
