"""The buffer: `commit` gives records their ids and returns after the sync; acknowledged records are deleted.

Any thread may call any method. A read does not wait for a running sync.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from edge_agent.errors import StoreClosed, StoreDamaged, StoreError, StoreFailing, StoreForeign, StoreFull
from edge_agent.store.batch_rows import (
    PendingRecord,
    RecentArrivals,
    StoredBatch,
    TransactionTotals,
    delete_expired,
    insert_batch,
    pack_arrivals,
    pack_commit,
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

Result = TypeVar("Result")

RESERVE_BYTES = 8 << 20
"""Twice the maximum size of the write-ahead log between two checkpoints."""


class BufferFile:
    """Opens and rebuilds the file. Used under the buffer's lock."""

    def __init__(self, folder: Path, options: BufferOptions, counters: BufferCounters) -> None:
        """Creates the folder. Raises OSError."""
        _private_folder(folder)
        self.path = folder / DATABASE
        self.identity = BufferIdentity(self.path, options)
        self.reserve = Reserve(folder / "reserve", options.reserve_bytes)
        self._options = options
        self._counters = counters

    def open(self) -> OpenDatabase:
        """Opens the file at the start and creates what is missing. Raises StoreError, OSError.

        It rebuilds a damaged file, keeps another owner's file apart, and begins a new epoch in a restored one.
        """
        # First: SQLite would create an empty file in place of the rebuilt one, or open a file without its log.
        finish_archiving(self.path)
        finish_rebuild(self.path)
        database = self._with_room(self._open_any)
        if self._with_room(lambda: self.identity.begin_own_epoch(database)):
            # The state in memory belongs to the former epoch.
            database.close()
            database = self._with_room(self.open_again)
        return database

    def open_again(self) -> OpenDatabase:
        return open_database(self.path, self._options)

    def rebuild(self) -> None:
        """Replaces a damaged file, which is closed. Raises StoreError."""
        self._with_room(self._rebuild)

    def make_room(self, writer: Connection) -> None:
        """Releases the reserve and moves the log into the file, so that the log starts again."""
        self.reserve.release()
        with suppress(sqlite3.Error):
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def delete_damaged(self) -> bool:
        """Deletes archived damaged files, whose readable content was copied; returns whether there were any."""
        with suppress(OSError):
            if number := delete_damaged(self.path, keep=0):
                log.warning("rebuilt files are deleted to free space", files=number)
                return True
        return False

    def _with_room(self, action: Callable[[], Result]) -> Result:
        """Retries without the reserve and the damaged files if there is no space."""
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
        # The lineage describes the former file, not the one in its place.
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
        log.error("the buffer belongs to another device and is not sent", error=str(error), kept=kept.name)
        self._counters.add("foreign_archived", 1, lazily=True)


