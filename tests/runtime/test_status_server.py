"""The server of metrics, health and status over real HTTP."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.registry import CollectorRegistry
from structlog.testing import capture_logs

from tests.waiting import deadline_s
from waybill.daemon import status_server
from waybill.daemon.status_reader import MAX_ANSWER_BYTES, StatusUnavailable, fetch_status
from waybill.daemon.status_server import MAX_CONNECTIONS, MAX_REQUEST_S, StatusServer, json_answer, metrics_answer


@pytest.fixture
def server() -> Iterator[StatusServer]:
    def broken() -> status_server.HttpAnswer:
        raise KeyError("x")

    routes = {
        "/metrics": lambda: metrics_answer(CollectorRegistry()),
        "/good": lambda: json_answer(json.dumps({"healthy": True})),
        "/bad": lambda: json_answer("{}", is_good=False),
        "/broken": broken,
    }
    with StatusServer("127.0.0.1", 0, routes) as made:
        yield made


def fetch(server: StatusServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_each_path_answers_what_it_is_asked_with_its_code(server: StatusServer) -> None:
    assert fetch(server, "/good?pretty") == (200, b'{"healthy": true}\n')
    assert fetch(server, "/bad") == (503, b"{}\n")
    assert fetch(server, "/metrics")[0] == 200
    assert fetch(server, "/none") == (404, b"there are /bad, /broken, /good, /metrics\n")


def test_an_answer_that_fails_is_logged_and_the_next_is_served(server: StatusServer) -> None:
    with capture_logs() as lines:
        with pytest.raises(OSError):  # noqa: PT011 - the connection ends without an answer
            fetch(server, "/broken")
        assert fetch(server, "/good")[0] == 200
    assert [line["event"] for line in lines] == ["a request for the status failed"]


def test_it_ends_at_once_and_leaves_its_port() -> None:
    first = StatusServer("127.0.0.1", 0, {})
    with pytest.raises(OSError, match="in use"):
        StatusServer("127.0.0.1", first.port, {})
    assert first.is_serving
    first.close()
    StatusServer("127.0.0.1", first.port, {}).close()


def test_connections_that_send_a_byte_now_and_then_are_closed_in_time_and_make_room(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server, "MAX_REQUEST_S", 0.3)
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(MAX_CONNECTIONS)]
    answer, deadline = None, deadline_s(20)
    while answer is None and time.monotonic() < deadline:
        for one in slow:
            try:
                one.send(b"G")
            except OSError:
                continue
        try:
            answer = fetch(server, "/good")
        except OSError:
            continue
    for one in slow:
        one.close()
    assert answer == (200, b'{"healthy": true}\n')


def test_clients_that_never_finish_their_request_keep_nobody_out(server: StatusServer) -> None:
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(MAX_CONNECTIONS + 4)]
    for one in slow:
        one.send(b"G")
    began_s = time.monotonic()
    for _ in range(3):
        assert fetch(server, "/good") == (200, b'{"healthy": true}\n')
    assert time.monotonic() - began_s < MAX_REQUEST_S
    for one in slow:
        one.close()


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (b"localhost:9464", 200),
        (b"127.0.0.1", 200),
        (b"[::1]:9464", 200),
        (b"evil.example", 421),
        (b"evil.example:9464", 421),
        (b"[", 421),
    ],
)
def test_on_loopback_only_names_and_addresses_of_this_machine_are_served(
    server: StatusServer, host: bytes, code: int
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /good HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert b" %d " % code in connection.recv(4096).split(b"\r\n")[0]


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
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"", "closed connection"),
        (OK + b"[" * 100_000, "not JSON"),
        (OK + b"[]", "not a status"),
        (OK + b'{"a": 1e999}', "not JSON"),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n{}", "503"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{", "not JSON"),
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n{}", "302"),
    ],
)
def test_what_is_no_status_is_refused(asked: Callable[..., object], answer: bytes, why: str) -> None:
    with pytest.raises(StatusUnavailable, match=why):
        asked(answer)


def test_an_answer_without_end_is_refused_by_its_size(asked: Callable[..., object]) -> None:
    with pytest.raises(StatusUnavailable, match=f"{MAX_ANSWER_BYTES} are allowed"):
        asked(OK, repeat=b"x" * 100_000)


def test_where_nobody_listens_it_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StatusUnavailable, match="refused"):
        fetch_status("127.0.0.1", port, "status", timeout_s=10)
