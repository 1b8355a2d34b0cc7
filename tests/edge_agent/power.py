"""A disk that loses what was not synced when the power goes: a file system for SQLite, in memory, through apsw.

Every write is volatile until its file is synced. `Disk.cut` keeps any subset of the volatile writes, in any order, and
may tear them at a sector. Faults are drawn from the disk's own random numbers: a sync that fails with EIO forgets some
of its writes for good, as Linux does, and a write may find no space.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw

SECTOR = 512
_PREFIX = "powercut"
_CODES = {
    apsw.FullError: sqlite3.SQLITE_FULL,
    apsw.IOError: sqlite3.SQLITE_IOERR,
    apsw.CorruptError: sqlite3.SQLITE_CORRUPT,
    apsw.NotADBError: sqlite3.SQLITE_NOTADB,
}


class PowerCut(Exception):
    """The power went. What runs on this disk has to be started again."""


class File:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.current = bytearray()
        self.volatile: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.current, data, offset)
        self.volatile.append((offset, data))

    def truncate(self, size: int) -> None:
        # A file system keeps its own metadata in order: a truncation is never torn, and is done at once.
        for content in (self.current, self.durable):
            del content[size:]
        self.volatile = [(offset, data[: size - offset]) for offset, data in self.volatile if offset < size]

    def sync(self) -> None:
        self.durable[:] = self.current
        self.volatile.clear()

    def lose(self, draw: Random) -> None:
        """The power is gone: each volatile write has come to the disk, or not, or in part."""
        for offset, data in self.volatile:
            fate = draw.random()
            if fate < 0.4:
                _put(self.durable, data, offset)
            elif fate < 0.6:
                _put(self.durable, data[: draw.randrange(0, len(data) + 1, SECTOR) or len(data) // 2], offset)
        self.current[:] = self.durable
        self.volatile.clear()

    def forget(self, draw: Random) -> None:
        """A sync failed: some of the writes will never come to the disk, though the cache still shows them."""
        self.volatile = [write for write in self.volatile if draw.random() < 0.5]


class Disk:
    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.files: dict[str, File] = {}
        self.operations_left: int | None = None
        self.dead = False
        self.sync_fails = 0.0
        self.write_fails = 0.0
        self.writes = 0

    def count(self) -> None:
        """One operation that changes something; the power may go before it."""
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left <= 0:
                self.dead = True
        if self.dead:
            raise apsw.IOError("no power")

    def cut(self) -> None:
        for file in self.files.values():
            file.lose(self.draw)
        self.dead = False
        self.operations_left = None


class _Handle:
    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._file = disk.files.setdefault(name, File())

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._disk.dead:
            raise apsw.IOError("no power")
        return bytes(self._file.current[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.count()
        self._disk.writes += 1
        if self._disk.write_fails and self._disk.draw.random() < self._disk.write_fails:
            raise apsw.FullError("no space left on device")
        self._file.write(bytes(data), offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.count()
        self._file.truncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.count()
        if self._disk.sync_fails and self._disk.draw.random() < self._disk.sync_fails:
            self._file.forget(self._disk.draw)
            raise apsw.IOError("sync failed")
        self._file.sync()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.current)

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return 0

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xLock(self, level: int) -> None:  # noqa: N802
        pass

    def xUnlock(self, level: int) -> None:  # noqa: N802
        pass

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xClose(self) -> None:  # noqa: N802
        pass


class _System(apsw.VFS):
    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, "")
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        path = name.filename() if hasattr(name, "filename") else (name or "temporary")
        flags[1] = flags[0]
        return _Handle(self._disk, Path(path).name)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._disk.count()
        self._disk.files.pop(Path(filename).name, None)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        return Path(pathname).name in self._disk.files

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def xRandomness(self, count: int) -> bytes:  # noqa: N802
        return self._disk.draw.randbytes(count)

    def xSleep(self, microseconds: int) -> int:  # noqa: N802
        return microseconds

    def xCurrentTime(self) -> float:  # noqa: N802
        return 2_460_000.5

    def xCurrentTimeInt64(self) -> int:  # noqa: N802
        return 212_544_000_000_000

    def xGetLastError(self) -> tuple[int, str]:  # noqa: N802
        return 0, ""


class Computer:
    """Opens connections on one disk. A connection in exclusive mode needs no shared memory, so all of them are one."""

    def __init__(self, disk: Disk, checkpoints: float = 0.3) -> None:
        self.disk = disk
        self._name = f"{_PREFIX}-{id(self)}"
        self._system = _System(self._name, disk)
        self._checkpoints = checkpoints
        self._real: apsw.Connection | None = None
        self._users = 0

    def connect(self, path: Path) -> SharedConnection:
        if self._real is None:
            with _errors(self):
                self._real = apsw.Connection(str(path), vfs=self._name)
                self._real.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        self._users += 1
        return SharedConnection(self, first=self._users == 1)

    def execute(self, sql: str, parameters: tuple[Any, ...]) -> SharedCursor:
        if self._real is None:
            raise sqlite3.ProgrammingError("closed")
        with _errors(self):
            rows = self._real.execute(sql, parameters).fetchall()
        if sql == "COMMIT" and self.disk.draw.random() < self._checkpoints:
            self._checkpoint()
        return SharedCursor(rows)

    def _checkpoint(self) -> None:
        """What SQLite does by itself after a commit; it passes over errors there, which apsw would raise."""
        assert self._real is not None
        with suppress(sqlite3.Error), _errors(self):
            self._real.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._real is not None:
            real, self._real = self._real, None
            with _errors(self):
                real.close()

    def restart(self) -> None:
        self.abandon()
        self.disk.cut()

    def abandon(self) -> None:
        real, self._real, self._users = self._real, None, 0
        if real is not None:
            self.disk.dead = True
            with suppress(apsw.Error):
                real.close(force=True)
            self.disk.dead = False

    def pragma(self, sql: str) -> str:
        return "PRAGMA wal_autocheckpoint = 0" if "wal_autocheckpoint" in sql else sql


class SharedCursor:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = iter(rows)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


class SharedConnection:
    def __init__(self, computer: Computer, *, first: bool) -> None:
        self._computer = computer
        self._first = first
        self._open = True

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> SharedCursor:
        if not self._open:
            raise sqlite3.ProgrammingError("closed")
        if not self._first and sql.startswith("PRAGMA") and "freelist" not in sql:
            return SharedCursor([])
        return self._computer.execute(self._computer.pragma(sql), parameters)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._computer.leave()


@contextmanager
def _errors(computer: Computer) -> Iterator[None]:
    """apsw's errors as those of the standard library; without power, as what they mean for the test."""
    try:
        yield
    except apsw.Error as error:
        if computer.disk.dead:
            raise PowerCut from error
        mapped = sqlite3.OperationalError(str(error))
        mapped.sqlite_errorcode = _CODES.get(type(error), sqlite3.SQLITE_ERROR)
        mapped.sqlite_errorname = type(error).__name__
        raise mapped from error


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
