"""Reading a file that may be another one than it should be."""

from __future__ import annotations

from pathlib import Path

from waybill.settings import open_file

_READ_BYTES = 1 << 20


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file, without room for more than it has. Raises OSError; ValueError if it is longer.

    The size is counted, not asked for: a file may grow, and what a shell hands over has none.
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
    """The text of a file that nobody but its owner may use. Raises OSError; ValueError, which repeats nothing of it."""
    if (mode := path.stat().st_mode & 0o777) & 0o077:
        raise ValueError(f"others may use it, by its mode {mode:03o}: chmod 600")
    try:
        return read_bounded(path, max_bytes).decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("it is not ASCII text") from None
