"""The queue and the requests of one webhook. No other webhook waits for it.

Deliveries have no order: a repeated one may come after later ones.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import heapq
import hmac
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import structlog

from gateway.errors import AddressForbidden, SecretUnusable
from gateway.webhooks.config import BACKOFF_MAX_S, Network, WebhookSettings, is_reachable
from waybill.daemon.backoff import Backoff
from waybill.daemon.bounded_file import read_secret
from waybill.settings import file_fault, one_line

# Signatures of messages: HMAC-SHA256 of Standard Webhooks. Pure.

PREFIX: Final = "whsec_"
# a rotation needs two
MAX_SECRETS: Final = 4
_BYTES: Final = range(24, 65)


def secrets_of(text: str) -> tuple[bytes, ...]:
    """The secrets of a file's text, one a line. Raises ValueError, which never shows them."""
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found or len(found) > MAX_SECRETS:
        raise ValueError(f"it has {len(found)} lines, and one secret a line is needed, at most {MAX_SECRETS}")
    return tuple(_secret(line) for line in found)


def _secret(line: str) -> bytes:
    try:
        # strict, as skipped characters would give another secret than the receiver's
        raw = base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not line.startswith(PREFIX) or len(raw) not in _BYTES:
        raise ValueError(f"a secret is {PREFIX} and {_BYTES[0]} to {_BYTES[-1]} bytes in base64")
    return raw


