"""One process at a time in a folder, for who reads a file there and replaces it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["alone_in"]


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other process, and no other thread, is in such a block for the same folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
