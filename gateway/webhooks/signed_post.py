"""One signed attempt at a webhook."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.webhooks.config import PostTimes, WebhookSettings
from gateway.webhooks.delivery import WebhookDelivery
from gateway.webhooks.errors import AddressForbidden
from gateway.webhooks.http_outcome import HttpOutcome, outcome_of_status
from gateway.webhooks.reachable import Network, is_address, is_reachable
from gateway.webhooks.secret_file import SecretFile
from gateway.webhooks.signature import signature_header
from waybill.settings import one_line

# For which addresses a name stands, asked within a time: the system's own call waits for as long as it likes.

Addresses = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` gives."""


class NameLookup:
    """`resolve` is called with a host and a port, in a thread of its own."""

    def __init__(self, resolve: Callable[[str, int], Addresses]) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[Addresses]] = {}

    def __call__(self, host: str, port: int, timeout_s: float) -> Addresses:
        """The addresses. Raises OSError: TimeoutError after `timeout_s`, else as the name's servers say."""
        if is_address(host):
            return self._resolve(host, port)
        return self._asked(host, port).result(timeout_s)

    def _asked(self, host: str, port: int) -> Future[Addresses]:
        with self._lock:
            if (running := self._running.get((host, port))) is not None:
                return running
            made = self._running[host, port] = Future[Addresses]()
        # not one of a pool: a process that ends does not wait for it
        asking = threading.Thread(target=self._ask, args=(host, port, made), name=f"looks up {host}", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:
            self._forget(host, port)
            # who waits for the same answer hears of it, too
            made.set_exception(OSError(f"no thread to look up {host}: {error}"))
        return made

    def _ask(self, host: str, port: int, answer: Future[Addresses]) -> None:
        try:
            found = self._resolve(host, port)
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            self._forget(host, port)
            answer.set_exception(error)
        else:
            self._forget(host, port)
            answer.set_result(found)

    def _forget(self, host: str, port: int) -> None:
        # what a name stands for changes: whoever comes later asks anew
        with self._lock:
            del self._running[host, port]


def _resolved(host: str, port: int) -> Addresses:
    return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


addresses_of: Final = NameLookup(_resolved)
"""By the resolver of this machine."""


# One POST to one server: bounded in time and size, whatever the server does. No redirects, and no proxy.

MAX_ANSWER_BYTES: Final = 16 << 10
"""So much of an answer's body is read, and thrown away: what counts is the status."""
_PORTS: Final = {"http": 80, "https": 443}
# between two pieces the time that is left is looked at
_SEND_BYTES: Final = 64 << 10


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    times: PostTimes,
    context: ssl.SSLContext | None,
    *,
    networks: Iterable[Network] = (),
) -> HttpOutcome:
    """What became of it. Raises nothing: whatever a server or the way to it does is an outcome.

    `context`: how the server's certificate is checked, for https. `networks`: whose addresses are reached although
    they are not public.
    """
    ends_s = time.monotonic() + times.total_s
    try:
        with _connected(url, times, ends_s, context, networks) as connection:
            _send(connection, _request(url, headers, body), ends_s)
            return _answer(connection, times, ends_s)
    except TimeoutError:
        return HttpOutcome(False, "timeout", f"no answer within {times.total_s:g} s, or {times.read_s:g} s of silence")
    except ssl.SSLError as error:
        return HttpOutcome(False, "unreachable", one_line(f"TLS: {error.reason or error}", 200))
    except AddressForbidden as error:
        return HttpOutcome(False, "forbidden", one_line(str(error), 300))
    except (OSError, UnicodeError) as error:
        return HttpOutcome(False, "unreachable", one_line(str(error) or type(error).__name__, 200))
    except (http.client.HTTPException, ValueError) as error:
        return HttpOutcome(False, "failed", one_line(f"what answers is no HTTP: {type(error).__name__}", 200))


