"""The buffer: records get their ids and are synced before `commit` returns; acknowledged records go out.

Threads: every method may be called from any thread. Reading does not wait for a commit that is being synced.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog

from edge_agent.errors import StoreClosed, StoreDamaged, StoreError, StoreFailing, StoreForeign, StoreFull
from edge_agent.store.batch_rows import (
    BatchOwner,
    PendingRecord,
    RecentArrivals,
    StoredBatch,
    TransactionTotals,
    delete_expired,
    insert_batch,
    pack_arrivals,
    packed,
    prune_range,
    split_or_dead_letter,
    stored_arrivals,
)
from edge_agent.store.connection import DATABASE, Connection
from edge_agent.store.database import (
    BufferCounters,
    BufferOptions,
    Depth,
    OpenDatabase,
    mapped_errors,
    open_database,
    transaction,
)
from edge_agent.store.epochs import BufferIdentity
from edge_agent.store.rebuild import (
    FOREIGN,
    archive_database,
    delete_damaged,
    finish_archiving,
    finish_rebuild,
    rebuild,
)
from waybill.record import IntervalSet

# The buffer's file: opened in any state, rebuilt, with reserved space.

log = structlog.get_logger("edge_agent.store")

Made = TypeVar("Made")

RESERVE_BYTES = 8 << 20
"""What the write-ahead log takes at most between two checkpoints, twice."""


class BufferFile:
    """Opens and rebuilds the file; used under the buffer's lock. `counters`: count what happened to it."""

    def __init__(self, folder: Path, options: BufferOptions, counters: BufferCounters) -> None:
        """Makes the folder. Raises OSError."""
        _private_folder(folder)
        self.path = folder / DATABASE
        self.identity = BufferIdentity(self.path, options)
        self.reserve = Reserve(folder / "reserve", options.reserve_bytes)
        self._options = options
        self._counters = counters

    def open(self) -> OpenDatabase:
        """Opens the file at the start, making what is missing. Raises StoreError, OSError.

        A damaged one is rebuilt, another owner's is kept apart; one that is not the buffer that was left gets an epoch.
        """
        # First: SQLite would make an empty file in the place that a rebuilt one waits for, or open one without its log.
        finish_archiving(self.path)
        finish_rebuild(self.path)
        database = self._with_room(self._open_any)
        if self._with_room(lambda: self.identity.begin_own_epoch(database)):
            # What is in memory is of the former epoch.
            database.close()
            database = self._with_room(self.open_again)
        return database

    def open_again(self) -> OpenDatabase:
        """Opens a file that was open before. Raises StoreError."""
        return open_database(self.path, self._options)

    def rebuild(self) -> None:
        """Puts a new file in the place of a damaged one, which is closed. Raises StoreError."""
        self._with_room(self._rebuild)

    def make_room(self, writer: Connection) -> None:
        """Gives the reserve to the file, which takes up its log, so that the log begins anew."""
        self.reserve.release()
        with suppress(sqlite3.Error):
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def delete_damaged(self) -> bool:
        """Deletes files that were rebuilt: what can be read of them was taken over. Whether there were any."""
        with suppress(OSError):
            if number := delete_damaged(self.path, keep=0):
                log.warning("files that were rebuilt are deleted for their space", files=number)
                return True
        return False

    def _with_room(self, action: Callable[[], Made]) -> Made:
        """Where there is no space it is done again with what the reserve and files that were rebuilt have."""
        try:
            return action()
        except StoreFull as error:
            log.warning("the reserve is released", error=str(error))
            self.reserve.release()
            self.delete_damaged()
            return action()

    def _open_any(self) -> OpenDatabase:
        try:
            return self.open_again()
        except StoreDamaged as error:
            log.error("the buffer is damaged", error=str(error))
            self._rebuild()
        except StoreForeign as error:
            self._keep_foreign(error)
        # What the small files know is of the former file, and says nothing against the one in its place.
        return open_database(self.path, self._options, self.identity.forget())

    def _rebuild(self) -> None:
        try:
            salvage = rebuild(self.path, self._options)
        except StoreForeign as error:
            self._keep_foreign(error)
            return
        lost = sum(seqs.count for seqs in salvage.lost_seqs.values())
        log.error("the buffer was rebuilt", batches=salvage.batches, lost=lost)

    def _keep_foreign(self, error: StoreForeign) -> None:
        kept = archive_database(self.path, FOREIGN)
        log.error("the buffer is another device's: nothing of it is sent", error=str(error), kept=kept.name)
        self._counters.add("foreign_archived", 1, lazily=True)


