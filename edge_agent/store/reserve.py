"""Space that is kept for the log when the file system is full: giving records back needs a little room itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 8 << 20
"""What the write-ahead log takes at most between two checkpoints, twice."""


class Reserve:
    """A file of `size` allocated bytes, deleted when the space is needed. 0: none."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Takes the space again, if there is so much."""
        if self._size == 0 or self._path.exists():
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError:
                self._path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Gives the space to whoever comes first; whether there was any."""
        held = self._path.exists()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        return held
