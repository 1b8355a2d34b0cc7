"""The loopback endpoint: `/metrics` for Prometheus, `/health` (200 or 503) and `/status`, both JSON."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import CollectorRegistry

from edge_agent.errors import AgentError
from edge_agent.metrics import AgentCollector

State = Callable[[], dict[str, Any]]
TIMEOUT_S = 5.0
"""A connection gets so long in all, however slowly its request comes."""
MAX_CONNECTIONS = 8
"""So many are served at a time; others are closed at once."""


class _BoundedServer(ThreadingHTTPServer):
    """At most MAX_CONNECTIONS threads, each for TIMEOUT_S."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class names them
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(TIMEOUT_S, _hang_up, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: who breaks off a request is no reason for a traceback."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class AgentStatusServer:
    """Serves what `state` and `health` say: 503 while the latter's `healthy` is false, or the state cannot be read."""

    def __init__(self, port: int, state: State, health: State) -> None:
        registry = CollectorRegistry()
        registry.register(AgentCollector(state))

        class AgentRequestHandler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_S

            def do_GET(self) -> None:
                try:
                    self._serve()
                except AgentError as error:
                    self._answer(503, "application/json", json.dumps({"error": str(error)}).encode())

            def _serve(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))
                elif self.path == "/health":
                    answer = health()
                    code = 503 if answer["healthy"] is False else 200
                    self._answer(code, "application/json", json.dumps(answer).encode())
                elif self.path == "/status":
                    self._answer(200, "application/json", json.dumps(state()).encode())
                else:
                    self._answer(404, "text/plain", b"try /metrics, /health or /status\n")

            def _answer(self, code: int, content_type: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in http.server
                """Says nothing: a scrape every few seconds is no news."""

        self._server = _BoundedServer(("127.0.0.1", port), AgentRequestHandler)
        threading.Thread(target=self._server.serve_forever, args=(5.0,), name="status", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