class Reserve:
    """A file of `size` allocated bytes, deleted when the space is needed. 0: none.

    On a full file system giving records back needs a little room itself.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Takes the space again, if it was given up or somebody deleted the file, and if there is so much."""
        if self._size == 0 or self._path.exists():
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Allocated, not only made long: a sparse file keeps no space.
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError:
                # A file of fewer bytes would pass for the reserve from now on.
                self._path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Gives the space to whoever comes first."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _private_folder(folder: Path) -> None:
    """Makes the folder, for its owner alone: what a vehicle did is nobody else's. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkdir leaves a folder that is there as it is.
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


SPARE_BYTES = 64 << 10
"""Free pages that a commit may take for other things than what it stores."""


class Buffer:
    """One device's store in one folder."""

    def __init__(self, folder: Path, options: BufferOptions) -> None:
        """Opens the buffer, making what is missing. Raises StoreError."""
        self._options = options
        self._lock = threading.RLock()
        self._acked: defaultdict[int, IntervalSet] = defaultdict(IntervalSet)
        """Record ids by epoch that are safe elsewhere and wait to be pruned."""
        self._is_closed = False
        self.counters = BufferCounters(self._lock)
        self.generation = 0
        """Counts the times that the file was replaced: what was remembered of its batches is void then."""
        self._file = BufferFile(folder, options, self.counters)
        self._use(self._file.open())
        # A token for each start: an image that was made before has the former one.
        self._renew_lineage()
        self._file.reserve.hold()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def epoch(self) -> int:
        """The number of the buffer's present life."""
        return self._database.epoch

    @property
    def head(self) -> int:
        """The highest sequence number of the present epoch; 0 before the first record."""
        return self._database.head

    def head_of(self, epoch: int) -> int:
        """The highest sequence number that an epoch committed, as far as is known."""
        return self._database.head_of(epoch)

    def last_id(self) -> int:
        """The highest id that a batch can have now."""
        return self._database.last_id()

    def owner_of(self, identity: int) -> BatchOwner:
        """Whose a batch is."""
        return self._database.owner_of(identity)

    def depth(self) -> dict[int, Depth]:
        """What waits, by class index."""
        with self._lock:
            return {index: Depth(depth.records, depth.size) for index, depth in self._database.depth.items()}

    def commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        """Gives records their ids and stores them, in order of class, in one synced transaction.

        Raises StoreError; then nothing of it is stored, except that after StoreFailing only `reopen` shows it.
        """
        with self._open() as database:
            try:
                return self._commit(waiting, wall_ms)
            except StoreFull:
                # What was acknowledged leaves the file first. Then the log alone needs room, and a reserve is there.
                self.prune_acknowledged()
                if database.free_pages_bytes() < sum(len(pending.payload) for pending in waiting) + SPARE_BYTES:
                    raise
                self._file.make_room(database.writer)
                return self._commit(waiting, wall_ms)

    def _commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        database, identity = self._database, self._file.identity
        new = packed(waiting, database.owner_of(database.last_id()), database.ordinal, wall_ms)
        # Before the ids are given: a buffer that is lost behind this commit has them within its lineage's bound.
        identity.raise_head_limit(database, len(waiting))
        # One for each message. QoS 0 has no message id, and is never delivered again.
        came = [pending.arrival for pending in waiting if pending.arrival.mid and not pending.continues]
        with self._transaction() as changes:
            changes.counts["unencodable"] += new.unencodable
            for pending in waiting:
                if pending.counts:
                    changes.counts.update(pending.counts)
            for place, batch in enumerate(new.batches):
                # The first row remembers the arrivals of all, in the order in which they came.
                insert_batch(database.writer, batch, waiting[0].boot, pack_arrivals(came) if place == 0 else None)
        database.add(new.batches)
        # Behind the transaction: an arrival that is known without its record would drop the record's redelivery.
        self.recent.add(came)
        # Last: a high-water mark beyond what is committed would declare ids lost that no record had.
        identity.on_committed(database)
        return new.batches

    def edit(self, change: Callable[[Connection, TransactionTotals], None]) -> None:
        """Runs a change of stored batches in one synced transaction, after what was acknowledged. Raises StoreError."""
        with self._open() as database:
            try:
                self._edit(change)
            except StoreFull:
                self._file.make_room(database.writer)
                self._edit(change)

    def _edit(self, change: Callable[[Connection, TransactionTotals], None]) -> None:
        with self._transaction() as changes:
            change(self._database.writer, changes)

    @contextmanager
    def _transaction(self) -> Iterator[TransactionTotals]:
        """A synced transaction that begins with what was acknowledged and ends with the counters. Raises StoreError."""
        database, changes = self._database, TransactionTotals()
        with transaction(database.writer):
            # With whatever is written anyway: a transaction of its own is one more sync, and each wears the flash.
            for ordinal, epoch in database.epochs.items():
                for first, last in self._acked[epoch].ranges:
                    prune_range(database.writer, ordinal, first, last, changes)
            delete_expired(database.writer, database.expired_rows(self._options.recent_size), changes)
            changes.counts.update(self.counters.unstored)
            yield changes
            self.counters.store(database.writer, changes.counts)
        # Only now is it known to be stored: a transaction that failed changes nothing in memory either.
        database.apply(changes)
        self.counters.on_stored(changes.counts)
        self._acked.clear()

    def acknowledge(self, epoch: int, seqs: IntervalSet) -> None:
        """Record ids that are safe elsewhere. They leave the disk with the next commit or `prune_acknowledged`."""
        with self._lock:
            self._acked[epoch] |= seqs

    def is_acknowledged(self, batch: StoredBatch) -> bool:
        """Whether all of a batch is acknowledged and waits to be pruned."""
        with self._lock:
            return self._acked[batch.epoch].covers(IntervalSet([(batch.first, batch.last)]))

    def prune_acknowledged(self) -> None:
        """Stores what was acknowledged and counted since the last transaction. Raises StoreError."""
        with self._open():
            if any(self._acked.values()) or self.counters.is_due:
                self.edit(lambda _connection, _changes: None)
            self._file.reserve.hold()

    def split_or_dead_letter(self, identities: Sequence[int], reason: str) -> list[StoredBatch]:
        """Halves refused batches, and dead-letters those of one record; the halves. Raises StoreError."""
        halves: list[int] = []
        self.edit(
            lambda connection, changes: halves.extend(split_or_dead_letter(connection, changes, identities, reason))
        )
        return [self._database.find(identity) for identity in halves]

    def requeue_dead_letters(self) -> None:
        """Dead letters wait to be sent like anything else. Raises StoreError."""

        def change(connection: Connection, _: TransactionTotals) -> None:
            connection.execute("DELETE FROM dead_letter_batches")

        # An edit also writes what was acknowledged and counted: a sync that nothing here calls for.
        if self.query_one("SELECT id FROM dead_letter_batches LIMIT 1", ()) is not None:
            self.edit(change)

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        """The next batches of a class that are to be sent, without their data, in the order of their ids."""
        return self._database.read_after(identity, class_index, limit)

    def load(self, identity: int) -> bytes | None:
        """The encoded form of a batch; None if it is gone."""
        return self._database.load(identity)

    def query_one(self, sql: str, parameters: tuple[Any, ...]) -> Any:
        """The first row of a query, or None. Raises StoreError."""
        return self._database.query_one(sql, parameters)

    def free_pages_bytes(self) -> int:
        """Space inside the file that is not used."""
        return self._database.free_pages_bytes()

    def delete_damaged(self) -> bool:
        """Deletes files that were rebuilt: what can be read of them was taken over. Whether there were any."""
        return self._file.delete_damaged()

    def reopen(self) -> None:
        """Opens the file anew after StoreFailing and makes sure that what it holds is synced. Raises StoreError.

        A commit whose sync failed may be in the log or not, and the system may have forgotten to write it: what is in
        the log is moved to the main file, which syncs it again.
        """
        with self._open() as database:
            if not self.path.exists():
                raise StoreFailing(f"{self.path} is gone")  # an empty one in its place would be taken for it
            database.close()
            self._use(self._file.open_again())
            with mapped_errors():
                self._database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def repair(self, generation: int) -> None:
        """After StoreDamaged: a new file with what can be read, a new epoch, the rest declared. Raises StoreError.

        `generation`: the one in which the damage was met; if the file was replaced since, there is nothing to do.
        """
        with self._open() as database:
            if generation != self.generation:
                return
            database.close()
            try:
                self._file.rebuild()
            except StoreError:
                with suppress(StoreError):
                    self._use(self._file.open_again())  # it is as it was
                raise
            self._use(self._file.open_again())
            self._acked.clear()
            self.generation += 1
            self._renew_lineage()

    def close(self) -> None:
        """Stores what was acknowledged, if the medium lets it, and gives the file back, for good.

        Whatever thread uses the buffer afterwards gets StoreClosed: another may have the file by then.
        """
        with self._lock:
            if self._is_closed:
                return
            with suppress(StoreError, OSError):
                self.prune_acknowledged()
                self._renew_lineage()
            with suppress(sqlite3.Error):
                self._database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._is_closed = True
            self._database.close()

    @contextmanager
    def _open(self) -> Iterator[OpenDatabase]:
        """The lock on a buffer that is open. Raises StoreClosed."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self.path} was closed")
            yield self._database

    def _use(self, database: OpenDatabase) -> None:
        """From now on this is the open file."""
        self._database = database
        self.counters.stored = database.counters
        size = self._options.recent_size
        with mapped_errors():
            self.recent = RecentArrivals(size, stored_arrivals(database.writer, size))

    def _renew_lineage(self) -> None:
        """After a start, a repair, an end; where there is no room for it, the next commit tries again."""
        with suppress(OSError, StoreFull):
            self._file.identity.renew(self._database)
