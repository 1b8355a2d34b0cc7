"""A status is read from whoever answers: whole and in time, or an error that says why not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from waybill.daemon.status_reader import MAX_ANSWER_BYTES, StatusUnavailable, fetch_status
from waybill.daemon.status_server import StatusServer, json_answer

OK = b"HTTP/1.0 200 OK\r\n\r\n"


class Answerer:
    """A process that answers each connection with the same pieces, as long as somebody takes them."""

    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._pieces = pieces
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            try:
                connection.recv(4096)  # what is left unread would reset the connection
                for piece in self._pieces():
                    connection.sendall(piece)
                    if piece == b" " and self._ended.wait(0.02):
                        return
            except OSError:
                return

    def close(self) -> None:
        self._ended.set()
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def asked() -> Iterator[Callable[..., object]]:
    made: list[Answerer] = []

    def ask(*pieces: bytes, repeat: bytes = b"", timeout_s: float = 10.0) -> object:
        def all_pieces() -> Iterator[bytes]:
            yield from pieces
            while repeat:
                yield repeat

        made.append(Answerer(all_pieces))
        return fetch_status("127.0.0.1", made[-1].port, "status", timeout_s=timeout_s)

    yield ask
    for one in made:
        one.close()


def test_what_a_status_server_says_is_read() -> None:
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer('{"a": [1.5, null]}')}) as server:
        assert fetch_status("127.0.0.1", server.port, "status", timeout_s=10) == {"a": [1.5, None]}
        with pytest.raises(StatusUnavailable, match="404"):
            fetch_status("127.0.0.1", server.port, "none", timeout_s=10)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"", "no HTTP"),
        (OK + b"[" * 100_000, "no JSON"),
        (OK + b"[]", "no JSON object"),
        (OK + b'{"a": 1e999}', "no JSON"),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n{}", "503"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}", "cut off"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}", "cut off"),
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "302"),
    ],
)
def test_what_is_no_status_is_refused(asked: Callable[..., object], answer: bytes, why: str) -> None:
    with pytest.raises(StatusUnavailable, match=why):
        asked(answer)


def test_an_answer_without_end_is_refused_by_its_size(asked: Callable[..., object]) -> None:
    with pytest.raises(StatusUnavailable, match=f"more than {MAX_ANSWER_BYTES}"):
        asked(OK, repeat=b"x" * 100_000)


def test_where_nobody_listens_it_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StatusUnavailable, match="refused"):
        fetch_status("127.0.0.1", port, "status", timeout_s=10)
