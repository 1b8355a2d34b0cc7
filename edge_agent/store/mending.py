"""Mending the stored records of a boot whose clock jumped, block by block, so that a crash in between does no harm.

A record that may have been sent keeps the time it was sent with: one name never has two contents. So this module
remembers on disk what may have been sent:

- `sending` (a tally) is 1 from the first connection of a run on. A run that finds it set takes all that is stored for
  sent: `sent_through` becomes the last id.
- within a run, the drain knows exactly what it sent; those blocks are marked (`sent`) when a mending begins.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog

from edge_agent.clock.jumps import Jump, Mending
from edge_agent.errors import StoreDamaged
from edge_agent.store.buffer import Buffer
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.life import SENDING, SENT_THROUGH
from edge_agent.store.settle import replace_batch, stored_batch
from telemetry import WireError

log = structlog.get_logger("edge_agent.store")

BLOCKS_AT_ONCE = 32


class Mender:
    """Mends after jumps. Used by the drain's thread only, so nothing is sent while it works."""

    def __init__(self, buffer: Buffer, mending: Mending) -> None:
        self._buffer = buffer
        self._mending = mending
        if buffer.tally(SENDING):
            self._set({SENDING: 0, SENT_THROUGH: buffer.last_id()})

    def connected(self) -> None:
        """From now on records may be sent. Raises StoreError."""
        if not self._buffer.tally(SENDING):
            self._set({SENDING: 1})

    def resume(self, boot: str, offset_us: int) -> tuple[int, int]:
        """Remembers a boot at its first sight, and ends a mending that a crash interrupted.

        Returns the wall clock's offset that the boot's records were stamped with, and how many batches were mended.
        """
        known = self._boot(boot)
        if known is None:
            row = (boot, offset_us)
            self._buffer.edit(
                lambda connection, _: _run(connection, "INSERT INTO boots VALUES (?, ?, 0, 0, 0, 0)", row)
            )
            return offset_us, 0
        stored_offset_us, delta_us, at_us, after, through = known
        if through == 0:
            return stored_offset_us, 0
        mended = self._run_through(Jump(boot, stored_offset_us, delta_us, at_us), after, through)
        return stored_offset_us + delta_us, mended

    def mend(self, jump: Jump, through: int, sent: Collection[int]) -> int:
        """Mends what is stored up to the id `through`, but for what may have been sent; the batches that changed."""
        after = self._buffer.tally(SENT_THROUGH)

        def begin(connection: Connection, _: Changes) -> None:
            for identity in sent:
                _run(connection, "UPDATE blocks SET sent = 1 WHERE id = ?", (identity,))
            _run(
                connection,
                "INSERT OR REPLACE INTO boots VALUES (?, ?, ?, ?, ?, ?)",
                (jump.boot, jump.offset_us, jump.delta_us, jump.at_us, after, through),
            )

        self._buffer.edit(begin)
        return self._run_through(jump, after, through)

    def _run_through(self, jump: Jump, after: int, through: int) -> int:
        mended = 0
        while after < through:
            after, changed = self._mend_some(jump, after, through)
            mended += changed
        return mended

    def _mend_some(self, jump: Jump, after: int, through: int) -> tuple[int, int]:
        reached, changed = through, 0

        def step(connection: Connection, changes: Changes) -> None:
            nonlocal reached, changed
            rows = connection.execute(
                "SELECT id, class, records, size, sent, boot FROM blocks"
                " WHERE id > ? AND id <= ? AND batch IS NOT NULL ORDER BY id LIMIT ?",
                (after, through, BLOCKS_AT_ONCE),
            ).fetchall()
            for identity, class_index, records, size, sent, boot in rows:
                if not sent and boot == jump.boot and records:
                    changed += self._mend_block(connection, identity, (class_index, records, size), jump, changes)
            reached = rows[-1][0] if len(rows) == BLOCKS_AT_ONCE else through
            if reached < through:
                _run(connection, "UPDATE boots SET after = ? WHERE boot = ?", (reached, jump.boot))
            else:
                offset_us = jump.offset_us + jump.delta_us
                _run(connection, "UPDATE boots SET offset_us = ?, through = 0 WHERE boot = ?", (offset_us, jump.boot))

        self._buffer.edit(step)
        return reached, changed

    def _mend_block(
        self, connection: Connection, identity: int, before: tuple[int, int, int], jump: Jump, changes: Changes
    ) -> int:
        try:
            mended = self._mending.mend(stored_batch(connection, identity), jump)
        except StoreDamaged:
            return 0
        if mended is None:
            return 0
        class_index, records, size = before
        try:
            new_records, new_size = replace_batch(connection, identity, mended)
        except WireError as error:
            # For instance too large with its new times. It stays as it is; the same step would fail at each start.
            log.error("a batch keeps the time of the clock that jumped", block=identity, error=str(error))
            changes.counted["unmended"] += records
            return 0
        changes.add(class_index, records - new_records, size - new_size)
        wall = "UPDATE blocks SET wall_ms = wall_ms + ? WHERE id = ?"
        _run(connection, wall, (jump.delta_us // 1000, identity))
        changes.counted["mended"] += new_records
        return 1

    def _boot(self, boot: str) -> Any:
        return self._buffer.query_one(
            "SELECT offset_us, delta_us, at_us, after, through FROM boots WHERE boot = ?", (boot,)
        )

    def _set(self, tallies: dict[str, int]) -> None:
        def change(_: Connection, changes: Changes) -> None:
            for name, value in tallies.items():
                changes.counted[name] = value - self._buffer.tally(name)

        self._buffer.edit(change)


def _run(connection: Connection, sql: str, parameters: tuple[Any, ...]) -> None:
    connection.execute(sql, parameters)