def _connected(
    url: str, times: PostTimes, ends_s: float, context: ssl.SSLContext | None, networks: Iterable[Network]
) -> socket.socket:
    """A connection, with TLS for https. Raises AddressForbidden; OSError, TimeoutError too."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    until_s = min(ends_s, time.monotonic() + times.connect_s)
    connection = _tcp(host, parts.port or _PORTS[parts.scheme], until_s, networks)
    if parts.scheme != "https":
        return connection
    assert context is not None, "https is never spoken without a context"
    try:
        connection.settimeout(_left_s(until_s))
        # its time-out is of the whole handshake
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _tcp(host: str, port: int, until_s: float, networks: Iterable[Network]) -> socket.socket:
    """A connection to the first address of a host that may be reached and takes one, all of it until a moment."""
    found = addresses_of(host, port, _left_s(until_s))
    reachable = [one for one in found if is_reachable(str(one[4][0]), networks)]
    # not final: what a name stands for changes, and may be wrong for a moment
    if found and not reachable:
        raise AddressForbidden(host, str(found[0][4][0]))
    failure: OSError | None = None
    # all within one time: a name with many dead addresses gets no longer than one with a single one
    for family, kind, protocol, _, address in reachable:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left_s(until_s))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure or OSError(f"{host} has no address")


def _request(url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc
    lines = {"Host": host, **headers, "Content-Length": str(len(body)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    assert head.count("\n") == len(lines), "no value brings a line of its own"
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


def _send(connection: socket.socket, data: bytes, ends_s: float) -> None:
    # A server may answer and close before it has read all: then its answer is what counts.
    with suppress(BrokenPipeError, ConnectionResetError):
        for start in range(0, len(data), _SEND_BYTES):
            connection.settimeout(_left_s(ends_s))
            connection.sendall(data[start : start + _SEND_BYTES])


def _answer(connection: socket.socket, times: PostTimes, ends_s: float) -> HttpOutcome:
    # of a socket it asks for `makefile` alone
    stream: Any = _TimedStream(connection, times.read_s, ends_s)
    response = http.client.HTTPResponse(stream, method="POST")
    try:
        response.begin()
        outcome = outcome_of_status(
            response.status, one_line(response.reason, 100), response.getheader("Retry-After"), time.time()
        )
        # The status is the answer; to read on lets a server end its answer in order.
        with suppress(OSError, http.client.HTTPException, ValueError):
            response.read(MAX_ANSWER_BYTES)
        return outcome
    finally:
        response.close()


class _TimedStream(io.RawIOBase):
    """What comes over a connection: each piece within a time, and all of it until a moment."""

    def __init__(self, connection: socket.socket, read_s: float, ends_s: float) -> None:
        self._connection, self._read_s, self._ends_s = connection, read_s, ends_s

    def makefile(self, _: str) -> io.BufferedReader:
        """What `http.client` reads from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next piece. Raises OSError, TimeoutError too."""
        self._connection.settimeout(min(self._read_s, _left_s(self._ends_s)))
        return self._connection.recv_into(buffer)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


class SignedPost:
    """Called with a delivery, it makes one attempt. `secret` is the file that signs."""

    def __init__(self, settings: WebhookSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises SecretUnusable; OSError for authorities that cannot be read."""
        self._settings, self._clock = settings, clock
        self.secret = SecretFile(settings.secret_file)
        self._context = context_of(settings)
        self._agent = f"Waybill/{version('fleet-waybill')}"

    def __call__(self, delivery: WebhookDelivery) -> HttpOutcome:
        """What became of it. The time is that of this attempt, so whoever checks may refuse what is old."""
        timestamp_s = int(self._clock())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            # the same word twice: by the IETF's draft, and by Standard Webhooks
            "Idempotency-Key": delivery.key,
            "webhook-id": delivery.key,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature_header(self.secret(), delivery.key, timestamp_s, delivery.body),
        }
        one = self._settings
        return post(one.url, headers, delivery.body, one.times, self._context, networks=one.networks)


def context_of(settings: WebhookSettings) -> ssl.SSLContext | None:
    """How the server's certificate is checked; None for plain http. Raises OSError (which ssl.SSLError is)."""
    if not settings.url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
    # Said here, because what Python allows by default is its builder's choice.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
