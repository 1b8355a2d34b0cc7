"""Files that are replaced so that a reader, a crash or a power cut finds the old content or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# A lock file for processes that read and replace files of a folder.


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Excludes other processes and threads that use this function on the same folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` beside `path`, rename it over `path`, and return when both are on disk. Raises OSError.

    `mode` is the new file's, less the process's umask. After an error `path` has the old content or the new one, and
    no other file is left. A link at `path` is replaced and never followed.
    """
    with writing_durably(path, mode=mode) as file:
        file.write(content)


@contextmanager
def writing_durably(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Like `replace_durably`, for content in pieces; if the block raises, `path` stays unchanged."""
    beside = _temporary_beside(path, ".part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            yield file
            file.flush()
            # Before the rename: a power cut must not find the new name with nothing in it.
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames durable: they are entries of the folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_durably(path: Path, content: bytes | Iterable[bytes], *, mode: int = 0o644) -> bool:
    """Like `replace_durably` if nothing is at `path`; else False, and the file there stays. Raises OSError.

    `content` may come in pieces. If several processes create one path, one gets True. The disk must have hard links.
    """
    beside = _temporary_beside(path, ".new")
    try:
        with writing_durably(beside, mode=mode) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        # A link fails where the name is taken; a rename would replace it.
        os.link(beside, path)
    except FileExistsError:
        # over a network the answer to a link may be lost, and the link be asked for again: it finds itself
        if not _is_one_file(beside, path):
            return False
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _is_one_file(one: Path, other: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return one.samefile(other)
    return False


def _temporary_beside(path: Path, suffix: str) -> Path:
    # without the name of `path`: a file system takes names of 255 bytes, and that one may have them all
    return path.with_name(f".{secrets.token_hex(8)}{suffix}")
