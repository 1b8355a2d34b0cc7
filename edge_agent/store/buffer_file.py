"""The buffer's file in its folder: opened in whatever state it is found, rebuilt, and the space kept for it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog

from edge_agent.errors import StoreDamaged, StoreForeign, StoreFull
from edge_agent.store.archive import FOREIGN, archive_database, delete_damaged, finish_archiving
from edge_agent.store.connection import DATABASE, Connection
from edge_agent.store.database import BufferCounters, BufferOptions, OpenDatabase, open_database
from edge_agent.store.identity import BufferIdentity
from edge_agent.store.rebuild import finish_rebuild, rebuild

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
