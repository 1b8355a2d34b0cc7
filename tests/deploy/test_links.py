"""A link carries, is cut with a word or in silence, heals, and slows; over a real proxy process and real sockets."""

import socket
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from deploy.local import CuttableLink, CuttableLinks, LinkControlError, free_port
from tests.waiting import PATIENCE


def echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:
            return


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuttableLink]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=echo, args=(server,), daemon=True).start()
        links = CuttableLinks(tmp_path_factory.mktemp("links"), {"one": server.getsockname()[1]})
        links.start()
        try:
            links.wait(20 * PATIENCE)
            yield links.links["one"]
        finally:
            links.stop()


@pytest.fixture
def client(link: CuttableLink) -> Iterator[socket.socket]:
    link.heal()
    link.delay(0)
    with connect(link) as connection:
        yield connection
    link.heal()
    link.delay(0)


def connect(link: CuttableLink) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=5)


def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    answered = b""
    while len(answered) < len(data):
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError
        answered += part
    return answered


def test_a_link_carries_every_byte_both_ways(link: CuttableLink, client: socket.socket) -> None:
    before = link.state()
    data = bytes(range(256)) * 4000
    assert ask(client, data) == data
    after = link.state()
    assert after.bytes_carried - before.bytes_carried == 2 * len(data)
    assert after.connections == 1


def test_a_cut_resets_connections_and_refuses_new_ones_until_it_is_healed(
    link: CuttableLink, client: socket.socket
) -> None:
    assert ask(client, b"before") == b"before"
    assert link.cut().cut
    with pytest.raises(ConnectionError):
        ask(client, b"during")
    with connect(link) as late, pytest.raises(ConnectionError):
        ask(late, b"during")
    link.heal()
    with connect(link) as again:
        assert ask(again, b"after") == b"after"


def test_a_silent_cut_keeps_the_connection_and_goes_on_where_it_stopped(
    link: CuttableLink, client: socket.socket
) -> None:
    assert ask(client, b"before") == b"before"
    assert link.cut(silent=True).silent
    client.sendall(b"held")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(10)
    client.settimeout(5)
    link.heal()
    assert client.recv(10) == b"held"


def test_a_delay_is_added_each_way(link: CuttableLink, client: socket.socket) -> None:
    link.delay(0.1)
    began = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - began >= 0.2


def test_a_link_that_nobody_carries_says_so() -> None:
    with pytest.raises(LinkControlError, match="link nowhere: its control on port"):
        CuttableLink(name="nowhere", port=1, target=2, control=free_port(), secret="").state()


def test_who_does_not_know_the_secret_of_the_stack_cuts_no_link(link: CuttableLink) -> None:
    with pytest.raises(LinkControlError, match="refused: the secret"):
        link.model_copy(update={"secret": "guessed"}).cut()
    assert not link.state().cut
