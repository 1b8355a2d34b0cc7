"""Metrics, health and status over HTTP, in threads of its own, with bounded connections and time."""

from __future__ import annotations

import io
import ipaddress
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import structlog
from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

# Counters whose values come from elsewhere.


class MirroredCounter(Collector):
    """A counter whose value is counted elsewhere, since the start of the process. One thread sets it, any may collect.

    A gauge would show the same numbers, but `rate()` is not for gauges.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def set(self, count: float, *labels: str) -> None:
        assert len(labels) == len(self._labels), "each label has a value"
        self._counts[labels] = count

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in [*self._counts.items()]:
            family.add_metric(labels, count)
        yield family


class StatusGauges:
    """Gauges of the fields of a status: None is NaN, and a tuple is its length.

    `fields`: by field, the metric's name without `prefix`, and its help text.
    """

    def __init__(self, prefix: str, fields: Mapping[str, tuple[str, str]], registry: CollectorRegistry) -> None:
        self._gauges = {key: Gauge(f"{prefix}_{name}", text, registry=registry) for key, (name, text) in fields.items()}

    def set(self, status: object) -> None:
        for key, gauge in self._gauges.items():
            value = getattr(status, key)
            gauge.set(math.nan if value is None else len(value) if isinstance(value, tuple) else value)


def counted(counter: Counter, label: str = "") -> dict[str, int]:
    """The counts of a counter by the values of a label (default: the first); without labels under "". Zeros are left
    out.
    """
    found: dict[str, int] = {}
    for sample in (sample for metric in counter.collect() for sample in metric.samples):
        if sample.name.endswith("_total") and sample.value:
            word = sample.labels[label] if label else next(iter(sample.labels.values()), "")
            found[word] = found.get(word, 0) + int(sample.value)
    return found


MAX_CONNECTIONS = 32
"""Served at a time. One more closes the oldest one that has sent no request yet."""
MAX_REQUEST_S = 5.0
"""Of a whole connection: a time-out for each read would never end a slow one."""
MAX_HEAD_BYTES = 8 << 10
"""Of a request's first line and headers. The base class reads a hundred headers of 64 kB each."""
_DAY_S = 86_400.0
_LOG = structlog.get_logger("status")


class HttpAnswer(NamedTuple):
    code: int
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], HttpAnswer]]
"""The answer of each path; called in a thread of the server."""


def json_answer(body: str, *, is_good: bool = True) -> HttpAnswer:
    """A JSON answer: 200, or 503 if not `is_good`."""
    return HttpAnswer(200 if is_good else 503, "application/json", body.encode() + b"\n")


def metrics_answer(registry: CollectorRegistry) -> HttpAnswer:
    return HttpAnswer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))


class StatusServer:
    """Serves from its construction until `close`. Port 0: any free one, see `port`. Raises OSError."""

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        self._server = _BoundedServer((host, port), _handler(routes))
        # Nothing is done between two requests, so nothing has to wake up for it.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_DAY_S,), name="status", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class _BoundedServer(ThreadingHTTPServer):
    """At most MAX_CONNECTIONS threads, each for MAX_REQUEST_S."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, bool] = {}  # the oldest first; whether its request has come
        self._changing = threading.Lock()
        super().__init__(address, handler)
        self.is_loopback = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class names them
        # Asked before a thread is made for the request.
        with self._changing:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next((one for one, has_come in self._open.items() if not has_come), None)
                if oldest is None:
                    return False
                del self._open[oldest]
                _hang_up(oldest)
            self._open[request] = False
        return True

    def begin_answer(self, request: Any) -> bool:
        """Note that the request has come; whether the connection is still open."""
        with self._changing:
            if is_open := request in self._open:
                self._open[request] = True
        return is_open

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(MAX_REQUEST_S, _hang_up, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            with self._changing:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # who breaks off a request is no news
            _LOG.warning("a request for the status failed", error=repr(error))


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _is_of_this_machine(host: str | None) -> bool:
    """Whether a Host is localhost or an address. A web page that points its own name here (DNS rebinding) has
    neither.
    """
    try:
        name = urlsplit(f"//{host}").hostname if host else "localhost"
        return name == "localhost" or bool(ipaddress.ip_address(name or ""))
    except ValueError:
        return False


class _BoundedHead:
    """Limits the lines of a request to MAX_HEAD_BYTES."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self._left = MAX_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        """Raises HTTPException, which the base class answers with 431."""
        if self._left <= 0:
            raise HTTPException(f"a request has more than {MAX_HEAD_BYTES} bytes")
        line = self._stream.readline(min(size, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    no_such_path = HttpAnswer(404, "text/plain", f"there are {', '.join(sorted(routes))}\n".encode())

    class StatusRequestHandler(BaseHTTPRequestHandler):
        timeout = MAX_REQUEST_S
        server: _BoundedServer

        def setup(self) -> None:
            super().setup()
            self.rfile: Any = _BoundedHead(self.rfile)

        def do_GET(self) -> None:
            if not self.server.begin_answer(self.connection):
                return
            if self.server.is_loopback and not _is_of_this_machine(self.headers.get("Host")):
                self.send_error(421)
                return
            answer = routes.get(self.path.partition("?")[0], lambda: no_such_path)()
            self.send_response(answer.code)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            """Log nothing: scrapes come every few seconds."""

    return StatusRequestHandler
