"""A folder that belongs to Waybill: marked before anything is written, held by one process, emptied on request only.

The mark is also the lock: who removes it takes from us the right to delete anything in the folder.
"""

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

__all__ = ["claim", "empty", "hold", "holder"]

_MARK = ".waybill-folder"
_MARK_TEXT = b"Made by waybill, which may delete everything in this folder when it is asked for a fresh start.\n"
_HOLDER_BYTES = 1024
_SETTLE_S = 2.0
_POLL_S = 0.02
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


def claim(folder: Path) -> None:
    """Make the folder, or take one that is empty, and mark it as ours. Raises FolderNotOurs, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    # Content is looked for first: where another process claims the folder now, its mark is there before its content.
    if any(entry.name != _MARK for entry in folder.iterdir()) and not _is_ours(folder):
        raise FolderNotOurs(folder)
    with _opened(folder) as mark:
        if os.fstat(mark).st_size < len(_MARK_TEXT):
            os.pwrite(mark, _MARK_TEXT, 0)
            os.fsync(mark)


def empty(folder: Path, *, keep: frozenset[str] = frozenset()) -> None:
    """Claim the folder and delete everything in it but `keep`. Raises FolderNotOurs, StackInUse, OSError."""
    with hold(folder):
        for entry in folder.iterdir():
            if entry.name not in {_MARK} | keep:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Claim and own the folder while the block runs; the kernel lets go of it however this process ends.

    Raises FolderNotOurs, StackInUse, OSError.
    """
    claim(folder)
    with _opened(folder) as mark:
        try:
            # An open file description's lock: it can be asked about without being taken (see `holder`).
            fcntl.fcntl(mark, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            raise StackInUse(folder) from None
        os.ftruncate(mark, len(_MARK_TEXT))
        os.pwrite(mark, ProcessIdentity.mine().model_dump_json().encode(), len(_MARK_TEXT))
        yield


def holder(folder: Path) -> ProcessIdentity | None:
    """The process that owns the folder now; None when none does. Changes nothing. Raises FolderDamaged."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        try:
            lock = os.open(folder / _MARK, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            answer = fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
            if struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK:
                return None
            return ProcessIdentity.model_validate_json(os.pread(lock, _HOLDER_BYTES, len(_MARK_TEXT)))
        except ValidationError:
            # Between taking the lock and writing its name into it, the owner needs a moment.
            if time.monotonic() > deadline:
                raise FolderDamaged(
                    folder / _MARK, "does not say which process holds it", f"find it with `fuser {folder / _MARK}`"
                ) from None
            time.sleep(_POLL_S)
        finally:
            os.close(lock)


def _is_ours(folder: Path) -> bool:
    return (folder / _MARK).is_file()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    mark = os.open(folder / _MARK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        yield mark
    finally:
        os.close(mark)


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
