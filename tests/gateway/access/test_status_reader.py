"""What an access daemon says of itself is asked for with one end for the whole answer."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gateway import status_answer
from gateway.access.config import AccessEndpoint
from gateway.access.status import AccessStatus, read_access_status
from gateway.errors import NoAnswer
from tests.waiting import PATIENCE
from waybill.daemon.status_server import StatusServer, json_answer


def test_what_a_daemon_serves_is_read() -> None:
    said = AccessStatus(region="eu", pid=7, started_at="now", enrolments={"enrolled": 3})
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(said.model_dump_json())}) as server:
        assert read_access_status(AccessEndpoint(port=server.port)) == said


@pytest.mark.parametrize("drip", [b" ", b"x" * 300_000])
def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, drip: bytes) -> None:
    monkeypatch.setattr(status_answer, "_TIMEOUT_S", 0.3)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
                while not is_over.wait(0.01):
                    try:
                        connection.sendall(drip)
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        began_s = time.monotonic()
        with pytest.raises(NoAnswer):
            read_access_status(AccessEndpoint(port=server.getsockname()[1]))
        is_over.set()
        thread.join(5)
    assert time.monotonic() - began_s < 5 * PATIENCE
