"""An S3 server that is lost at a chosen write: what was written before stays, and nothing comes after it."""

from __future__ import annotations

import http.client
import multiprocessing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

_HOST = "127.0.0.1"
_TIMEOUT_S = 30
_NEVER = -1
_HOP = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})
# delta-rs holds Python's lock while it waits for an answer: who answers is another process
_PROCESSES = multiprocessing.get_context("spawn")


class DyingStore:
    """Passes requests on to a store on a port, and counts the writes."""

    def __init__(self, port: int) -> None:
        self._state = _State(*(_PROCESSES.Value("i", value) for value in (0, _NEVER, _NEVER)))
        ours, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(port, self._state, theirs), daemon=True)
        self._process.start()
        self.endpoint = f"http://{_HOST}:{ours.recv()}"

    @property
    def writes(self) -> int:
        """How many came since `begin`."""
        return self._state.writes.value

    @property
    def is_lost(self) -> bool:
        """Whether no request is answered any more."""
        return self._state.is_lost

    def begin(self, *, lost_at: int | None = None, unanswered: int | None = None) -> None:
        """Counts from 0 again.

        `lost_at`: from the write with this number on no request is passed on or answered, as when the store, or the
        process that writes, is killed before it. `unanswered`: the write with this number is made and not answered,
        as when a connection is lost; everything else goes on.
        """
        numbers = (0, _NEVER if lost_at is None else lost_at, _NEVER if unanswered is None else unanswered)
        for value, number in zip(self._state.values, numbers, strict=True):
            value.value = number

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


class _State:
    def __init__(self, *values: Synchronized[int]) -> None:
        self.values = values
        self.writes, self.lost_at, self.unanswered = values

    @property
    def is_lost(self) -> bool:
        return 0 <= self.lost_at.value <= self.writes.value

    def number_of_write(self) -> int | None:
        """The number of a write that came; None: it came too late."""
        with self.writes.get_lock():
            if self.is_lost:
                return None
            self.writes.value += 1
            return self.writes.value - 1


def _serve(port: int, state: _State, started: Connection) -> None:
    server = _Server(port, state)
    started.send(server.server_address[1])
    server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, state: _State) -> None:
        super().__init__((_HOST, 0), _Handler)
        self.port, self.state = port, state

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up when they are not answered."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _read(self) -> None:
        if self.server.state.is_lost:
            self.close_connection = True
        else:
            self._pass_on(is_answered=True)

    def _write(self) -> None:
        number = self.server.state.number_of_write()
        if number is None:
            self.close_connection = True
        else:
            self._pass_on(is_answered=number != self.server.state.unanswered.value)

    do_GET = do_HEAD = _read  # noqa: N815 - as the base class calls them
    do_PUT = do_POST = do_DELETE = _write  # noqa: N815

    def _pass_on(self, *, is_answered: bool) -> None:
        body = self._body()
        there = http.client.HTTPConnection(_HOST, self.server.port, timeout=_TIMEOUT_S)
        try:
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP, "content-length"}:
                    there.putheader(name, value)
            if self.command in {"PUT", "POST"}:
                there.putheader("Content-Length", str(len(body)))
            there.endheaders(body)
            answer = there.getresponse()
            content = answer.read()
        finally:
            there.close()
        if not is_answered:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {*_HOP, "content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def log_message(self, *_: object) -> None:
        """Nothing: a walk makes thousands of requests."""
