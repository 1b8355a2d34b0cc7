"""The guard at the broker's socket: what the broker answers is what is said, also where it ends the connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.access.broker import SessionGuard
from gateway.errors import BrokerUnreachable, GuardRefused, SessionNotEnded

Broker = Callable[[bytes], SessionGuard]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A guard of a broker that gives one answer, and ends the connection."""
    path, threads = tmp_path / "sock", []

    def answering(answer: bytes) -> SessionGuard:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(1024)
                connection.sendall(answer)

        threads.append(thread := threading.Thread(target=serve))
        thread.start()
        return SessionGuard(path, "access@eu", "secret")

    yield answering
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("reason", [0x86, 0x87])
def test_a_broker_that_has_another_password_is_named_with_user_and_settings(broker: Broker, reason: int) -> None:
    guard = broker(bytes([0x20, 3, 0, reason, 0]))
    with pytest.raises(GuardRefused, match=r"refuses access@eu at .*sock.*broker\.guard_secret_file") as raised:
        guard.end("acme/bus-1")
    assert not isinstance(raised.value, SessionNotEnded), "it is so of every device"


@pytest.mark.parametrize("flag", [0, 1])
def test_who_was_there_is_known_though_the_broker_hears_no_farewell(broker: Broker, flag: int) -> None:
    assert broker(bytes([0x20, 3, flag, 0, 0])).was_there("acme/bus-1") is bool(flag)


def test_a_broker_that_is_away_is_not_reached(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        SessionGuard(tmp_path / "none", "access@eu", "secret").end("acme/bus-1")