def signature_header(secrets: Sequence[bytes], key: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret."""
    # with key and time, so that neither can be used for another message
    signed = f"{key}.{timestamp_s}.".encode() + body
    made = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return " ".join(f"v1,{one}" for one in made)


# Secrets of webhooks; never shown or logged.

_MAX_BYTES: Final = 4096
_LOG = structlog.get_logger("webhooks")


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets of a file, newest first. Raises SecretUnusable, which never shows them."""
    try:
        return secrets_of(read_secret(path, _MAX_BYTES))
    except OSError as error:
        raise SecretUnusable(f"{path}: cannot be read: {file_fault(error)}") from error
    except ValueError as error:
        raise SecretUnusable(f"{path}: {error}") from None


# One message to one webhook.

OUTCOMES: Final = (
    "delivered",
    "refused",
    "redirected",
    "expired",
    "queue-full",
    "unknown-webhook",
    "other-account",
)
"""How a delivery ends."""


@dataclass(slots=True)
class WebhookDelivery:
    """`key`: the idempotency key. `rules`: the rules that sent it. `taken_s`: when it was read, by the monotonic clock.

    `number`: unique among the deliveries of messages; -1: a digest.
    """

    key: str
    webhook: str
    tenant: str
    rules: tuple[str, ...]
    body: bytes
    taken_s: float = 0.0
    attempts: int = 0
    detail: str = ""
    number: int = -1


class EndedDelivery(NamedTuple):
    """How a delivery ended: `delivered`, or why it was given up."""

    delivery: WebhookDelivery
    reason: str

    @property
    def is_delivered(self) -> bool:
        return self.reason == "delivered"


# The meaning of a webhook's answer: delivered, retry or rejected. Pure.

MAX_RETRY_AFTER_S: Final = 3600.0
"""The longest `Retry-After` that is followed."""
_AGAIN: Final = frozenset({408, 425, 429})


RESULTS: Final = ("delivered", "refused", "redirected", "failed", "timeout", "unreachable", "forbidden")
"""The results of an attempt."""


class HttpOutcome(NamedTuple):
    """One attempt. `is_final`: accepted, or refused for good. Otherwise it is repeated, after at least `pause_s`.

    `reason`: one of RESULTS; `detail`: in words.
    """

    is_final: bool
    reason: str
    detail: str
    pause_s: float | None = None

    @property
    def is_delivered(self) -> bool:
        return self.reason == "delivered"


def outcome_of_status(status: int, phrase: str, retry_after: str | None) -> HttpOutcome:
    said = f"{status} {phrase}".strip()
    if 200 <= status < 300:
        return HttpOutcome(True, "delivered", said)
    # a redirect could send signed content to any other address
    if 300 <= status < 400:
        return HttpOutcome(True, "redirected", f"{said}: redirects are not followed; change the url")
    # the same message would get the same answer
    if 400 <= status < 500 and status not in _AGAIN:
        return HttpOutcome(True, "refused", said)
    return HttpOutcome(False, "failed", said, None if retry_after is None else retry_after_s(retry_after))


def retry_after_s(text: str) -> float | None:
    """The seconds of a `Retry-After` header, within bounds; None for a date, which few servers send."""
    text = text.strip()
    # Python refuses to read thousands of digits
    return min(float(text[:10]), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else None


# One POST, bounded in time and size, without redirects and proxy.

MAX_ANSWER_BYTES: Final = 16 << 10
"""The most that is read of an answer's body; only the status counts."""
_PORTS: Final = {"http": 80, "https": 443}


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
    context: ssl.SSLContext,
    *,
    networks: Iterable[Network] = (),
) -> HttpOutcome:
    """Make one attempt within `timeout_s`. Raises nothing: a failure of the server or the network is an outcome.

    `context` verifies the server's certificate. `networks`: non-public networks that are allowed.
    """
    found: list[HttpOutcome] = []
    target, ends_s = httpx.URL(url), time.monotonic() + timeout_s

    async def bounded(addresses: Sequence[str]) -> None:
        # httpx bounds each read, and a server that drips would never end
        async with asyncio.timeout(ends_s - time.monotonic()):
            async with httpx.AsyncClient(verify=context, trust_env=False, timeout=timeout_s) as client:
                requests = [
                    # to the address that was checked: a second lookup may give another one
                    client.build_request(
                        "POST",
                        target.copy_with(host=address),
                        headers={**headers, "Host": target.netloc.decode("ascii"), "Connection": "close"},
                        content=body,
                        extensions={"sni_hostname": target.raw_host.decode("ascii")},
                    )
                    for address in addresses
                ]
                await _send_to_first(client, requests, found.append)

    try:
        asyncio.run(bounded(_reachable(target, timeout_s, networks)))
    except (httpx.TimeoutException, TimeoutError):
        failure = HttpOutcome(False, "timeout", f"no answer within {timeout_s:g} s")
    except AddressForbidden as error:
        failure = HttpOutcome(False, "forbidden", one_line(str(error), 300))
    except (httpx.NetworkError, OSError, UnicodeError) as error:
        failure = HttpOutcome(False, "unreachable", one_line(str(error) or type(error).__name__, 200))
    except (httpx.HTTPError, ValueError) as error:
        failure = HttpOutcome(False, "failed", one_line(f"what answers is no HTTP: {type(error).__name__}", 200))
    # the status is the answer, whatever becomes of the body
    return found[0] if found else failure


async def _send_to_first(
    client: httpx.AsyncClient, requests: Sequence[httpx.Request], on_answer: Callable[[HttpOutcome], object]
) -> None:
    """Send to the first address that accepts a connection; `on_answer` gets the status before the body is read."""
    for number, request in enumerate(requests, 1):
        try:
            response = await client.send(request, stream=True)
            break
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if number == len(requests):
                raise
    phrase, retry_after = one_line(response.reason_phrase, 100), response.headers.get("Retry-After")
    on_answer(outcome_of_status(response.status_code, phrase, retry_after))
    size = 0
    # reading on lets the server end its answer normally
    async for piece in response.aiter_raw():
        if (size := size + len(piece)) >= MAX_ANSWER_BYTES:
            break


def _reachable(target: httpx.URL, timeout_s: float, networks: Iterable[Network]) -> list[str]:
    """The allowed addresses of a host. Raises OSError, TimeoutError too; AddressForbidden if there is none."""
    host, port = target.raw_host.decode("ascii"), target.port or _PORTS[target.scheme]
    answer: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.set_result([str(one[4][0]) for one in found])
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    # the resolver has no time-out, and a pool would wait for it at the end of the process
    threading.Thread(target=look_up, name=f"looks up {host}", daemon=True).start()
    addresses = answer.result(timeout_s)
    if not (reachable := [one for one in addresses if is_reachable(one, networks)]):
        raise AddressForbidden(host, addresses[0])
    return reachable


class SignedPost:
    """Called with a delivery, it makes one attempt. It reads the secret file each time, so that the file can be
    replaced.
    """

    def __init__(self, settings: WebhookSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError for authorities that cannot be read."""
        self._settings, self._clock = settings, clock
        self._context = context_of(settings)
        self._agent = f"Waybill/{version('fleet-waybill')}"

    def __call__(self, delivery: WebhookDelivery) -> HttpOutcome:
        """The timestamp is that of this attempt, so that a receiver may refuse old requests."""
        timestamp_s = int(self._clock())
        one = self._settings
        try:
            secrets = read_secrets(one.secret_file)
        except SecretUnusable as error:
            return HttpOutcome(False, "failed", one_line(str(error), 300))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            # the key twice: by the IETF's draft and by Standard Webhooks
            "Idempotency-Key": delivery.key,
            "webhook-id": delivery.key,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": signature_header(secrets, delivery.key, timestamp_s, delivery.body),
        }
        return post(one.url, headers, delivery.body, one.timeout_s, self._context, networks=one.networks)


def context_of(settings: WebhookSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
    # Python's default depends on how it was built
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


# When to retry a delivery, and when to give up. Pure.


def next_wait_s(
    outcome: HttpOutcome, attempts: int, age_s: float, settings: WebhookSettings, random: Callable[[], float]
) -> float | None:
    """Seconds until the next attempt of a delivery that is `age_s` old; None: it has ended.

    The wait doubles with jitter, or is as long as the server asks for. A delivery ends when its next attempt would come
    after `max_age_s`.
    """
    if outcome.is_final:
        return None
    wait_s = Backoff(settings.backoff_first_s, BACKOFF_MAX_S, random).delay_s(attempts)
    wait_s = max(wait_s, outcome.pause_s or 0.0)
    return wait_s if age_s + wait_s <= settings.max_age_s else None


MAX_WAITING: Final = 1000
"""Deliveries of one webhook that wait or are in flight; more go to the undelivered messages."""
_IDLE_S: Final = 1.0


class WebhookQueueFacts(NamedTuple):
    """State of a webhook. `last_problem`: of the last attempt, or ""."""

    unfinished: int
    oldest_s: float
    last_problem: str


class WebhookQueue:
    """The deliveries of one webhook. `attempt` makes one attempt; `on_ended` is called in a thread of the queue."""

    def __init__(
        self,
        name: str,
        settings: WebhookSettings,
        attempt: Callable[[WebhookDelivery], HttpOutcome],
        on_ended: Callable[[EndedDelivery], object],
        *,
        on_attempt: Callable[[str, HttpOutcome, float], object] = lambda _, __, ___: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._settings = name, settings
        self._attempt, self._on_ended, self._on_attempt, self._clock = attempt, on_ended, on_attempt, clock
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, WebhookDelivery]] = []
        self._numbers = count()
        self._flying: dict[int, WebhookDelivery] = {}
        self._resumes_s = 0.0
        self._is_stopping = False
        self._last_problem = ""
        self._threads = [
            threading.Thread(target=self._run, name=f"posts {name} {number}", daemon=True)
            for number in range(settings.parallel)
        ]

    @property
    def facts(self) -> WebhookQueueFacts:
        now_s = self._clock()
        with self._changed:
            held = [*(one for _, _, one in self._waiting), *self._flying.values()]
            oldest_s = max((now_s - one.taken_s for one in held), default=0.0)
            return WebhookQueueFacts(len(held), oldest_s, self._last_problem)

    @property
    def is_running(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, delivery: WebhookDelivery) -> bool:
        """Add a delivery, if there is room; returns whether there was."""
        with self._changed:
            # those in flight may come back to wait
            if len(self._waiting) + len(self._flying) >= MAX_WAITING:
                return False
            self._push(delivery, self._clock())
            return True

    def stop(self) -> None:
        """Begin no more attempts. Waiting deliveries have not ended: they come again after a start."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self, until_s: float) -> bool:
        """Wait for attempts in flight until a moment of the clock; returns whether all ended."""
        for thread in self._threads:
            thread.join(max(until_s - self._clock(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _push(self, delivery: WebhookDelivery, due_s: float) -> None:
        # the number orders deliveries that are due at the same moment
        heapq.heappush(self._waiting, (due_s, next(self._numbers), delivery))
        self._changed.notify()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            number, delivery = taken
            began_s = self._clock()
            delivery.attempts += 1
            try:
                outcome = self._attempt(delivery)
            except Exception as error:  # noqa: BLE001 - one message that cannot be sent must not end the way of all others
                _LOG.exception("an attempt failed with an internal error", webhook=self.name)
                outcome = HttpOutcome(False, "failed", f"internal error: {type(error).__name__}")
            self._on_attempt(self.name, outcome, self._clock() - began_s)
            if ended := self._settle(number, delivery, outcome):
                self._on_ended(ended)

    def _next(self) -> tuple[int, WebhookDelivery] | None:
        with self._changed:
            while not self._is_stopping:
                now_s = self._clock()
                # none is due during a pause that the server asked for
                due_s = max(self._waiting[0][0], self._resumes_s) if self._waiting else None
                if due_s is not None and due_s <= now_s:
                    _, number, delivery = heapq.heappop(self._waiting)
                    self._flying[number] = delivery
                    return number, delivery
                self._changed.wait(_IDLE_S if due_s is None else min(due_s - now_s, _IDLE_S))
            return None

    def _settle(self, number: int, delivery: WebhookDelivery, outcome: HttpOutcome) -> EndedDelivery | None:
        with self._changed:
            now_s = self._clock()
            del self._flying[number]
            problem = "" if outcome.is_delivered else outcome.detail
            if problem and not self._last_problem:
                _LOG.warning("a webhook refuses messages", webhook=self.name, problem=problem)
            self._last_problem, delivery.detail = problem, outcome.detail
            if outcome.pause_s:
                # the pause is for all deliveries
                self._resumes_s = max(self._resumes_s, now_s + outcome.pause_s)
            age_s = now_s - delivery.taken_s
            wait_s = next_wait_s(outcome, delivery.attempts, age_s, self._settings, random.random)
            if wait_s is None:
                return EndedDelivery(delivery, outcome.reason if outcome.is_final else "expired")
            self._push(delivery, now_s + wait_s)
            return None
