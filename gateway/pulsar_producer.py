"""Producers for Pulsar, which group messages; receipts come back through a wake-up of the loop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import _pulsar
import pulsar
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.config import BACKOFF_FIRST_S, BATCHES, REFUSED, GatewaySettings
from gateway.engine import Produce
from gateway.errors import PulsarUnreachable
from waybill.daemon.backoff import Backoff
from waybill.identity.sealing import Sealer, read_public_key
from waybill.pulsar.pulsar_client import close_quietly, open_pulsar_client

# Grouped sends to one partition, with one receipt per group.

OK = "Ok"
TOO_BIG = "MessageTooBig"
UNSENDABLE = "Unsendable"
"""The client cannot build the message."""
UNPROVEN = "Unproven"
"""The result of the group's last message does not cover this one, so it is sent again."""

GROUP_DELAY_S = 0.005
MAX_GROUP_BYTES = 512 << 10
BACKSTOP_MS = 1_000
"""The client sends a group by itself after this time if `flush` failed."""


class SendResult(NamedTuple):
    """The client's result for a group of messages; OK when all of them are persisted."""

    tokens: list[int]
    result: str


class GroupSender:
    """One partition's producer. `on_result` is called by the client's thread or by the caller's.

    A group ends with `flush`, or at `max_messages` or `max_bytes`. `flush_due` ends it when no other group is in
    flight, or after `delay_s`: so the busier Pulsar is, the larger the groups are.
    """

    def __init__(
        self,
        producer: Any,
        on_result: Callable[[SendResult], None],
        *,
        max_messages: int,
        max_bytes: int,
        delay_s: float,
    ) -> None:
        self._producer, self._on_result = producer, on_result
        self._max_messages, self._max_bytes, self._delay_s = max_messages, max_bytes, delay_s
        self._under_way: set[int] = set()
        self._number = 0
        self._due_s: float | None = None
        self._tokens: list[int] = []
        self._bytes = 0
        self._last: Produce | None = None

    @property
    def is_connected(self) -> bool:
        return bool(self._producer.is_connected())

    def send(self, message: Produce) -> None:
        """Add a message to the group. The client gets it with the next one, or at the group's end."""
        size = len(message.payload)
        if self._bytes + size > self._max_bytes:
            self.flush()
        # One message behind: only the group's last one has the callback.
        if self._last is not None and self._try_hand_over(self._last, None):
            self._tokens.append(self._last.token)
        self._last = message
        self._bytes += size
        if len(self._tokens) + 1 >= self._max_messages:
            self.flush()

    @property
    def due_s(self) -> float | None:
        """When the group ends at the latest; None if there is none."""
        return self._due_s if self._last is not None else None

    def flush_due(self, now_s: float) -> None:
        """End the group if no other is in flight or if it is old enough; to be called once a turn of the loop."""
        if self._last is None:
            return
        if self._due_s is None:
            self._due_s = now_s + self._delay_s
        # While a group is in flight the next one grows: a busy gateway is cheap, an idle one fast.
        if not self._under_way or now_s >= self._due_s:
            self.flush()

    def flush(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        tokens, self._tokens, self._bytes, self._due_s = self._tokens, [], 0, None
        self._number += 1
        self._under_way.add(self._number)
        if not self._try_hand_over(last, partial(self._on_answer, self._number, [*tokens, last.token])):
            self._under_way.discard(self._number)
            # The others were sent without a callback, so their result is unknown.
            if tokens:
                self._on_result(SendResult(tokens, UNPROVEN))
        # If it raises, the client sends its messages later by itself.
        with contextlib.suppress(RuntimeError, pulsar.PulsarException):
            self._producer._producer.flush_async(None)  # noqa: SLF001 - the public `flush` waits for the answer

    def _try_hand_over(self, message: Produce, callback: Callable[[Any, Any], None] | None) -> bool:
        """Give a message to the client. If the client refuses it, its result comes at once."""
        try:
            # The public `send_async` takes three times as long to make a message.
            self._producer._producer.send_async(_made(message), callback)  # noqa: SLF001
        except pulsar.PulsarException as error:
            self._on_result(SendResult([message.token], type(error).__name__))
        except Exception:  # noqa: BLE001 - what the client cannot send, it cannot send the next time either
            self._on_result(SendResult([message.token], UNSENDABLE))
        else:
            return True
        return False

    def _on_answer(self, number: int, tokens: list[int], result: Any, message_id: Any) -> None:
        # First, because the woken loop looks whether a group is in flight. A set needs no lock for this.
        self._under_way.discard(number)
        # The last message's batch index says how many messages were before it in its batch; fewer prove less.
        if result == pulsar.Result.Ok and len(tokens) > 1 and message_id.batch_index() < len(tokens) - 1:
            self._on_result(SendResult(tokens[:-1], UNPROVEN))
            tokens = tokens[-1:]
        self._on_result(SendResult(tokens, result.name))


def _made(message: Produce) -> Any:
    """The client's message. Raises TypeError if it cannot be built."""
    made = _pulsar.MessageBuilder().content(message.payload).properties(message.properties)
    # The client treats an empty key as none.
    return (made.partition_key(message.key) if message.key else made).build()


# One Pulsar connection per tenant, so that a blocked tenant does not block others.

# Sealed batches: unreadable for Pulsar and its operators.


class Sealing:
    """A sealer for each tenant with a `sealing_key`. Raises SealingKeyError."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._of = {
            # The private key is kept nowhere else, so after this process only the tenant can open its batches.
            tenant: Sealer(read_public_key(one.sealing_key), X25519PrivateKey.generate(), tenant, settings.region)
            for tenant, one in settings.tenants.items()
            if one.sealing_key is not None
        }

    def sealed(self, effect: Produce) -> Produce:
        """The message, sealed if its tenant has a key."""
        sealer = self._of.get(effect.properties["tenant"])
        return effect if sealer is None else replace(effect, payload=sealer.seal(effect.payload))


_MAX_TEXT = 500


class _Serving:
    """One tenant's producers, when to open them again, and why there are none; "" while there are."""

    def __init__(self, producer: PulsarProducer, backoff: Backoff, open_at_s: float) -> None:
        self.producer, self.backoff, self.open_at_s = producer, backoff, open_at_s
        self.problem = "not opened yet"


class TenantProducers:
    """One Pulsar connection per tenant, so that a blocked tenant does not block others.

    `random` gives numbers from 0 to 1. Raises SealingKeyError.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        wake: Callable[[], None],
        client: NewClient,
        in_background: InBackground,
        *,
        random: Callable[[], float],
        now_s: float,
    ) -> None:
        pulsar = settings.pulsar
        self._shared = pulsar.tenant
        self._sealing = Sealing(settings)
        self._of = {
            tenant: _Serving(
                PulsarProducer(settings, wake, client, in_background, pulsar_tenant=tenant),
                Backoff(BACKOFF_FIRST_S, pulsar.backoff_max_s, random),
                now_s,
            )
            for tenant in settings.pulsar_tenants
        }

    @property
    def is_open(self) -> bool:
        return any(one.producer.is_open for one in self._of.values())

    @property
    def connected(self) -> frozenset[str]:
        """The Pulsar tenants whose producers of batches are connected now."""
        return frozenset(tenant for tenant, one in self._of.items() if one.producer.is_connected)

    @property
    def is_connected(self) -> bool:
        return any(one.producer.is_connected for one in self._of.values())

    @property
    def problem(self) -> str:
        """Which tenants are not served, and why the first is not; "" while all are."""
        unserved = {tenant: one for tenant, one in self._of.items() if not one.producer.is_connected}
        if not unserved:
            return ""
        why = next(iter(unserved.values())).problem or "no connection"
        return f"Pulsar accepts nothing from {', '.join(unserved)}: {why}"[:_MAX_TEXT]

    def open_due(self, now_s: float) -> None:
        for one in self._of.values():
            if not one.producer.is_open and not one.producer.is_opening and now_s >= one.open_at_s:
                one.producer.start_opening()

    def finish_opening(self, clock: Callable[[], float]) -> list[tuple[str, PulsarUnreachable | None]]:
        """The tenants whose attempts have ended, each with the error if it failed.

        `clock`: an attempt may have taken its whole time.
        """
        ended: list[tuple[str, PulsarUnreachable | None]] = []
        for tenant, one in self._of.items():
            try:
                if not one.producer.try_finish_opening():
                    continue
            except PulsarUnreachable as error:
                one.problem = str(error)
                one.open_at_s = clock() + one.backoff.take_delay_s()
                ended.append((tenant, error))
            else:
                one.problem = ""
                one.backoff.reset()
                ended.append((tenant, None))
        return ended

    def is_open_for(self, tenant: str) -> bool:
        return self._of[self._shared or tenant].producer.is_open

    def send(self, effect: Produce) -> None:
        """Send a message; `take_receipts` gets its receipt."""
        self._of[self._shared or effect.properties["tenant"]].producer.send(self._sealing.sealed(effect))

    @property
    def next_due_s(self) -> float | None:
        """When a group must leave at the latest; None if there is none."""
        due = (one.producer.next_due_s for one in self._of.values())
        return min((at_s for at_s in due if at_s is not None), default=None)

    def flush_due(self, now_s: float) -> None:
        for one in self._of.values():
            one.producer.flush_due(now_s)

    def take_receipts(self) -> list[Receipt]:
        return [receipt for one in self._of.values() for receipt in one.producer.take_receipts()]

    def close(self, timeout_s: float) -> None:
        """Close all clients. Those that take longer are left to the end of the process."""
        for one in self._of.values():
            one.producer.close(timeout_s / len(self._of))


REFUSED_TOGETHER = "RefusedTogether"
"""Pulsar permanently refused a group, so each of its messages is sent again alone."""
_PERMANENT = {TOO_BIG, UNSENDABLE, "InvalidMessage"}
# After these the client's producer does not come back by itself; after others it reconnects.
_REOPEN = {"AlreadyClosed", "ProducerFenced", "TopicTerminated", "TopicNotFound", "NotConnected"}
NewClient = Callable[..., Any]
"""`open_pulsar_client`, or what takes its place in a test."""
new_client: NewClient = open_pulsar_client


class Receipt(NamedTuple):
    """Pulsar's answer: `result` is "Ok" when the message is persisted, else the client's word for the failure."""

    token: int
    result: str
    refused: bool = False

    @property
    def is_permanent(self) -> bool:
        """Whether the same message would fail again."""
        return self.result in _PERMANENT

    @property
    def ok(self) -> bool:
        return self.result == OK


InBackground = Callable[[Callable[[], None]], None]
_CLOSE_S = 5.0


def in_thread(work: Callable[[], None]) -> None:
    """Run in a daemon thread, which does not keep the process from ending."""
    threading.Thread(target=work, name="pulsar-open", daemon=True).start()


class _Opening:
    """An attempt to open a client and its producers. Nothing changes after `ended` is set."""

    def __init__(self) -> None:
        self.client: Any = None
        self.senders: tuple[list[GroupSender], GroupSender] | None = None
        self.error: PulsarUnreachable | None = None
        self.is_cancelled = False
        self.ended = threading.Event()


class PulsarProducer:
    """Producers of one Pulsar tenant's topics, opened in the background, because a lost cluster takes minutes to fail.

    Each partition has its own producer, because messages are grouped. The client's thread only appends results and
    wakes the loop. There are never more results than messages in flight, so the queue needs no bound. `send` does not
    block, because the gateway's window is smaller than a producer's.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        wake: Callable[[], None],
        client: NewClient = new_client,
        in_background: InBackground = in_thread,
        *,
        pulsar_tenant: str,
    ) -> None:
        self._pulsar_tenant = pulsar_tenant
        self._settings, self._wake, self._new_client = settings, wake, client
        self._in_background = in_background
        self._opening: _Opening | None = None
        self._client: Any = None
        self._batches: list[GroupSender] = []
        self._refused: GroupSender | None = None
        self._results: deque[tuple[SendResult, bool]] = deque()
        self._alone: set[int] = set()
        self.wants_reopening = False

    @property
    def is_open(self) -> bool:
        """Whether there are producers; they may be reconnecting."""
        return bool(self._batches) and not self.wants_reopening

    @property
    def is_opening(self) -> bool:
        return self._opening is not None

    @property
    def is_connected(self) -> bool:
        """Whether every producer of batches is connected now."""
        return bool(self._batches) and all(sender.is_connected for sender in self._batches)

    def start_opening(self) -> None:
        """Begin to connect and to create the producers; the loop is woken at the end."""
        former = self._release()
        self._opening = opening = _Opening()
        self._in_background(lambda: self._open(opening, former))

    def try_finish_opening(self) -> bool:
        """Use the result of an attempt that has ended; whether one has. Raises PulsarUnreachable."""
        opening = self._opening
        if opening is None or not opening.ended.is_set():
            return False
        self._opening = None
        if opening.error is not None:
            raise opening.error
        # None: an unexpected error ended the thread, which ends the process.
        if opening.senders is None:
            return False
        self._client, (self._batches, self._refused) = opening.client, opening.senders
        self.wants_reopening = False
        return True

    def send(self, effect: Produce) -> None:
        """Add a message to its group; `take_receipts` gets its receipt."""
        sender = self._refused if effect.refused else self._sender_of(effect.key)
        if sender is None:
            self._add_result(SendResult([effect.token], "NotConnected"), effect.refused)
        elif effect.refused or effect.token in self._alone:
            sender.flush()
            sender.send(effect)
            sender.flush()
        else:
            sender.send(effect)

    @property
    def next_due_s(self) -> float | None:
        return min((sender.due_s for sender in self._batches if sender.due_s is not None), default=None)

    def flush_due(self, now_s: float) -> None:
        for sender in self._batches:
            sender.flush_due(now_s)

    def take_receipts(self) -> list[Receipt]:
        receipts: list[Receipt] = []
        while self._results:
            # The client's thread may append meanwhile; a deque needs no lock for this.
            (tokens, result), refused = self._results.popleft()
            if result in _REOPEN and not refused:  # dead letters never interrupt the batches
                self.wants_reopening = True
            if len(tokens) > 1 and result in _PERMANENT:
                self._alone.update(tokens)
                result = REFUSED_TOGETHER
            else:
                self._alone.difference_update(tokens)
            receipts += [Receipt(token, result, refused) for token in tokens]
        return receipts

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Close the client. If that takes longer, it is left to the end of the process."""
        client = self._release()
        opening, self._opening = self._opening, None
        if opening is None:
            _close_client(client, timeout_s)
            return
        # In this order, and in `_open` the other way round, so that one of the two closes the client.
        opening.is_cancelled = True
        _close_client(opening.client, timeout_s)
        # A thread inside the client would abort the ending process.
        opening.ended.wait(timeout_s)

    def _release(self) -> Any:
        """Give up the client and return it. Waiting messages are handed over first, so that each gets a receipt."""
        for sender in self._batches:
            sender.flush()
        client, self._client, self._batches, self._refused = self._client, None, [], None
        return client

    def _open(self, opening: _Opening, former: Any) -> None:
        """The thread of an attempt. It first closes the former client, whose threads and connections would stay."""
        try:
            _close_client(former, _CLOSE_S)
            opening.client = client = self._open_client()
            if not opening.is_cancelled:
                batches = self._settings.topic(self._pulsar_tenant, BATCHES)
                # A partitioned producer does not say which messages are in one batch.
                partitions = [self._sender(client, topic) for topic in client.get_topic_partitions(batches)]
                letters = self._settings.topic(self._pulsar_tenant, REFUSED)
                refused = self._sender(client, letters, refused=True)
                opening.senders = partitions, refused
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            address = self._settings.pulsar.service_url
            # Pulsar does not answer unknown clients, so the client reports only a timeout.
            access = self._settings.pulsar.access
            why = access.token_problem(time.time()) or error
            if isinstance(error, pulsar.ConnectError) and access.tls_ca is not None:
                why = f"{why}: it does not answer, or no authority in {access.tls_ca} signed its certificate"
            opening.error = PulsarUnreachable(f"no producer from {address}: {why}")
        finally:
            if opening.senders is None:
                _close_client(opening.client, _CLOSE_S)
            opening.ended.set()
            self._wake()

    def _sender_of(self, key: str) -> GroupSender | None:
        """The producer of a device's partition."""
        return self._batches[crc32(key.encode()) % len(self._batches)] if self._batches else None

    def _add_result(self, result: SendResult, refused: bool) -> None:
        # In this order, because a loop that is woken too early goes back to its wait.
        self._results.append((result, refused))
        self._wake()

    def _sender(self, client: Any, topic: str, *, refused: bool = False) -> GroupSender:
        settings = self._settings.pulsar
        producer = client.create_producer(
            topic,
            send_timeout_millis=int(settings.send_timeout_s * 1000),
            # More than the loop ever has in flight, so `send` never blocks.
            max_pending_messages=2 * self._settings.mqtt.receive_maximum + 1,
            block_if_queue_full=True,
            batching_enabled=True,
            # Larger than any group, so that only `flush` sends a batch.
            batching_max_publish_delay_ms=BACKSTOP_MS,
            batching_max_messages=2 * settings.batching_max_messages + 1,
            batching_max_allowed_size_in_bytes=2 * max(MAX_GROUP_BYTES, self._settings.max_batch_bytes),
            properties={"gateway": self._settings.name},
        )
        return GroupSender(
            producer,
            lambda result: self._add_result(result, refused),
            max_messages=settings.batching_max_messages,
            max_bytes=MAX_GROUP_BYTES,
            delay_s=GROUP_DELAY_S,
        )

    def _open_client(self) -> Any:
        settings = self._settings.pulsar
        return self._new_client(settings.service_url, settings.access, timeout_s=settings.operation_timeout_s)


def _close_client(client: Any, timeout_s: float) -> None:
    """Close a client in a thread, because closing waits for the cluster."""
    if client is not None:
        closing = threading.Thread(target=close_quietly, args=(client,), name="pulsar-close", daemon=True)
        closing.start()
        closing.join(timeout_s)
