"""Asking a process for its status over HTTP: an answer is bounded in size, depth and time, whoever gives it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

from waybill.record import InvalidJson, parse_json

# Bounded reads of a connection.

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


MAX_ANSWER_BYTES = 1 << 20
_MAX_VALUES = 100_000
_MAX_SHOWN = 200


class StatusUnavailable(Exception):
    """Nobody answers with a status at an address, or not wholly within the time and the size."""


def fetch_status(host: str, port: int, path: str, *, timeout_s: float) -> dict[str, Any]:
    """The JSON object that a `StatusServer` answers for a path, all of it within `timeout_s`.

    Raises StatusUnavailable.
    """
    until_s = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            # HTTP/1.0: the answer is one piece, and ends with the connection.
            connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            return answered_value(_read_all(connection, until_s))
    except OSError as error:
        # its number says nothing to who asks
        raise StatusUnavailable(error.strerror or str(error)) from error
    except UnicodeError as error:
        raise StatusUnavailable(str(error)) from error


def _read_all(connection: socket.socket, until_s: float) -> bytes:
    """Every byte up to the end."""
    data = bytearray()
    for chunk in timed_chunks(connection, until_s):
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise StatusUnavailable(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def answered_value(answer: bytes) -> dict[str, Any]:
    """The JSON object of a whole HTTP answer: 200, and as long as it says. Pure. Raises StatusUnavailable."""
    head, end, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if not end or not first.startswith(b"HTTP/1.") or len(words) < 2:
        raise StatusUnavailable(f"what answers speaks no HTTP: {answer[:_MAX_SHOWN]!r}")
    if words[1] != b"200":
        raise StatusUnavailable(f"the answer is {first[:_MAX_SHOWN]!r}")
    named = (line.partition(b":") for line in lines)
    lengths = {value.strip() for name, _, value in named if name.strip().lower() == b"content-length"}
    # Compared as text: it has as many digits as somebody likes.
    if lengths - {str(len(body)).encode()}:
        raise StatusUnavailable("the answer is cut off")
    try:
        value = parse_json(body, max_bytes=MAX_ANSWER_BYTES, max_values=_MAX_VALUES)
    except InvalidJson as error:
        raise StatusUnavailable(f"the answer is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise StatusUnavailable("the answer is no JSON object")
    return value
