"""Reading a file that may be another one than it should be."""

from __future__ import annotations

from pathlib import Path

from settings import open_file

__all__ = ["read_bounded"]

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
