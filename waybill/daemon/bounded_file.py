"""Reading files of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

from waybill.settings import open_file

_READ_BYTES = 1 << 20


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises OSError; ValueError if it is longer than `max_bytes`.

    Bytes are counted while reading: a file may grow, and a pipe has no size.
    """
    content = bytearray()
    with open_file(path) as file:
        # `read` of a number makes room for as many bytes before it looks for one.
        while chunk := file.read(_READ_BYTES):
            content += chunk
            if len(content) > max_bytes:
                raise ValueError(f"it has more than {max_bytes} bytes")
    return bytes(content)


def read_secret(path: Path, max_bytes: int) -> str:
    """The text of a file that only its owner may read. Raises OSError; ValueError, whose message has nothing of the
    text.

    A file of root may be read by its group too: so a pod of Kubernetes gets its secrets.
    """
    status = path.stat()
    forbidden = 0o037 if status.st_uid == 0 != os.geteuid() else 0o077
    if (mode := status.st_mode & 0o777) & forbidden:
        raise ValueError(f"others may use it, by its mode {mode:03o}: chmod 600")
    try:
        return read_bounded(path, max_bytes).decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("it is not ASCII text") from None
