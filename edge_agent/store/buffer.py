"""The buffer: records get their ids and are synced before `commit` returns; acknowledged records go out.

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
from edge_agent.intake.redelivery import Arrival, RecentArrivals, pack_arrivals
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection, mapped_errors, transaction
from edge_agent.store.database import (
    BufferOptions,
    Depth,
    OpenDatabase,
    adopt_lineage,
    begin_epoch,
    open_database,
    private_folder,
    stored_arrivals,
)
from edge_agent.store.eviction import BatchOwner
from edge_agent.store.gaps import count_missing
from edge_agent.store.high_water import read_high_water, write_high_water
from edge_agent.store.lineage import (
    HEAD_STEP,
    Lineage,
    new_token,
    read_lineage,
    read_mark,
    replace_lineage,
    resume_lineage,
)
from edge_agent.store.message_dead_letters import add_dead_letters
from edge_agent.store.packing import packed
from edge_agent.store.prune import prune_range
from edge_agent.store.rebuild import delete_damaged, finish_rebuild, rebuild
from edge_agent.store.reserve import Reserve
from edge_agent.store.salvage import archive_database
from edge_agent.store.split import split_or_dead_letter
from edge_agent.store.stored_batch import PendingRecord, StoredBatch, batch_row_id, first_of, ordinal_of
from telemetry import IntervalSet

log = structlog.get_logger("edge_agent.store")

Made = TypeVar("Made")

DATABASE = "buffer.db"
PAGE_BYTES = 4096
SPARE_BYTES = 64 << 10
"""Free pages that a commit may take for other things than what it stores."""
_COLUMNS = "id, last, class, records, size, wall_ms"


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
        """Counts the times that the file was replaced: what was remembered of its batches is void then."""
        private_folder(folder)
        self._lineage = read_lineage(folder)
        self._renewed_at_ns = 0
        self._reserve = Reserve(folder / "reserve", options.reserve_bytes)
        finish_rebuild(self._path)
        self._database = self._with_room(self._open_first)
        self._with_room(self._verify_lineage)
        self.recent = RecentArrivals(options.recent_size, stored_arrivals(self._database.writer, options.recent_size))
        with suppress(OSError, StoreFull):
            self._renew_lineage(0)
        self._reserve.hold()

    @property
    def epoch(self) -> int:
        """The number of the buffer's present life."""
        return self._database.epochs[self._database.ordinal]

    @property
    def head(self) -> int:
        """The highest sequence number of the present epoch; 0 before the first record."""
        return self._database.heads[self._database.ordinal]

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def head_of(self, epoch: int) -> int:
        """The highest sequence number that an epoch committed, as far as is known."""
        return next((self._database.heads[o] for o, number in self._database.epochs.items() if number == epoch), 0)

    def depth(self) -> dict[int, Depth]:
        """What waits, by class index."""
        with self._lock:
            return {index: Depth(one.records, one.size) for index, one in self._database.depth.items()}

    def counter(self, name: str) -> int:
        """A counter that outlives a restart, with the increases that are not stored yet."""
        with self._lock:
            return self._database.counters.get(name, 0) + self._increases[name]

    def count(self, name: str, increase: int, *, lazily: bool = False) -> None:
        """Increases a counter; it is stored with the next transaction.

        `lazily`: it does not call for a transaction of its own; at most the last few seconds of counting are lost.
        """
        with self._lock:
            if increase:
                self._increases[name] += increase
                self._is_due = self._is_due or not lazily

    def counters(self) -> dict[str, int]:
        """All counters."""
        with self._lock:
            return dict(Counter(self._database.counters) + self._increases)

    def count_missing(self) -> int:
        """How many record ids are neither waiting nor acknowledged nor declared lost; 0 unless something is wrong."""
        with self._lock, mapped_errors():
            return count_missing(self._database.writer, self.head, self._database.counters)

    def commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        """Gives records their ids and stores them, in order of class, in one synced transaction with the dead letters.

        Raises StoreError; then nothing of it is stored, except that after StoreFailing only `reopen` can tell.
        """
        try:
            return self._commit(waiting, wall_ms)
        except StoreFull:
            # What was acknowledged leaves the file first. Then the log alone needs room, and there is a reserve for it.
            with self._open():
                self.prune_acknowledged()
                if self.free_pages_bytes() < sum(len(one.payload) for one in waiting) + SPARE_BYTES:
                    raise
                self._make_room()
                return self._commit(waiting, wall_ms)

    def _commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        with self._open():
            new = packed(waiting, self.owner_of(self.last_id()), self._database.ordinal, wall_ms)
            self._raise_head_limit(len(waiting))
            came = [one.arrival for one in waiting if one.arrival.mid]
            with transaction(self._database.writer):
                changes = self._prune()
                changes.counts["unencodable"] += new.unencodable
                for place, batch in enumerate(new.batches):
                    # The first row remembers the arrivals of all, in the order in which they came.
                    arrivals = pack_arrivals(came) if place == 0 else None
                    self._database.writer.execute(
                        f"INSERT INTO batches ({_COLUMNS}, boot, arrivals, batch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                        (*_column_values(batch), waiting[0].boot, arrivals, batch.data),
                    )
                add_dead_letters(self._database.writer, new.dead_letters, wall_ms, changes)
                self._store_counters(changes)
            self._after_commit(new.batches, came)
            self._after_pruning(changes)
            return new.batches

    def acknowledge(self, epoch: int, seqs: IntervalSet) -> None:
        """Record ids that are safe elsewhere. They leave the disk with the next commit or `prune_acknowledged`."""
        with self._lock:
            self._acknowledged[epoch] = self._acknowledged.get(epoch, IntervalSet()) | seqs

    def is_acknowledged(self, batch: StoredBatch) -> bool:
        """Whether all of a batch is acknowledged and waits to be pruned."""
        with self._lock:
            seqs = self._acknowledged.get(batch.epoch)
            return seqs is not None and seqs.covers(IntervalSet([(batch.first, batch.last)]))

    def split_or_dead_letter(self, identities: Sequence[int], reason: str) -> list[StoredBatch]:
        """Halves refused batches, and dead-letters those of one record; the halves. Raises StoreError."""
        halves: list[int] = []
        self.edit(
            lambda connection, changes: halves.extend(split_or_dead_letter(connection, changes, identities, reason))
        )
        sql = f"SELECT {_COLUMNS} FROM batches WHERE id = ?"  # noqa: S608
        return [self._stored_batch(self.query_one(sql, (identity,))) for identity in halves]

    def requeue_dead_letters(self) -> None:
        """Dead letters wait to be sent like anything else. Raises StoreError."""

        def change(connection: Connection, _: Changes) -> None:
            connection.execute("DELETE FROM dead_letter_batches")

        if self.query_one("SELECT id FROM dead_letter_batches LIMIT 1", ()) is not None:
            self.edit(change)

    def prune_acknowledged(self) -> None:
        """Stores what was acknowledged and counted since the last transaction. Raises StoreError."""
        with self._open():
            if self._acknowledged or self._is_due:
                self.edit(lambda _connection, _changes: None)
            self._reserve.hold()

    def edit(self, change: Callable[[Connection, Changes], None]) -> None:
        """Runs a change of stored batches in one synced transaction, after what was acknowledged. Raises StoreError."""
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
            self._database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _edit(self, change: Callable[[Connection, Changes], None]) -> None:
        with transaction(self._database.writer):
            changes = self._prune()
            change(self._database.writer, changes)
            self._store_counters(changes)
        self._after_pruning(changes)

    def owner_of(self, identity: int) -> BatchOwner:
        """Whose a batch is."""
        ordinal = ordinal_of(identity)
        return BatchOwner(self._options.device, self._database.epochs[ordinal], self._database.heads[ordinal])

    def query_one(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        """The first row of a query, or None. Raises StoreError."""
        with mapped_errors():
            return self._database.reader.execute(sql, parameters).fetchone()

    def free_pages_bytes(self) -> int:
        """Space inside the file that is not used."""
        with mapped_errors():
            (pages,) = self._database.reader.execute("PRAGMA freelist_count").fetchone()
            return int(pages) * PAGE_BYTES

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        """The next batches of a class that are to be sent, without their data, in the order of their ids."""
        with mapped_errors():
            rows = self._database.reader.execute(
                f"SELECT {_COLUMNS} FROM batches WHERE id > ? AND class = ? AND batch IS NOT NULL"  # noqa: S608
                " AND id NOT IN (SELECT id FROM dead_letter_batches) ORDER BY id LIMIT ?",
                (identity, class_index, limit),
            ).fetchall()
            return [self._stored_batch(row) for row in rows]

    def load(self, identity: int) -> bytes | None:
        """The encoded form of a batch; None if it is gone."""
        with mapped_errors():
            row = self._database.reader.execute("SELECT batch FROM batches WHERE id = ?", (identity,)).fetchone()
            return row[0] if row else None

    def last_id(self) -> int:
        """The highest id that a batch can have now."""
        return batch_row_id(self._database.ordinal, self.head)

    def reopen(self) -> None:
        """Opens the file anew after StoreFailing and makes sure that what it holds is synced. Raises StoreError.

        A commit whose sync failed may be in the log or not, and the system may have forgotten to write it: what is in
        the log is moved to the main file, which syncs it again.
        """
        with self._open():
            if not self._path.exists():
                raise StoreFailing(f"{self._path} is gone")  # an empty one in its place would be taken for it
            self._database.close()
            self._database = open_database(self._path, self._options)
            with mapped_errors():
                self._database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self.recent = RecentArrivals(
                self._options.recent_size, stored_arrivals(self._database.writer, self._options.recent_size)
            )

    def repair(self, generation: int) -> None:
        """After StoreDamaged: a new file with what can be read, a new epoch, the rest declared. Raises StoreError.

        `generation`: the one in which the damage was met; if the file was replaced since, there is nothing to do.
        """
        with self._open():
            if generation != self.generation:
                return
            self._database.close()
            try:
                self._with_room(self._rebuild)
            except StoreError:
                with suppress(StoreError):
                    self._database = open_database(self._path, self._options)  # it is as it was
                raise
            self._database = open_database(self._path, self._options)
            self._acknowledged.clear()
            self.recent = RecentArrivals(
                self._options.recent_size, stored_arrivals(self._database.writer, self._options.recent_size)
            )
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
                self.prune_acknowledged()
                self._renew_lineage(0)
            with suppress(sqlite3.Error):
                self._database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._is_closed = True
            self._database.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """The lock on a buffer that is open. Raises StoreClosed."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self._path} was closed")
            yield

    def delete_damaged(self) -> bool:
        """Deletes files that were rebuilt: what can be read of them was taken over. Whether there were any."""
        with suppress(OSError):
            if number := delete_damaged(self._path, keep=0):
                log.warning("files that were rebuilt are deleted for their space", files=number)
                return True
        return False

    def _with_room(self, action: Callable[[], Made]) -> Made:
        """Where there is no space it is done again with what the reserve and files that were rebuilt have."""
        try:
            return action()
        except StoreFull as error:
            log.warning("the reserve is released", error=str(error))
            self._reserve.release()
            self.delete_damaged()
            return action()

    def _rebuild(self) -> None:
        options = self._options
        found = rebuild(self._path, options.device, options.epoch_for, options.connect)
        lost = sum(seqs.count for seqs in found.lost_seqs.values())
        log.error("the buffer was rebuilt", batches=found.batches, lost=lost)

    def _open_first(self) -> OpenDatabase:
        try:
            return open_database(self._path, self._options)
        except StoreDamaged as error:
            log.error("the buffer is damaged", error=str(error))
            self._rebuild()
        except StoreForeign as error:
            log.error(
                "the buffer is another device's", error=str(error), kept=archive_database(self._path, "foreign").name
            )
            self._increases["foreign_archived"] += 1
        known, self._lineage = self._lineage, None
        least = known.epoch if known and known.device == self._options.device else 0
        return open_database(self._path, self._options, least)

    def _verify_lineage(self) -> None:
        """Begins a new epoch in a buffer that is not the one that was left. Raises StoreError."""
        lineage, database, options = self._lineage, self._database, self._options
        mark = read_mark(database.writer)
        if mark is not None:
            is_cut = read_high_water(self._path.parent, self.epoch) > self.head
            if resume_lineage(database.writer, lineage, self._path.parent, options.machine) and not is_cut:
                return
            reason, lost = "moved", (1, 0)
            if lineage is None or lineage.machine == options.machine:
                reason = "restored"
            if lineage and reason == "restored" and (is_cut or lineage.token != mark.token):
                # The small files are younger: ids up to the bound may have been given away.
                same = (lineage.device, lineage.epoch) == (options.device, self.epoch)
                lost = (self.head + 1, lineage.head_limit) if same else lost
        elif database.is_new and lineage and (lineage.device, lineage.machine) == (options.device, options.machine):
            adopt_lineage(database, lineage, options)
            reason, lost = "missing", (lineage.pruned_through + 1, lineage.head_limit)
        else:
            return
        log.error("the buffer is not the one that was left: a new epoch begins", reason=reason, former=self.epoch)
        begin_epoch(database, options, reason, lost)
        database.close()
        self._database = open_database(self._path, options)

    def _raise_head_limit(self, records: int) -> None:
        """Keeps the small file beside the buffer ahead of the head: it says what a lost buffer may have held.

        Only a checkpoint writes to the main file. The first commit after one is under a new token, which is in the log
        alone: a main file whose log was lost has an older one.
        """
        known = self._lineage
        same = known and (known.ordinal, known.epoch) == (self._database.ordinal, self.epoch)
        is_ahead = known and same and self.head + records <= known.head_limit
        with suppress(OSError):
            if not is_ahead or self._path.stat().st_mtime_ns != self._renewed_at_ns:
                self._renew_lineage(records)

    def _renew_lineage(self, records: int) -> None:
        """Writes the small file anew, under a new token. Raises StoreError, OSError."""
        written_ns = self._path.stat().st_mtime_ns
        lineage = Lineage(
            self._options.device,
            self._database.ordinal,
            self.epoch,
            self.head + records + HEAD_STEP,
            self._pruned_through(),
            self._options.machine,
            new_token(),
        )
        replace_lineage(self._database.writer, self._path.parent, lineage)
        self._lineage, self._renewed_at_ns = lineage, written_ns

    def _pruned_through(self) -> int:
        """Records of the present epoch up to this one wait no more."""
        row = self.query_one(
            "SELECT min(id) FROM batches WHERE id > ? AND batch IS NOT NULL", (batch_row_id(self._database.ordinal, 0),)
        )
        return first_of(row[0]) - 1 if row[0] is not None else self.head

    def _after_commit(self, batches: Sequence[StoredBatch], came: Sequence[Arrival]) -> None:
        for batch in batches:
            assert batch.first == self.head + 1, "record ids are given without a hole"
            self._database.heads[self._database.ordinal] = batch.last
            depth = self._database.depth.setdefault(batch.class_index, Depth())
            depth.records += batch.records
            depth.size += batch.size
        self.recent.add(came)
        write_high_water(self._path.parent, self.epoch, self.head)

    def _prune(self) -> Changes:
        changes = Changes()
        ordinals = {number: ordinal for ordinal, number in self._database.epochs.items()}
        for epoch, seqs in self._acknowledged.items():
            for first, last in seqs.ranges if epoch in ordinals else ():
                prune_range(self._database.writer, ordinals[epoch], first, last, changes)
        changes.expired = list(takewhile(self._is_expired, self._database.acked_rows))
        for identity, _ in changes.expired:
            self._database.writer.execute("DELETE FROM batches WHERE id = ? AND batch IS NULL", (identity,))
        changes.counts["acknowledged"] += changes.acknowledged
        changes.counts.update(self._increases)
        return changes

    def _store_counters(self, changes: Changes) -> None:
        for name, increase in changes.counts.items():
            if increase:
                value = self._database.counters.get(name, 0) + increase
                self._database.writer.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))

    def _is_expired(self, row: tuple[int, int]) -> bool:
        """Whether the messages of an acknowledged row can be delivered again no more."""
        identity, last = row
        if ordinal_of(identity) < self._database.ordinal:
            return self.head >= self._options.recent_size
        return last <= self.head - self._options.recent_size

    def _after_pruning(self, changes: Changes) -> None:
        for _ in changes.expired:
            self._database.acked_rows.popleft()
        self._database.acked_rows.extend(changes.acked_rows)
        for index, (records, size) in changes.removed.items():
            depth = self._database.depth.setdefault(index, Depth())
            depth.records -= records
            depth.size -= size
            assert depth.records >= 0, "more was taken out than waited"
        for name, increase in changes.counts.items():
            self._database.counters[name] = self._database.counters.get(name, 0) + increase
        self._increases.clear()
        self._is_due = False
        self._acknowledged.clear()

    def _stored_batch(self, row: tuple[int, int, int, int, int, int]) -> StoredBatch:
        identity, last, class_index, records, size, wall_ms = row
        epoch = self._database.epochs[ordinal_of(identity)]
        return StoredBatch(identity, epoch, last, class_index, records, size, wall_ms)


def _column_values(batch: StoredBatch) -> tuple[int, ...]:
    return (batch.id, batch.last, batch.class_index, batch.records, batch.size, batch.wall_ms)
