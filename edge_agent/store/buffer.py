"""The buffer: records go in under a name and are synced before `commit` returns; acknowledged names go out.

Threads: every method may be called from any thread. Reading does not wait for a commit that is being synced.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import structlog

from edge_agent.errors import StoreClosed, StoreDamaged, StoreError, StoreFailing, StoreForeign, StoreFull
from edge_agent.intake.redelivery import Arrival, Ring, pack_arrivals
from edge_agent.store.block import Block, Unnamed, block_id, first_of, ordinal_of
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection, mapped_errors, transaction
from edge_agent.store.evict import Owner
from edge_agent.store.gaps import unaccounted
from edge_agent.store.high_water import note_high_water, read_high_water
from edge_agent.store.isolate import isolate
from edge_agent.store.life import (
    BufferOptions,
    Depth,
    Life,
    adopt_lineage,
    begin_epoch,
    open_life,
    private_folder,
    stored_arrivals,
)
from edge_agent.store.lineage import (
    HEAD_STEP,
    Lineage,
    is_the_one_that_was_left,
    new_token,
    read_lineage,
    read_mark,
    replace_lineage,
)
from edge_agent.store.message_dead_letters import add_dead_letters
from edge_agent.store.packing import packed
from edge_agent.store.rebuild import finish_rebuild, forget_damaged, rebuild
from edge_agent.store.reserve import Reserve
from edge_agent.store.salvage import set_aside
from edge_agent.store.settle import settle_range
from telemetry import IntervalSet

log = structlog.get_logger("edge_agent.store")

Made = TypeVar("Made")

DATABASE = "buffer.db"
PAGE_BYTES = 4096
SPARE_BYTES = 64 << 10
"""Free pages that a commit may take for other things than what it stores."""
_BLOCK = "id, last, class, records, size, wall_ms"


class Buffer:
    """One device's store in one folder."""

    def __init__(self, folder: Path, options: BufferOptions) -> None:
        """Opens the buffer, making what is missing. Raises StoreError."""
        self._options = options
        self._path = folder / DATABASE
        self._lock = threading.RLock()
        self._acknowledged: dict[int, IntervalSet] = {}
        self._increases: Counter[str] = Counter()
        self._is_due = False
        self._is_closed = False
        self.generation = 0
        """Counts the times that the file was replaced: what was remembered of its blocks is void then."""
        private_folder(folder)
        self._lineage = read_lineage(folder)
        self._renewed_at_ns = 0
        self._reserve = Reserve(folder / "reserve", options.reserve_bytes)
        finish_rebuild(self._path)
        self._life = self._with_room(self._first_life)
        self._with_room(self._know_it_again)
        self.ring = Ring(options.ring_size, stored_arrivals(self._life.writer, options.ring_size))
        with suppress(OSError, StoreFull):
            self._renew_lineage(0)
        self._reserve.hold()

    @property
    def epoch(self) -> int:
        """The number of the buffer's present life."""
        return self._life.epochs[self._life.ordinal]

    @property
    def head(self) -> int:
        """The highest sequence number of the present epoch; 0 before the first record."""
        return self._life.heads[self._life.ordinal]

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def head_of(self, epoch: int) -> int:
        """The highest sequence number that an epoch committed, as far as is known."""
        return next((self._life.heads[o] for o, number in self._life.epochs.items() if number == epoch), 0)

    def depth(self) -> dict[int, Depth]:
        """What waits, by class index."""
        with self._lock:
            return {index: Depth(one.records, one.size) for index, one in self._life.depth.items()}

    def tally(self, name: str, increase: int = 0, *, lazily: bool = False) -> int:
        """A counter that outlives a restart; an increase is stored with the next transaction.

        `lazily`: it does not call for a transaction of its own; at most the last few seconds of counting are lost.
        """
        with self._lock:
            if increase:
                self._increases[name] += increase
                self._is_due = self._is_due or not lazily
            return self._life.tallies.get(name, 0) + self._increases[name]

    def tallies(self) -> dict[str, int]:
        """All counters."""
        with self._lock:
            return dict(Counter(self._life.tallies) + self._increases)

    def unaccounted(self) -> int:
        """How many names neither wait nor were acknowledged nor are declared lost: none, unless something is wrong."""
        with self._lock, mapped_errors():
            return unaccounted(self._life.writer, self.head, self._life.tallies)

    def commit(self, waiting: Sequence[Unnamed], wall_ms: int) -> list[Block]:
        """Names and stores records: blocks in order of class, in one synced transaction with the dead letters.

        Raises StoreError; then nothing of it is stored, except that after StoreFailing only `reopen` can tell.
        """
        try:
            return self._commit(waiting, wall_ms)
        except StoreFull:
            # What was acknowledged leaves the file first. Then the log alone needs room, and there is a reserve for it.
            with self._open():
                self.settle()
                if self.free_pages_bytes() < sum(len(one.payload) for one in waiting) + SPARE_BYTES:
                    raise
                self._make_room()
                return self._commit(waiting, wall_ms)

    def _commit(self, waiting: Sequence[Unnamed], wall_ms: int) -> list[Block]:
        with self._open():
            new = packed(waiting, self.owner_of(self.last_id()), self._life.ordinal, wall_ms)
            self._bound_head(len(waiting))
            came = [one.arrival for one in waiting if one.arrival.mid]
            with transaction(self._life.writer):
                changes = self._settle()
                changes.counted["unencodable"] += new.unencodable
                for place, block in enumerate(new.blocks):
                    # The first row remembers the arrivals of all, in the order in which they came.
                    arrivals = pack_arrivals(came) if place == 0 else None
                    self._life.writer.execute(
                        f"INSERT INTO blocks ({_BLOCK}, boot, arrivals, batch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                        (*_columns(block), waiting[0].boot, arrivals, block.data),
                    )
                add_dead_letters(self._life.writer, new.dead_letters, wall_ms, changes)
                self._store_tallies(changes)
            self._after_commit(new.blocks, came)
            self._after_settling(changes)
            return new.blocks

    def acknowledge(self, epoch: int, names: IntervalSet) -> None:
        """Names that are safe elsewhere. They leave the disk with the next commit or `settle`."""
        with self._lock:
            self._acknowledged[epoch] = self._acknowledged.get(epoch, IntervalSet()) | names

    def is_acknowledged(self, block: Block) -> bool:
        """Whether all of a block waits to be settled."""
        with self._lock:
            names = self._acknowledged.get(block.epoch)
            return names is not None and names.covers(IntervalSet([(block.first, block.last)]))

    def isolate(self, identities: Sequence[int], reason: str) -> list[Block]:
        """Halves refused blocks; those of one record are kept and not sent until `take_up`. Raises StoreError."""
        halves: list[int] = []
        self.edit(lambda connection, changes: halves.extend(isolate(connection, changes, identities, reason)))
        sql = f"SELECT {_BLOCK} FROM blocks WHERE id = ?"  # noqa: S608
        return [self._block(self.query_one(sql, (identity,))) for identity in halves]

    def take_up(self) -> None:
        """What was set aside waits to be sent like anything else. Raises StoreError."""

        def change(connection: Connection, _: Changes) -> None:
            connection.execute("DELETE FROM aside")

        if self.query_one("SELECT id FROM aside LIMIT 1", ()) is not None:
            self.edit(change)

    def settle(self) -> None:
        """Stores what was acknowledged and counted since the last transaction. Raises StoreError."""
        with self._open():
            if self._acknowledged or self._is_due:
                self.edit(lambda _connection, _changes: None)
            self._reserve.hold()

    def edit(self, change: Callable[[Connection, Changes], None]) -> None:
        """Runs a change of stored blocks in one synced transaction, after what was acknowledged. Raises StoreError."""
        with self._open():
            try:
                self._edit(change)
            except StoreFull:
                self._make_room()
                self._edit(change)

    def _make_room(self) -> None:
        """Gives the reserve to the file, which takes up its log, so that the log begins anew."""
        self._reserve.release()
        with suppress(sqlite3.Error):
            self._life.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _edit(self, change: Callable[[Connection, Changes], None]) -> None:
        with transaction(self._life.writer):
            changes = self._settle()
            change(self._life.writer, changes)
            self._store_tallies(changes)
        self._after_settling(changes)

    def owner_of(self, identity: int) -> Owner:
        """Whose a block is."""
        ordinal = ordinal_of(identity)
        return Owner(self._options.device, self._life.epochs[ordinal], self._life.heads[ordinal])

    def query_one(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        """The first row of a query, or None. Raises StoreError."""
        with mapped_errors():
            return self._life.reader.execute(sql, parameters).fetchone()

    def free_pages_bytes(self) -> int:
        """Space inside the file that is not used."""
        with mapped_errors():
            (pages,) = self._life.reader.execute("PRAGMA freelist_count").fetchone()
            return int(pages) * PAGE_BYTES

    def read_after(self, identity: int, class_index: int, limit: int) -> list[Block]:
        """The next blocks of a class that are to be sent, without their data, in the order of their names."""
        with mapped_errors():
            rows = self._life.reader.execute(
                f"SELECT {_BLOCK} FROM blocks WHERE id > ? AND class = ? AND batch IS NOT NULL"  # noqa: S608
                " AND id NOT IN (SELECT id FROM aside) ORDER BY id LIMIT ?",
                (identity, class_index, limit),
            ).fetchall()
            return [self._block(row) for row in rows]

    def load(self, identity: int) -> bytes | None:
        """The encoded batch of a block; None if it is gone."""
        with mapped_errors():
            row = self._life.reader.execute("SELECT batch FROM blocks WHERE id = ?", (identity,)).fetchone()
            return row[0] if row else None

    def last_id(self) -> int:
        """The highest id that a block can have now."""
        return block_id(self._life.ordinal, self.head)

    def reopen(self) -> None:
        """Opens the file anew after StoreFailing and makes sure that what it holds is synced. Raises StoreError.

        A commit whose sync failed may be in the log or not, and the system may have forgotten to write it: what is in
        the log is moved to the main file, which syncs it again.
        """
        with self._open():
            if not self._path.exists():
                raise StoreFailing(f"{self._path} is gone")  # an empty one in its place would be taken for it
            self._life.close()
            self._life = open_life(self._path, self._options)
            with mapped_errors():
                self._life.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self.ring = Ring(self._options.ring_size, stored_arrivals(self._life.writer, self._options.ring_size))

    def heal(self, generation: int) -> None:
        """After StoreDamaged: a new file with what can be read, a new epoch, the rest declared. Raises StoreError.

        `generation`: the one in which the damage was met; if the file was replaced since, there is nothing to do.
        """
        with self._open():
            if generation != self.generation:
                return
            self._life.close()
            try:
                self._with_room(self._rebuild)
            except StoreError:
                with suppress(StoreError):
                    self._life = open_life(self._path, self._options)  # it is as it was
                raise
            self._life = open_life(self._path, self._options)
            self._acknowledged.clear()
            self.ring = Ring(self._options.ring_size, stored_arrivals(self._life.writer, self._options.ring_size))
            self.generation += 1
            with suppress(OSError, StoreFull):
                self._renew_lineage(0)

    def close(self) -> None:
        """Stores what was acknowledged, if the medium lets it, and gives the file back, for good.

        Whatever thread uses the buffer afterwards gets StoreClosed: another may have the file by then.
        """
        with self._lock:
            if self._is_closed:
                return
            with suppress(StoreError, OSError):
                self.settle()
                self._renew_lineage(0)
            with suppress(sqlite3.Error):
                self._life.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._is_closed = True
            self._life.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """The lock on a buffer that is open. Raises StoreClosed."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self._path} was closed")
            yield

    def forget_damaged(self) -> bool:
        """Deletes files that were rebuilt: what can be read of them was taken over. Whether there were any."""
        with suppress(OSError):
            if number := forget_damaged(self._path, keep=0):
                log.warning("files that were rebuilt are deleted for their space", files=number)
                return True
        return False

    def _with_room(self, action: Callable[[], Made]) -> Made:
        """Where there is no space it is done again with what the reserve and files that were rebuilt have."""
        try:
            return action()
        except StoreFull as error:
            log.warning("the reserve is given up", error=str(error))
            self._reserve.release()
            self.forget_damaged()
            return action()

    def _rebuild(self) -> None:
        options = self._options
        found = rebuild(self._path, options.device, options.epoch_for, options.connect)
        lost = sum(names.count for names in found.lost.values())
        log.error("the buffer was rebuilt", batches=found.blocks, lost=lost)

    def _first_life(self) -> Life:
        try:
            return open_life(self._path, self._options)
        except StoreDamaged as error:
            log.error("the buffer is damaged", error=str(error))
            self._rebuild()
        except StoreForeign as error:
            log.error("the buffer is another device's", error=str(error), kept=set_aside(self._path, "foreign").name)
            self._increases["foreign_set_aside"] += 1
        known, self._lineage = self._lineage, None
        least = known.epoch if known and known.device == self._options.device else 0
        return open_life(self._path, self._options, least)

    def _know_it_again(self) -> None:
        """Begins a new epoch in a buffer that is not the one that was left. Raises StoreError."""
        lineage, life, options = self._lineage, self._life, self._options
        mark = read_mark(life.writer)
        if mark is not None:
            is_cut = read_high_water(self._path.parent, self.epoch) > self.head
            if is_the_one_that_was_left(life.writer, lineage, self._path.parent, options.machine) and not is_cut:
                return
            reason, lost = "moved", (1, 0)
            if lineage is None or lineage.machine == options.machine:
                reason = "restored"
            if lineage and reason == "restored" and (is_cut or lineage.token != mark.token):
                # The small files are younger: ids up to the bound may have been given away.
                same = (lineage.device, lineage.epoch) == (options.device, self.epoch)
                lost = (self.head + 1, lineage.bound) if same else lost
        elif life.is_new and lineage and (lineage.device, lineage.machine) == (options.device, options.machine):
            adopt_lineage(life, lineage, options)
            reason, lost = "missing", (lineage.settled + 1, lineage.bound)
        else:
            return
        log.error("the buffer is not the one that was left: a new epoch begins", reason=reason, former=self.epoch)
        begin_epoch(life, options, reason, lost)
        life.close()
        self._life = open_life(self._path, options)

    def _bound_head(self, records: int) -> None:
        """Keeps the small file beside the buffer ahead of the head: it says what a lost buffer may have held.

        Only a checkpoint writes to the main file. The first commit after one is under a new token, which is in the log
        alone: a main file whose log was lost has an older one.
        """
        known = self._lineage
        same = known and (known.ordinal, known.epoch) == (self._life.ordinal, self.epoch)
        is_ahead = known and same and self.head + records <= known.bound
        with suppress(OSError):
            if not is_ahead or self._path.stat().st_mtime_ns != self._renewed_at_ns:
                self._renew_lineage(records)

    def _renew_lineage(self, records: int) -> None:
        """Writes the small file anew, under a new token. Raises StoreError, OSError."""
        written_ns = self._path.stat().st_mtime_ns
        lineage = Lineage(
            self._options.device,
            self._life.ordinal,
            self.epoch,
            self.head + records + HEAD_STEP,
            self._settled_through(),
            self._options.machine,
            new_token(),
        )
        replace_lineage(self._life.writer, self._path.parent, lineage)
        self._lineage, self._renewed_at_ns = lineage, written_ns

    def _settled_through(self) -> int:
        """Names of the present epoch up to this one wait no more."""
        row = self.query_one(
            "SELECT min(id) FROM blocks WHERE id > ? AND batch IS NOT NULL", (block_id(self._life.ordinal, 0),)
        )
        return first_of(row[0]) - 1 if row[0] is not None else self.head

    def _after_commit(self, blocks: Sequence[Block], came: Sequence[Arrival]) -> None:
        for block in blocks:
            assert block.first == self.head + 1, "names are given without a hole"
            self._life.heads[self._life.ordinal] = block.last
            depth = self._life.depth.setdefault(block.class_index, Depth())
            depth.records += block.records
            depth.size += block.size
        self.ring.add(came)
        note_high_water(self._path.parent, self.epoch, self.head)

    def _settle(self) -> Changes:
        changes = Changes()
        ordinals = {number: ordinal for ordinal, number in self._life.epochs.items()}
        for epoch, names in self._acknowledged.items():
            for first, last in names.ranges if epoch in ordinals else ():
                settle_range(self._life.writer, ordinals[epoch], first, last, changes)
        changes.outlived = list(takewhile(self._is_outlived, self._life.hollow))
        for identity, _ in changes.outlived:
            self._life.writer.execute("DELETE FROM blocks WHERE id = ? AND batch IS NULL", (identity,))
        changes.counted["acknowledged"] += changes.acknowledged
        changes.counted.update(self._increases)
        return changes

    def _store_tallies(self, changes: Changes) -> None:
        for name, increase in changes.counted.items():
            if increase:
                value = self._life.tallies.get(name, 0) + increase
                self._life.writer.execute("INSERT OR REPLACE INTO tallies VALUES (?, ?)", (name, value))

    def _is_outlived(self, hollow: tuple[int, int]) -> bool:
        """Whether the messages of a hollow row can be delivered again no more."""
        identity, last = hollow
        if ordinal_of(identity) < self._life.ordinal:
            return self.head >= self._options.ring_size
        return last <= self.head - self._options.ring_size

    def _after_settling(self, changes: Changes) -> None:
        for _ in changes.outlived:
            self._life.hollow.popleft()
        self._life.hollow.extend(changes.hollow)
        for index, (records, size) in changes.gone.items():
            depth = self._life.depth.setdefault(index, Depth())
            depth.records -= records
            depth.size -= size
            assert depth.records >= 0, "more was taken out than waited"
        for name, increase in changes.counted.items():
            self._life.tallies[name] = self._life.tallies.get(name, 0) + increase
        self._increases.clear()
        self._is_due = False
        self._acknowledged.clear()

    def _block(self, row: tuple[int, int, int, int, int, int]) -> Block:
        identity, last, class_index, records, size, wall_ms = row
        epoch = self._life.epochs[ordinal_of(identity)]
        return Block(identity, epoch, last, class_index, records, size, wall_ms)


def _columns(block: Block) -> tuple[int, ...]:
    return (block.id, block.last, block.class_index, block.records, block.size, block.wall_ms)
