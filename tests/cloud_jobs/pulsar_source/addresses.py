"""Admin addresses on loopback, behind which no cluster needs to be."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = "application/json"
STATS = {
    "lastConfirmedEntry": "3:9",
    "currentLedgerSize": 100,
    "ledgers": [{"ledgerId": 3, "entries": 0, "size": 0}],
    "cursors": {"s": {"markDeletePosition": "3:4", "properties": {}}},
}


_WRITTEN = {200: 204, 409: 409, 412: 412}
"""What a PUT or POST is answered for what `says` gives; anything else: 503."""


@dataclass
class Reply:
    """An HTTP answer; `endless` repeats the body until the other side goes away, `breaks_off` leaves its end out."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    endless: bool = False
    breaks_off: bool = False


def document(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def page(status: int) -> Reply:
    return Reply(status, b"<html><body>Please log in</body></html>", "text/html")


def cluster_says(path: str) -> Reply:
    """A cluster with one topic that is not partitioned, for any name."""
    if path.endswith("/clusters"):
        return document(["hq"])
    if path.endswith("/properties"):
        return document({"waybill-subscription-id": "4f"})
    return document({"partitions": 0} if path.endswith("/partitions") else STATS)


class FakeAdmin:
    """One address; `says` gives the reply to a path and can be set anew."""

    def __init__(self) -> None:
        self.says: Callable[[str], Reply] = cluster_says
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.connections: set[object] = set()
        self.url = ""


@contextmanager
def address() -> Iterator[FakeAdmin]:
    one = FakeAdmin()

    class AdminHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            one.asked.append(self.path)
            one.authorizations.append(self.headers.get("Authorization"))
            one.connections.add(self.client_address)
            reply = one.says(self.path)
            self.send_response(reply.status)
            if reply.content_type:
                self.send_header("Content-Type", reply.content_type)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if not reply.endless:
                self.send_header("Content-Length", str(len(reply.body) + reply.breaks_off))
            self.end_headers()
            try:
                self.wfile.write(reply.body)
                self.close_connection |= reply.breaks_off
                while reply.endless:
                    self.wfile.write(reply.body)
            except OSError:
                self.close_connection = True

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            one.asked.append(self.path)
            reply = one.says(self.path)
            status, body = _WRITTEN.get(reply.status, 503), reply.body if reply.status in {409, 412} else b""
            self.send_response(status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_PUT()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), AdminHandler)
    server.daemon_threads = True
    one.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield one
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
