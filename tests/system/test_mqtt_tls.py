"""Sessions of TLS with a real regional broker: each connection shows a certificate that is good now."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.regional_broker import RegionalBroker
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionalBroker]:
    running = RegionalBroker(tmp_path_factory.mktemp("region"))
    yield running
    running.server.stop()


def test_a_tls_session_that_was_closed_in_order_is_not_resumed_after_the_end_of_its_certificate(
    broker: RegionalBroker, tmp_path: Path
) -> None:
    own = broker.ending(tmp_path, "acme/resumer", in_s=3)
    ends = time.time() + 3
    context = ssl.create_default_context(cafile=str(own.ca))
    context.load_cert_chain(str(own.certificate), str(own.key))
    with session_of(broker, context) as secure:
        assert (secure.version(), secure.session_reused) == ("TLSv1.3", False)
        # By close_notify: a server keeps no session that was cut off.
        secure.unwrap()
        session = secure.session
    with session_of(broker, context, session) as secure:
        assert not secure.session_reused
    wait_until(lambda: time.time() > ends + 1, 10)
    with pytest.raises((ssl.SSLError, ConnectionError)), session_of(broker, context, session):
        pytest.fail("a session is resumed whose certificate has ended")


def test_a_broker_speaks_no_tls_1_2_whose_sessions_it_could_not_help_resuming(broker: RegionalBroker) -> None:
    own = broker.authority.client("acme/resumer", "eu")
    context = ssl.create_default_context(cafile=str(own.ca))
    context.load_cert_chain(str(own.certificate), str(own.key))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"), session_of(broker, context):
        pytest.fail("TLS 1.2 is spoken")


@contextmanager
def session_of(
    broker: RegionalBroker, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    """One that the broker has let in; raises SSLError or ConnectionError where it does not."""
    plain = socket.create_connection(("127.0.0.1", broker.server.port), 10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure:
        # A ticket comes behind the handshake, with what is read first.
        secure.sendall(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc")
        if secure.recv(100)[:1] != b"\x20":
            raise ConnectionError("no CONNACK")
        yield secure
