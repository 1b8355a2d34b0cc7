"""Requests to the server of metrics, health and status."""

from __future__ import annotations

import io
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from waybill.daemon.status_server import MAX_HEAD_BYTES, _handler, json_answer

HANDLER = _handler({"/status": lambda: json_answer("{}")})


class Accepted:
    """An accepted connection: gives its bytes, and keeps what is answered."""

    def __init__(self, data: bytes) -> None:
        self.given, self.answer = io.BytesIO(data), b""

    def makefile(self, *_: Any) -> io.BytesIO:
        return self.given

    def settimeout(self, _: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        self.answer += bytes(data)


class Server:
    """The server that accepted it, on loopback: as strict as it is about hosts."""

    is_loopback: Final = True

    def begin_answer(self, _: Accepted) -> bool:
        return True


def seeds() -> Iterable[bytes]:
    """What asks usually, and lines and headers that are long, many, or none."""
    yield b"GET /status?x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n"
    yield b"GET /status HTTP/1.1\r\nHost: localhost:1\r\n\r\n"
    yield b"GET /none HTTP/1.0\r\n\r\nGET /status HTTP/1.0\r\n\r\n"
    yield b"GET /status\r\n\r\n"
    yield b"POST //status HTTP/1.1\nContent-Length: 99999999999\n\n{}"
    yield b"GET /status HTTP/\xb2.1\r\n\r\n"
    yield b"GET /status HTTP/2.0\r\nA: b\r\n c\r\n\xff: \xff\r\nno colon\r\n\r\n"
    yield b"GET " + b"/" * 60_000
    yield b"GET /status HTTP/1.1\r\n" + b"a:b\r\n" * 12_000
    yield b"GET /status HTTP/1.1\r\n" + b"a:" + b"b" * 60_000


def judge(data: bytes) -> None:
    """Nothing is raised; one answer is given or none, of bounded length, and no more is read than a head may have."""
    accepted = Accepted(data)
    made: Any = accepted
    server: Any = Server()
    handler: BaseHTTPRequestHandler = HANDLER(made, ("127.0.0.1", 1), server)
    assert handler.close_connection
    assert accepted.answer.count(b"HTTP/1.0 ") <= 1
    assert len(accepted.answer) < 8 * MAX_HEAD_BYTES
