"""What a process answers that is asked for its status."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.bounds import check_refusal
from waybill.daemon.status_reader import StatusUnavailable, answered_value


def answer(body: bytes, head: bytes = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n") -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def seeds() -> Iterable[bytes]:
    """A status, other answers, and texts that are cut, deep or no JSON."""
    yield answer(b'{"gateway": "g", "healthy": true, "listed": [["a", "b", 1.5]]}\n')
    yield answer(b"{}", b"HTTP/1.1 503 Service Unavailable\r\n")
    yield answer(b'{"a": 1}')[:-1]
    yield answer(b"[]") + answer(b"{}")
    yield answer(b"[" * 50_000)
    yield answer(b'{"a": NaN, "b": 1e999}')
    yield b"HTTP/1.0 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}"
    yield b"SSH-2.0-OpenSSH\r\n"


def judge(data: bytes) -> None:
    """An object, or StatusUnavailable with a short reason."""
    try:
        assert isinstance(answered_value(data), dict)
    except StatusUnavailable as error:
        check_refusal(error)
