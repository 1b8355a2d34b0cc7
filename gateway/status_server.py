"""Metrics, health and status over HTTP, from a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel

from gateway.config import StatusEndpoint
from gateway.errors import AddressTaken
from gateway.status import GatewayStatus, SilentDevices

STUCK_AFTER_S = 60.0
"""A loop that has not turned for so long is no longer alive."""
MAX_CONNECTIONS = 16
"""So many requests are answered at a time; others are closed at once."""
MAX_REQUEST_S = 5.0
"""A connection that lasts longer, however busy, is closed."""
_LOG = structlog.get_logger("gateway")


class StatusHolder:
    """The newest status, set by the loop and read by the server's threads."""

    def __init__(self, status: GatewayStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = (status, clock())
        self.silent = SilentDevices(after_s=0)

    def set(self, status: GatewayStatus) -> None:
        """Set a newer status."""
        self._current = (status, self._clock())

    @property
    def status(self) -> GatewayStatus:
        """The newest status."""
        return self._current[0]

    @property
    def is_alive(self) -> bool:
        """Whether the loop turned lately."""
        return self._clock() - self._current[1] < STUCK_AFTER_S


class _BoundedServer(ThreadingHTTPServer):
    """At most MAX_CONNECTIONS threads; a client that breaks off is no reason for a traceback."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class names them
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._room.release()

    def service_actions(self) -> None:
        """Between two polls: close what has been open for too long, which a time-out for each read never does."""
        latest_s = time.monotonic() - MAX_REQUEST_S
        for request, opened_s in list(self._open.items()):
            if opened_s < latest_s:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        _LOG.warning("a request for the status failed", error=repr(sys.exc_info()[1]))


class StatusServer:
    """The server: `/metrics`, `/status`, `/silent`, `/health` (200 only when healthy) and `/alive`."""

    def __init__(self, settings: StatusEndpoint, registry: CollectorRegistry, board: StatusHolder) -> None:
        try:
            self._server = _BoundedServer((settings.host, settings.port), _handler(registry, board))
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise AddressTaken(f"status cannot be served on {where}: {error.strerror}; change [status]") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    @property
    def is_serving(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(registry: CollectorRegistry, board: StatusHolder) -> type[BaseHTTPRequestHandler]:
    shown: dict[str, Callable[[], tuple[bool, BaseModel]]] = {
        "/status": lambda: (True, board.status),
        "/silent": lambda: (True, board.silent),
        "/health": lambda: (board.status.healthy and board.is_alive, board.status),
        "/alive": lambda: (board.is_alive, board.status),
    }

    class GatewayRequestHandler(BaseHTTPRequestHandler):
        timeout = MAX_REQUEST_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
            elif path in shown:
                is_good, content = shown[path]()
                self._answer_json(200 if is_good else 503, content)
            else:
                self._answer(404, b"there are /metrics, /status, /silent, /health and /alive\n", "text/plain")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
            """Say nothing: a scrape a second would drown the log."""

        def _answer_json(self, code: int, shown: BaseModel) -> None:
            self._answer(code, shown.model_dump_json(indent=2).encode() + b"\n", "application/json")

        def _answer(self, code: int, content: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return GatewayRequestHandler
