"""A folder that belongs to Waybill: marked before anything is written, held by one process, emptied on request only.

The mark is also the lock: who removes it takes from us the right to delete anything in the folder. It is a regular file
of our content that names the folder: a file of somebody else, a link, and the mark of a folder that was copied or moved
give no right at all.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from deploy.local.errors import FolderDamaged, FolderNotOurs, StackInUse
from waybill.daemon.durable_file import sync_folder
from waybill.settings import Settings

# Processes from Linux's /proc: id, start time, children, memory.

_CPU_TICKS = slice(11, 15)  # fields 14 to 17: its own, and of the children that it has waited for
_START_TICKS = 19  # field 22 of /proc/PID/stat, counted from the first one behind the command's name


class ProcessIdentity(Settings):
    """One process, distinguished from every later one that gets its id.

    Linux gives an id again, but never the same id with the same start within one boot. `start_ticks` counts from the
    boot that `boot_id` names.
    """

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this id now; None when there is none."""
        try:
            # The command's name may itself hold blanks and brackets; the fields begin behind the last bracket.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(pid=pid, start_ticks=int(fields[_START_TICKS]), boot_id=boot_id)

    @classmethod
    def mine(cls) -> Self:
        """This process."""
        me = cls.of(os.getpid())
        assert me is not None, "/proc shows no process of our own"
        return me

    @property
    def lives(self) -> bool:
        """Whether this very process is there now (one that ended and was not waited for is)."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone. Raises PermissionError for another user's."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor stays with its process, so the one that is looked at is the one that is signalled.
                if self.lives:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False


_PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """Ids of the direct children of all threads of a process; empty when it is gone."""
    pids: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            pids += [int(word) for word in file.read_text().split()]
        except OSError:
            continue
    return pids


def proportional_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants; shared pages are counted in proportion (PSS)."""
    return _own_proportional_bytes(pid) + sum(proportional_bytes(child) for child in children(pid))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its descendants since they began; 0 for one that is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[_CPU_TICKS])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(child) for child in children(pid))


def _own_proportional_bytes(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


_MARK = ".waybill-folder"
_TEXT = b"Made by waybill (2), which may delete everything in this folder when it is asked for a fresh start.\n"
_MAX_BYTES = 4 << 10
_SETTLE_S = 2.0
_POLL_S = 0.02
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid
_LINK = f"has a {_MARK} that is a link, or no regular file"
_NOT_A_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})


def claim(folder: Path) -> None:
    """Make the folder, or take one that is empty, and mark it as ours. Raises FolderNotOurs, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    # Content is looked for first: where another process claims the folder now, its mark is there before its content.
    filled = any(entry.name != _MARK for entry in folder.iterdir())
    with _opened(folder, 0 if filled else os.O_CREAT) as mark:
        begun = os.pread(mark, len(_TEXT), 0)
        # A mark that a crash cut short is finished; a whole one, and a file of somebody else, stays as it is.
        if not filled and begun != _TEXT and _TEXT.startswith(begun):
            os.pwrite(mark, _TEXT, 0)
            # On disk before any content is: a folder with content and without a mark would be refused from then on.
            os.fsync(mark)
            sync_folder(folder)
        _check(folder, mark)


def empty(folder: Path, *, keep: frozenset[str] = frozenset()) -> None:
    """Claim the folder and delete everything in it but `keep`.

    Raises, before anything is deleted: FolderNotOurs, StackInUse (also of a folder inside), OSError.
    """
    claim(folder)
    with hold(folder):
        # All of it is looked at before the first file goes: a refusal half-way would leave half a folder.
        for mark in folder.glob(f"*/**/{_MARK}"):
            if holder(mark.parent) is not None:
                raise StackInUse(mark.parent)
        for entry in folder.iterdir():
            if entry.name not in {_MARK} | keep:
                # rmtree refuses a link to a folder; the link is ours to delete, what it leads to is not.
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Claim and own the folder while the block runs; the kernel lets go of it however this process ends.

    Raises FolderNotOurs, StackInUse, OSError.
    """
    claim(folder)
    with _opened(folder) as mark:
        _check(folder, mark)
        # Journals have whole batches, and the stack's state a secret.
        folder.chmod(0o700)
        try:
            # An open file description's lock: it can be asked about without being taken (see `holder`).
            fcntl.fcntl(mark, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            raise StackInUse(folder) from None
        # What is left of the name of an earlier, longer holder would spoil the JSON of ours.
        os.ftruncate(mark, len(_TEXT))
        os.pwrite(mark, ProcessIdentity.mine().model_dump_json().encode(), len(_TEXT))
        yield


def holder(folder: Path) -> ProcessIdentity | None:
    """The process that owns the folder now; None when none does. Changes nothing. Raises FolderDamaged."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        try:
            # A link is not followed, and a FIFO not waited for (O_NONBLOCK): neither is a mark of ours.
            lock = os.open(folder / _MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_A_FILE | {errno.ENOENT, errno.ENOTDIR}:
                return None
            raise
        try:
            answer = fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
            if struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK:
                return None
            return ProcessIdentity.model_validate_json(os.pread(lock, _MAX_BYTES, len(_TEXT)))
        except ValidationError:
            # Between taking the lock and writing its name into it, the owner needs a moment.
            if time.monotonic() > deadline:
                raise FolderDamaged(
                    folder / _MARK, "does not name its process", f"find it with `fuser {folder / _MARK}`"
                ) from None
            time.sleep(_POLL_S)
        finally:
            os.close(lock)


def _check(folder: Path, mark: int) -> None:
    if os.pread(mark, len(_TEXT), 0) != _TEXT:
        raise FolderNotOurs(folder, f"has a {_MARK} that this version of waybill did not write")


@contextmanager
def _opened(folder: Path, more: int = 0) -> Iterator[int]:
    """The mark's file, whatever it holds. Raises FolderNotOurs where it is none, a link, or has a second name."""
    try:
        mark = os.open(folder / _MARK, more | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise FolderNotOurs(folder) from None
        if error.errno in _NOT_A_FILE:
            raise FolderNotOurs(folder, _LINK) from None
        raise
    try:
        about = os.fstat(mark)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise FolderNotOurs(folder, _LINK)
        yield mark
    finally:
        os.close(mark)


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
