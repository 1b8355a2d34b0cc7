"""Metrics, health and status over HTTP, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from gateway.config import Observe
from gateway.errors import AddressTaken
from gateway.status import Status

STUCK_AFTER_S = 60.0
"""A loop that has not turned for so long is no longer alive."""


class Board:
    """The newest status, put up by the loop and read by the server's threads."""

    def __init__(self, status: Status, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pinned = (status, clock())

    def pin(self, status: Status) -> None:
        """Put up a newer status."""
        self._pinned = (status, self._clock())

    @property
    def status(self) -> Status:
        """The newest status."""
        return self._pinned[0]

    @property
    def alive(self) -> bool:
        """Whether the loop turned lately."""
        return self._clock() - self._pinned[1] < STUCK_AFTER_S


class Observatory:
    """The server: `/metrics`, `/status`, `/health` (200 only when both sides are connected) and `/alive`."""

    def __init__(self, settings: Observe, registry: CollectorRegistry, board: Board) -> None:
        try:
            self._server = ThreadingHTTPServer((settings.host, settings.port), _handler(registry, board))
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise AddressTaken(f"status cannot be served on {where}: {error.strerror}; change [observe]") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="observe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(registry: CollectorRegistry, board: Board) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/status":
                    self._answer_status(200)
                case "/health":
                    self._answer_status(200 if board.status.healthy and board.alive else 503)
                case "/alive":
                    self._answer_status(200 if board.alive else 503)
                case _:
                    self._answer(404, b"there are /metrics, /status, /health and /alive\n", "text/plain")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Say nothing: a scrape a second would drown the log."""

        def _answer_status(self, code: int) -> None:
            self._answer(code, board.status.model_dump_json(indent=2).encode() + b"\n", "application/json")

        def _answer(self, code: int, content: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
