"""What a connection brings until a moment, however slowly it comes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

__all__ = ["timed_chunks"]

_READ_BYTES = 1 << 16


def timed_chunks(connection: socket.socket, until_s: float) -> Iterator[bytes]:
    """The pieces as they come, up to the end of the connection; `until_s`: of the monotonic clock.

    The time is of all of it: a time-out for each read never ends a slow answer. Raises OSError, TimeoutError too.
    """
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not come in time")
        connection.settimeout(left_s)
        chunk = connection.recv(_READ_BYTES)
        if not chunk:
            return
        yield chunk
