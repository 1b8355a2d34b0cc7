"""One attempt at a real server, whatever that does: an outcome within the time, never an exception."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.webhooks.config import PostTimes
from gateway.webhooks.posting import MAX_RETRY_AFTER_S, HttpOutcome, outcome_of_status, post, retry_after_s
from tests.examples import examples
from tests.gateway.webhooks.certificates import self_signed
from tests.gateway.webhooks.hook_server import LOOPBACK, HookServer, Request, answers, drips, hook_server, sends
from tests.waiting import PATIENCE

TIMES = PostTimes(connect_s=1, read_s=0.5, total_s=1)
CONTEXT = ssl.create_default_context()
BODY = b'{"type":"alert"}'


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


def posted(server: HookServer, body: bytes = BODY, context: ssl.SSLContext | None = None) -> HttpOutcome:
    began_s = time.monotonic()
    outcome = post(
        f"{server.url}/hook?a=b", {"Idempotency-Key": "k/1"}, body, TIMES, context or CONTEXT, networks=(LOOPBACK,)
    )
    assert time.monotonic() - began_s < (TIMES.total_s + 1) * PATIENCE, "the time of all of it is bounded"
    return outcome


def test_what_is_posted_arrives_as_it_is(server: HookServer) -> None:
    assert posted(server) == HttpOutcome(True, "delivered", "200 OK")
    (request,) = server.requests
    assert (request.path, request.body, request.key) == ("/hook?a=b", BODY, "k/1")
    assert request.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("status", "reason", "is_final"),
    [
        ("200 OK", "delivered", True),
        ("204 No Content", "delivered", True),
        ("302 Found", "redirected", True),
        ("307 Temporary Redirect", "redirected", True),
        ("400 Bad Request", "refused", True),
        ("401 Unauthorized", "refused", True),
        ("404 Not Found", "refused", True),
        ("410 Gone", "refused", True),
        ("408 Request Timeout", "failed", False),
        ("425 Too Early", "failed", False),
        ("429 Too Many Requests", "failed", False),
        ("500 Internal Server Error", "failed", False),
        ("503 Service Unavailable", "failed", False),
    ],
)
def test_each_status_is_taken_tried_again_or_final(
    server: HookServer, status: str, reason: str, is_final: bool
) -> None:
    with hook_server() as other:
        server.behave = answers(status, f"Location: {other.url}/elsewhere")
        outcome = posted(server)
        assert (outcome.reason, outcome.is_final) == (reason, is_final)
        assert other.connections == 0, "no redirect is followed"


@pytest.mark.parametrize(
    "behaviour",
    [
        drips(b"HTTP/1.1 200 OK\r\n"),
        drips(b"HTTP/1.1 100 Continue\r\n\r\n", 0.005),
        drips(b"X", 0.2),
    ],
    ids=["headers", "continue", "bytes"],
)
def test_one_that_drips_gets_no_longer_than_one_that_says_nothing(server: HookServer, behaviour: object) -> None:
    server.behave = behaviour  # type: ignore[assignment]
    assert posted(server).reason in {"timeout", "failed"}


def test_one_that_hangs_is_given_up(server: HookServer) -> None:
    server.hang()
    assert posted(server).reason == "timeout"


def test_the_status_counts_whatever_becomes_of_the_body(server: HookServer) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"

    def behave(connection: socket.socket, request: Request) -> None:
        connection.sendall(head)
        drips(b"x" * 100)(connection, request)

    server.behave = behave
    assert posted(server).is_delivered
    server.behave = sends(head)
    assert posted(server).is_delivered, "also if it dies in the midst of it"


def test_a_huge_body_is_not_read(server: HookServer) -> None:
    sent = 0

    def flood(connection: socket.socket, _: object) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10_000):
            sent += connection.send(b"x" * 65536)

    server.behave = flood
    assert posted(server).is_delivered
    assert sent < 50 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 100,
        b"HTTP/1.1 99 \r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 30_000 + b"\r\n",
        b"HTTP/1.1 200 " + b"x" * 200_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "bytes", "status-99", "no-number", "ssh", "headers", "phrase"],
)
def test_what_is_no_http_is_tried_again(server: HookServer, data: bytes) -> None:
    server.behave = sends(data)
    outcome = posted(server)
    assert (outcome.is_final, outcome.is_delivered) == (False, False)
    assert len(outcome.detail) <= 200
    assert outcome.detail.isprintable()


@given(data=st.binary(max_size=300) | st.binary(max_size=200).map(lambda some: b"HTTP/1.1 2" + some))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_an_outcome(server: HookServer, data: bytes) -> None:
    server.behave = sends(data)
    assert posted(server).reason in {"delivered", "redirected", "refused", "failed", "timeout", "unreachable"}


def test_who_closes_before_reading_and_who_does_not_listen_is_unreachable(server: HookServer) -> None:
    server.behave = lambda connection, _: connection.close()
    assert not posted(server, b"x" * (4 << 20)).is_final
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    outcome = post(f"http://127.0.0.1:{port}/", {}, BODY, TIMES, CONTEXT, networks=(LOOPBACK,))
    assert (outcome.reason, outcome.is_final) == ("unreachable", False)
    assert post("http://no-such-host.invalid/", {}, BODY, TIMES, CONTEXT).reason == "unreachable"


def test_a_certificate_that_nobody_known_signed_is_not_taken(tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with hook_server(tls=context) as server:
        stranger = posted(server, context=ssl.create_default_context())
        assert (stranger.reason, stranger.is_final) == ("unreachable", False)
        assert "certificate" in stranger.detail.lower()
        assert server.requests == [], "nothing was said to it"
        assert posted(server, context=ssl.create_default_context(cafile=str(certificate))).is_delivered


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,400}", fullmatch=True))
def test_any_retry_after_is_bounded_or_none(text: str) -> None:
    found = retry_after_s(text, 1_800_000_000.0)
    assert found is None or 0 <= found <= MAX_RETRY_AFTER_S


def test_a_name_that_is_not_answered_ends_an_attempt_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])
    began_s = time.monotonic()
    try:
        assert post("http://hooks.example/", {}, BODY, TIMES, CONTEXT).reason == "timeout"
        assert time.monotonic() - began_s < (TIMES.total_s + 1) * PATIENCE
    finally:
        over.set()


@given(st.integers(100, 999))
def test_a_status_is_delivered_if_and_only_if_it_is_of_the_two_hundreds(status: int) -> None:
    outcome = outcome_of_status(status, "", None, 0)
    assert outcome.is_delivered == (200 <= status < 300)
    assert outcome.is_final == (200 <= status < 500 and status not in {408, 425, 429})
