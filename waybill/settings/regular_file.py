"""Opening a file that somebody named. What is no file is refused: a pipe nobody writes to would be waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["NotAFile", "open_file", "read_file"]

_OWN: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What whoever starts a command hands to it, as a shell does for `<(...)`: that is waited for."""
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OSError):
    """There is something of this name, and it is no file; `filename` is the name, `strerror` says what it is."""


def open_file(path: Path) -> BinaryIO:
    """A file, opened to read its bytes; never waits for somebody else. Raises NotAFile, OSError.

    A folder is an IsADirectoryError, as ever. What is handed over by the shell may be a pipe: `/dev/stdin`, `<(...)`.
    """
    if str(path).startswith(_OWN):
        return path.open("rb")
    # Before it is opened, which is an act to some devices.
    _check(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # Once more: another one may be there by now.
        _check(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises NotAFile, OSError."""
    with open_file(path) as file:
        return file.read()


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotAFile(errno.EINVAL, f"it is {kind}, and no file", str(path))
