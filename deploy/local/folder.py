"""A folder that belongs to Waybill: marked before anything is written, held by one process, emptied on request only."""

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from deploy.local.errors import FolderDamaged, FolderNotOurs, StackInUse
from deploy.local.process import ProcessIdentity
from runtime import replace_durably

__all__ = ["claim", "empty", "hold", "holder"]

_MARK = ".waybill-folder"
_MARK_TEXT = b"Made by waybill, which may delete everything in this folder when it is asked for a fresh start.\n"
_LOCK = "stack.lock"
_LOCK_BYTES = 1024
_SETTLE_S = 2.0
_POLL_S = 0.02
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


def claim(folder: Path) -> None:
    """Make the folder, or take one that is empty, and mark it as ours. Raises FolderNotOurs, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_ours(folder):
        if any(folder.iterdir()):
            raise FolderNotOurs(folder)
        replace_durably(folder / _MARK, _MARK_TEXT)


def empty(folder: Path, *, keep: frozenset[str] = frozenset()) -> None:
    """Claim the folder and delete everything in it but `keep`. Raises FolderNotOurs, StackInUse, OSError."""
    with hold(folder):
        for entry in folder.iterdir():
            if entry.name not in {_MARK, _LOCK} | keep:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Claim and own the folder while the block runs; the kernel lets go of it however this process ends.

    Raises FolderNotOurs, StackInUse, OSError.
    """
    claim(folder)
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            # An open file description's lock: it can be asked about without being taken (see `holder`).
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            raise StackInUse(folder) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, ProcessIdentity.mine().model_dump_json().encode(), 0)
        yield
    finally:
        os.close(lock)


def holder(folder: Path) -> ProcessIdentity | None:
    """The process that owns the folder now; None when none does. Changes nothing. Raises FolderDamaged."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        try:
            lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            answer = fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
            if struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK:
                return None
            return ProcessIdentity.model_validate_json(os.pread(lock, _LOCK_BYTES, 0))
        except ValidationError:
            # Between taking the lock and writing its name into it, the owner needs a moment.
            if time.monotonic() > deadline:
                raise FolderDamaged(
                    folder / _LOCK, "does not say which process holds it", f"find it with `fuser {folder / _LOCK}`"
                ) from None
            time.sleep(_POLL_S)
        finally:
            os.close(lock)


def _is_ours(folder: Path) -> bool:
    return (folder / _MARK).is_file()


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
