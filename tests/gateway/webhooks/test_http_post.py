"""One attempt at a real server, whatever that does: an outcome within the time, never an exception."""

import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.webhooks.config import is_reachable
from gateway.webhooks.posting import (
    MAX_RETRY_AFTER_S,
    HttpOutcome,
    outcome_of_status,
    post,
    retry_after_s,
    secrets_of,
    signature_header,
)
from tests.examples import examples
from tests.gateway.webhooks.hook_server import LOOPBACK, HookServer, Request, answers, drips, hook_server, sends
from tests.waiting import PATIENCE


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The file of the certificate, and the context of a server that has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return certificate, context


TIMEOUT_S = 1.0
CONTEXT = ssl.create_default_context()
BODY = b'{"type":"alert"}'


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


def posted(server: HookServer, body: bytes = BODY, context: ssl.SSLContext | None = None) -> HttpOutcome:
    began_s = time.monotonic()
    outcome = post(
        f"{server.url}/hook?a=b", {"Idempotency-Key": "k/1"}, body, TIMEOUT_S, context or CONTEXT, networks=(LOOPBACK,)
    )
    assert time.monotonic() - began_s < (TIMEOUT_S + 1) * PATIENCE, "the time of all of it is bounded"
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
    [drips(b"HTTP/1.1 200 OK\r\n"), drips(b"HTTP/1.1 100 Continue\r\n\r\n", 0.005), drips(b"X", 0.2)],
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
    outcome = post(f"http://127.0.0.1:{port}/", {}, BODY, TIMEOUT_S, CONTEXT, networks=(LOOPBACK,))
    assert (outcome.reason, outcome.is_final) == ("unreachable", False)
    assert post("http://no-such-host.invalid/", {}, BODY, TIMEOUT_S, CONTEXT).reason == "unreachable"


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
    found = retry_after_s(text)
    assert found is None or 0 <= found <= MAX_RETRY_AFTER_S


def test_a_name_that_is_not_answered_ends_an_attempt_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])
    began_s = time.monotonic()
    try:
        assert post("http://hooks.example/", {}, BODY, TIMEOUT_S, CONTEXT).reason == "timeout"
        assert time.monotonic() - began_s < (TIMEOUT_S + 1) * PATIENCE
    finally:
        over.set()


@given(st.integers(100, 999))
def test_a_status_is_delivered_if_and_only_if_it_is_of_the_two_hundreds(status: int) -> None:
    outcome = outcome_of_status(status, "", None)
    assert outcome.is_delivered == (200 <= status < 300)
    assert outcome.is_final == (200 <= status < 500 and status not in {408, 425, 429})


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_reached(address: str) -> None:
    assert is_reachable(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104 - not bound to
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "::",
        "::1",
        "::127.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        # instance metadata and hosts of virtual machines, at Oracle, Azure, Alibaba and Google
        "192.0.0.192",
        "168.63.129.16",
        "100.100.100.200",
        "fd20:ce::254",
        "64:ff9b::a83f:8110",
        "::ffff:168.63.129.16",
        "64:ff9b:1::c000:c0",
        "192.88.99.1",
        "2002:a83f:8110::1",
        "2001:0:a83f:8110::1",
        "3fff::1",
        "no address",
        "",
    ],
)
def test_what_is_of_a_machine_a_link_or_a_site_is_not(address: str) -> None:
    assert not is_reachable(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_whatever_ipv6_carries_it(address: IPv4Address) -> None:
    plain, number = is_reachable(str(address)), int(address)
    assert is_reachable(str(IPv6Address((0xFFFF << 32) | number))) == plain
    assert is_reachable(str(IPv6Address((0x64FF9B << 96) | number))) == plain
    assert not is_reachable(str(IPv6Address((0x2002 << 112) | (number << 80) | 1))), "6to4"


@given(st.ip_addresses())
def test_a_network_that_is_named_is_reached_and_none_other(address: IPv4Address | IPv6Address) -> None:
    plain = getattr(address, "ipv4_mapped", None) or address
    assert is_reachable(str(address), (ip_network(plain),))
    elsewhere = IPv4Network("10.0.0.0/8"), IPv6Network("fc00::/7")
    if not any(plain.version == one.version and plain in one for one in elsewhere):
        assert is_reachable(str(address), elsewhere) == is_reachable(str(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1"])
def test_whatever_a_name_stands_for_no_connection_is_opened_that_is_not_allowed(host: str) -> None:
    with hook_server() as server:
        url = f"http://{host}:{server.listener.getsockname()[1]}/"
        outcome = post(url, {"Idempotency-Key": "k"}, b"{}", TIMEOUT_S, CONTEXT)
        assert (outcome.reason, outcome.is_final) == ("forbidden", False)
        assert "networks" in outcome.detail
        assert server.connections == 0
        assert post(url, {"Idempotency-Key": "k"}, b"{}", TIMEOUT_S, CONTEXT, networks=(LOOPBACK,)).is_delivered


def test_of_several_addresses_those_that_are_allowed_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with hook_server() as server:
        port = server.listener.getsockname()[1]
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        found = [(family, kind, 6, "", (host, port)) for host in ("10.0.0.1", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        outcome = post(
            f"http://hooks.example:{port}/", {"Idempotency-Key": "k"}, b"{}", TIMEOUT_S, CONTEXT, networks=(LOOPBACK,)
        )
        assert outcome == HttpOutcome(True, "delivered", "200 OK")


def test_the_answer_that_redirects_to_an_address_within_is_not_followed() -> None:
    with hook_server() as server, hook_server() as within:
        reply = f"HTTP/1.1 302 Found\r\nLocation: {within.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        server.behave = lambda connection, _: connection.sendall(reply)
        outcome = post(f"{server.url}/", {"Idempotency-Key": "k"}, b"{}", TIMEOUT_S, CONTEXT, networks=(LOOPBACK,))
        assert (outcome.reason, outcome.is_final, within.connections) == ("redirected", True, 0)


SECRET = b"0123456789abcdef01234567"


def text_of(*secrets: bytes) -> str:
    return "\n".join(f"whsec_{base64.b64encode(one).decode()}" for one in secrets)


def test_it_is_that_of_standard_webhooks() -> None:
    # the example of the specification's reference libraries
    (secret,) = secrets_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = signature_header([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(min_size=24, max_size=64), st.text(max_size=20), st.integers(0, 1 << 40), st.binary(max_size=200))
def test_it_is_right_for_this_key_time_and_body_alone(secret: bytes, key: str, stamp: int, body: bytes) -> None:
    def right(key: str, stamp: int, body: bytes) -> str:
        digest = hmac.new(secret, f"{key}.{stamp}.".encode() + body, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}"

    made = signature_header([secret], key, stamp, body)
    assert made == right(key, stamp, body)
    assert made not in {right(key, stamp + 1, body), right(key, stamp, body + b" "), right(key + "x", stamp, body)}


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hunter2", "whsec_!!!", text_of(b"short"), text_of(b"x" * 65), text_of(*[SECRET] * 5)]
)
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        secrets_of(text)
    assert not text.strip() or text.strip() not in str(refused.value)
