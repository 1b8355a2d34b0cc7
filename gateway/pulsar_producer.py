"""Asynchronous producers for Pulsar, and receipts that come back through a wake-up of the loop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import pulsar

from gateway.config import GatewaySettings
from gateway.engine import Produce
from gateway.errors import PulsarUnreachable
from gateway.pulsar_groups import BACKSTOP_MS, OK, TOO_BIG, UNSENDABLE, GroupSender, SendResult
from waybill.pulsar.pulsar_client import close_quietly, open_pulsar_client

REFUSED_TOGETHER = "RefusedTogether"
"""Of several messages together Pulsar will never take one: each of them is sent again, alone."""
_PERMANENT = {TOO_BIG, UNSENDABLE, "InvalidMessage"}
# After these the client's producer does not come back by itself; after others it reconnects.
_REOPEN = {"AlreadyClosed", "ProducerFenced", "TopicTerminated", "TopicNotFound", "NotConnected"}
NewClient = Callable[..., Any]
"""`open_pulsar_client`, or what takes its place in a test."""
new_client: NewClient = open_pulsar_client


class Receipt(NamedTuple):
    """How Pulsar answered: `result` is "Ok" when the message is persisted, else the client's word for the failure."""

    token: int
    result: str
    refused: bool = False

    @property
    def is_permanent(self) -> bool:
        """Whether the same message would fail again, however often it is sent."""
        return self.result in _PERMANENT

    @property
    def ok(self) -> bool:
        """Whether the message is safe."""
        return self.result == OK


InBackground = Callable[[Callable[[], None]], None]
_CLOSE_S = 5.0


def in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread of its own, which does not keep the process from ending."""
    threading.Thread(target=work, name="pulsar-open", daemon=True).start()


class _Opening:
    """An attempt to get a client and its producers. Once `ended` is set nobody changes it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.senders: tuple[list[GroupSender], GroupSender] | None = None
        self.error: PulsarUnreachable | None = None
        self.is_cancelled = False
        self.ended = threading.Event()


class PulsarProducer:
    """Producers of one Pulsar tenant's topics, opened in the background: a cluster that is away takes minutes to fail.

    Each partition has a producer of its own, since messages go in groups (`gateway.pulsar_groups`). The client's thread
    appends what became of a group and wakes the loop, no more. There are never more results than messages in flight, so
    the queue needs no other bound. `send` does not block: the window of the gateway is smaller than a producer's.
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
        """Whether there are producers (which may be reconnecting by themselves)."""
        return bool(self._batches) and not self.wants_reopening

    @property
    def is_opening(self) -> bool:
        """Whether an attempt was begun, and `try_finish_opening` has not said how it ended."""
        return self._opening is not None

    @property
    def is_connected(self) -> bool:
        """Whether every producer of batches has a connection at this moment."""
        return bool(self._batches) and all(sender.is_connected for sender in self._batches)

    def start_opening(self) -> None:
        """Begin to connect and to create the producers; the loop is woken when that has ended."""
        former = self._release()
        self._opening = opening = _Opening()
        self._in_background(lambda: self._open(opening, former))

    def try_finish_opening(self) -> bool:
        """Take over what an attempt brought that has ended; whether it did. Raises PulsarUnreachable."""
        opening = self._opening
        if opening is None or not opening.ended.is_set():
            return False
        self._opening = None
        if opening.error is not None:
            raise opening.error
        # None: something unexpected ended the thread, and that ends the process.
        if opening.senders is None:
            return False
        self._client, (self._batches, self._refused) = opening.client, opening.senders
        self.wants_reopening = False
        return True

    def send(self, effect: Produce) -> None:
        """Take a message for its group, which leaves with `flush`; its receipt comes by `take_receipts`."""
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
        """When a group is to leave at the latest; None while there is none."""
        return min((sender.due_s for sender in self._batches if sender.due_s is not None), default=None)

    def flush_due(self, now_s: float) -> None:
        """Let go the groups that are due."""
        for sender in self._batches:
            sender.flush_due(now_s)

    def take_receipts(self) -> list[Receipt]:
        """The receipts that came since the last call."""
        receipts: list[Receipt] = []
        while self._results:
            # The client's thread may append meanwhile: a deque needs no lock for one end each.
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
        """Close the client; whatever it takes longer than `timeout_s` is left to the end of the process."""
        client = self._release()
        opening, self._opening = self._opening, None
        if opening is None:
            _close_client(client, timeout_s)
            return
        # In this order, as `_open` does it the other way round: one of the two closes the client.
        opening.is_cancelled = True
        _close_client(opening.client, timeout_s)
        # A thread that is still inside the client when the process ends would abort it.
        opening.ended.wait(timeout_s)

    def _release(self) -> Any:
        """The client, which is this one's no more. What it was not given yet it is given, so that it has a receipt."""
        for sender in self._batches:
            sender.flush()
        client, self._client, self._batches, self._refused = self._client, None, [], None
        return client

    def _open(self, opening: _Opening, former: Any) -> None:
        """The thread of an attempt. The client before it is closed: its threads and connections would stay."""
        try:
            _close_client(former, _CLOSE_S)
            opening.client = client = self._open_client()
            if not opening.is_cancelled:
                batches = self._settings.topic(self._pulsar_tenant, self._settings.pulsar.batches)
                # Not by a partitioned producer: it does not say which messages go together.
                partitions = [self._sender(client, topic) for topic in client.get_topic_partitions(batches)]
                letters = self._settings.topic(self._pulsar_tenant, self._settings.pulsar.refused)
                refused = self._sender(client, letters, refused=True)
                opening.senders = partitions, refused
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            address = self._settings.pulsar.service_url
            # Whom it does not know Pulsar does not answer: the client has nothing but a time-out to say.
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
        """All of a device goes to one partition."""
        return self._batches[crc32(key.encode()) % len(self._batches)] if self._batches else None

    def _add_result(self, result: SendResult, refused: bool) -> None:
        # In this order: a loop that is woken before the result is there goes back to its wait.
        self._results.append((result, refused))
        self._wake()

    def _sender(self, client: Any, topic: str, *, refused: bool = False) -> GroupSender:
        settings = self._settings.pulsar
        producer = client.create_producer(
            topic,
            send_timeout_millis=int(settings.send_timeout_s * 1000),
            # More than the loop ever has in flight, so it never blocks.
            max_pending_messages=2 * self._settings.mqtt.receive_maximum + 1,
            block_if_queue_full=True,
            batching_enabled=True,
            # Beyond what a group has: a batch is sent by the end of its group, and by nothing else.
            batching_max_publish_delay_ms=BACKSTOP_MS,
            batching_max_messages=2 * settings.batching_max_messages + 1,
            batching_max_allowed_size_in_bytes=2 * max(settings.batching_max_bytes, self._settings.max_batch_bytes),
            properties={"gateway": self._settings.name},
        )
        return GroupSender(
            producer,
            lambda result: self._add_result(result, refused),
            max_messages=settings.batching_max_messages,
            max_bytes=settings.batching_max_bytes,
            delay_s=settings.batching_delay_ms / 1000,
        )

    def _open_client(self) -> Any:
        settings = self._settings.pulsar
        return self._new_client(settings.service_url, settings.access, timeout_s=settings.operation_timeout_s)


def _close_client(client: Any, timeout_s: float) -> None:
    """Close it, if there is one. Closing waits for the cluster, which may be why it is closed."""
    if client is not None:
        closing = threading.Thread(target=close_quietly, args=(client,), name="pulsar-close", daemon=True)
        closing.start()
        closing.join(timeout_s)