class Reserve:
    """A file of `size` allocated bytes (0: none). On a full file system even deletion needs some room."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Allocates the reserve again if it is missing and there is space."""
        if self._size == 0 or self._path.exists():
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Allocated, because a sparse file keeps no space.
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError:
                # A shorter file would count as the reserve.
                self._path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _private_folder(folder: Path) -> None:
    """Creates the folder for its owner alone. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkdir does not change an existing folder.
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


SPARE_BYTES = 64 << 10
"""Free pages that a commit may need besides its payload."""


class Buffer:
    """One device's store in one folder."""

    def __init__(self, folder: Path, options: BufferOptions) -> None:
        """Opens the buffer and creates what is missing. Raises StoreError."""
        self._options = options
        self._lock = threading.RLock()
        self._acked: defaultdict[int, IntervalSet] = defaultdict(IntervalSet)
        """Record ids by epoch that are safe elsewhere and wait to be pruned."""
        self._is_closed = False
        self.counters = BufferCounters(self._lock)
        self.generation = 0
        """How often the file was replaced, which invalidates everything remembered about its batches."""
        self._file = BufferFile(folder, options, self.counters)
        self._use(self._file.open())
        # A new token for each start: an older image has the former one.
        self._renew_lineage()
        self._file.reserve.hold()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def epoch(self) -> int:
        return self.database.epoch

    @property
    def head(self) -> int:
        """The highest sequence number of this epoch; 0 before the first record."""
        return self.database.head

    def last_id(self) -> int:
        """The highest id that a batch can have now."""
        return self.database.last_id()

    def depth(self) -> dict[int, Depth]:
        """Waiting records and bytes by class index."""
        with self._lock:
            return {index: Depth(depth.records, depth.size) for index, depth in self.database.depth.items()}

    def commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        """Gives records their ids and stores them, in order of class, in one synced transaction.

        Raises StoreError; then nothing is stored, but after StoreFailing only `reopen` shows whether it is.
        """
        with self._open() as database:
            try:
                return self._commit(waiting, wall_ms)
            except StoreFull:
                # First delete what was acknowledged. Then only the log needs room, which the reserve has.
                self.prune_acknowledged()
                if database.free_pages_bytes() < sum(len(pending.payload) for pending in waiting) + SPARE_BYTES:
                    raise
                self._file.make_room(database.writer)
                return self._commit(waiting, wall_ms)

    def _commit(self, waiting: Sequence[PendingRecord], wall_ms: int) -> list[StoredBatch]:
        database, identity = self.database, self._file.identity
        new = pack_commit(waiting, database.owner_of(database.last_id()), database.ordinal, wall_ms)
        # Before the ids are given: if the buffer is lost after this commit, its lineage bounds them.
        identity.raise_head_limit(database, len(waiting))
        # One for each message. QoS 0 has no message id and no redelivery.
        came = [pending.arrival for pending in waiting if pending.arrival.mid and not pending.continues]
        with self._transaction() as changes:
            changes.counts["unencodable"] += new.unencodable
            for pending in waiting:
                if pending.counts:
                    changes.counts.update(pending.counts)
            for place, batch in enumerate(new.batches):
                # The first row keeps all arrivals, in the order in which they came.
                insert_batch(database.writer, batch, waiting[0].boot, pack_arrivals(came) if place == 0 else None)
        database.add(new.batches)
        # After the transaction: a known arrival without its record would drop the record's redelivery.
        self.recent.add(came)
        # Last: a high-water mark above the committed head would declare unused ids lost.
        identity.on_committed(database)
        return new.batches

    def edit(self, change: Callable[[Connection, TransactionTotals], object]) -> None:
        """Changes stored batches in one synced transaction, after pending acknowledgements. Raises StoreError."""
        with self._open() as database:
            try:
                self._edit(change)
            except StoreFull:
                self._file.make_room(database.writer)
                self._edit(change)

    def _edit(self, change: Callable[[Connection, TransactionTotals], object]) -> None:
        with self._transaction() as changes:
            change(self.database.writer, changes)

    @contextmanager
    def _transaction(self) -> Iterator[TransactionTotals]:
        """A synced transaction that first stores acknowledgements and finally counters. Raises StoreError."""
        database, changes = self.database, TransactionTotals()
        with transaction(database.writer):
            # In a transaction that is needed anyway: each sync wears the flash.
            for ordinal, epoch in database.epochs.items():
                for first, last in self._acked[epoch].ranges:
                    prune_range(database.writer, ordinal, first, last, changes)
            delete_expired(database.writer, database.expired_rows(self._options.recent_size), changes)
            changes.counts.update(self.counters.unstored)
            yield changes
            self.counters.store(database.writer, changes.counts)
        # Only now it is stored: a failed transaction changes nothing in memory.
        database.apply(changes)
        self.counters.on_stored(changes.counts)
        self._acked.clear()

    def acknowledge(self, epoch: int, seqs: IntervalSet) -> None:
        """Marks record ids as safe elsewhere. The next commit or `prune_acknowledged` deletes them."""
        with self._lock:
            self._acked[epoch] |= seqs

    def is_acknowledged(self, batch: StoredBatch) -> bool:
        with self._lock:
            return self._acked[batch.epoch].covers(IntervalSet([(batch.first, batch.last)]))

    def prune_acknowledged(self) -> None:
        """Stores pending acknowledgements and counters. Raises StoreError."""
        with self._open():
            if any(self._acked.values()) or self.counters.is_due:
                self.edit(lambda _connection, _changes: None)
            self._file.reserve.hold()

    def split_or_dead_letter(self, identities: Sequence[int], reason: str) -> list[StoredBatch]:
        """Halves refused batches and dead-letters those of one record; returns the halves. Raises StoreError."""
        halves: list[int] = []
        self.edit(
            lambda connection, changes: halves.extend(split_or_dead_letter(connection, changes, identities, reason))
        )
        return [self.database.find(identity) for identity in halves]

    def requeue_dead_letters(self) -> None:
        """Sends dead letters again. Raises StoreError."""
        # Without dead letters an edit would only cost a sync.
        if self.database.query_one("SELECT id FROM dead_letter_batches LIMIT 1", ()) is not None:
            self.edit(lambda connection, _: connection.execute("DELETE FROM dead_letter_batches"))

    def subscriptions(self) -> set[str]:
        """The topic filters that the session at the vehicle's broker may have. Raises StoreError."""
        return self.database.subscriptions()

    def set_subscriptions(self, filters: Set[str]) -> None:
        """Stores these filters in place of the former ones. Raises StoreError."""

        def change(connection: Connection, _: TransactionTotals) -> None:
            connection.execute("DELETE FROM subscriptions")
            for one in sorted(filters):
                connection.execute("INSERT INTO subscriptions VALUES (?)", (one,))

        # Nearly always they are the same, and each edit wears the flash.
        if filters != self.subscriptions():
            self.edit(change)

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        """The next batches of a class to send, without their data, in order of their ids."""
        return self.database.read_after(identity, class_index, limit)

    def load(self, identity: int) -> bytes | None:
        """The encoded form of a batch; None if it is gone."""
        return self.database.load(identity)

    def delete_damaged(self) -> bool:
        """Deletes archived damaged files; returns whether there were any."""
        return self._file.delete_damaged()

    def reopen(self) -> None:
        """Opens the file again after StoreFailing and makes sure that its content is synced. Raises StoreError.

        After a failed sync a commit may be in the log but not on the medium. A checkpoint moves the log to the main
        file, which syncs it.
        """
        with self._open() as database:
            if not self.path.exists():
                raise StoreFailing(f"{self.path} is gone")  # an empty one in its place would be taken for it
            database.close()
            self._use(self._file.open_again())
            with mapped_errors():
                self.database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def repair(self, generation: int) -> None:
        """Rebuilds the file after StoreDamaged: readable rows are copied, a new epoch begins, the rest is declared
        lost. Raises StoreError.

        `generation`: the one that met the damage; if the file was replaced since, nothing is done.
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
        """Stores pending acknowledgements if possible, and closes the file for good.

        Any later use raises StoreClosed: another agent may have the file by then.
        """
        with self._lock:
            if self._is_closed:
                return
            with suppress(StoreError, OSError):
                self.prune_acknowledged()
                self._renew_lineage()
            with suppress(sqlite3.Error):
                self.database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._is_closed = True
            self.database.close()

    @contextmanager
    def _open(self) -> Iterator[OpenDatabase]:
        """Holds the lock on the open buffer. Raises StoreClosed."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self.path} was closed")
            yield self.database

    def _use(self, database: OpenDatabase) -> None:
        self.database = database
        self.counters.stored = database.counters
        size = self._options.recent_size
        with mapped_errors():
            self.recent = RecentArrivals(size, stored_arrivals(database.writer, size))

    def _renew_lineage(self) -> None:
        """After a start, a repair or an end. Without room for it, the next commit tries again."""
        with suppress(OSError, StoreFull):
            self._file.identity.renew(self.database)
