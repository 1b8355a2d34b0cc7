"""The folder of a stack: marked before anything is written, held by one process, emptied only when it is ours."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from deploy.local.errors import FolderNotOurs, StackInUse
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.stack_folder import MARK

_LOCK = ".waybill-lock"
_TEXT = b"Made by waybill (2), which may delete everything in this folder when it is asked for a fresh start.\n"


def claim(folder: Path) -> None:
    """Make the folder, or take an empty one, and mark it as ours. Raises FolderNotOurs, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not any(folder.iterdir()):
        replace_durably(mark, _TEXT)
    elif mark.is_symlink() or not mark.is_file() or mark.read_bytes() != _TEXT:
        raise FolderNotOurs(folder)


def empty(folder: Path, *, keep: frozenset[str] = frozenset()) -> None:
    """Claim the folder and delete everything in it but `keep`.

    Raises, before anything is deleted: FolderNotOurs, StackInUse (also of a folder inside), OSError.
    """
    with hold(folder):
        for lock in folder.glob(f"*/**/{_LOCK}"):
            if holder(lock.parent) is not None:
                raise StackInUse(lock.parent)
        for entry in folder.iterdir():
            if entry.name in {MARK, _LOCK} | keep:
                continue
            # rmtree refuses a link to a folder; the link is ours to delete, its target is not.
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Claim and own the folder while the block runs; the kernel releases it however this process ends.

    Raises FolderNotOurs, StackInUse, OSError.
    """
    claim(folder)
    # Journals have whole batches, and settings name tokens and keys.
    folder.chmod(0o700)
    with (folder / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackInUse(folder) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(folder: Path) -> int | None:
    """The id of the process that owns the folder now; None when none does."""
    try:
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = (folder / _LOCK).read_text()
        return int(pid) if pid else None
    except FileNotFoundError:
        return None
    return None


def memory_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants; shared pages are counted in proportion (PSS)."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_full_info().pss for one in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0
