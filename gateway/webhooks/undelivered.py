"""Undelivered messages: kept in a topic of each tenant, listed, sent again and discarded."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import pulsar
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import GatewayError
from gateway.webhooks.posting import EndedDelivery, WebhookDelivery
from geo.alerts import MalformedAlert
from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

# An undelivered message. Pure.

MAX_BYTES: Final = 1 << 20
"""The largest message; a body with the most rules needs a third of it."""
_Word = Annotated[str, Field(min_length=1, max_length=300)]


class UndeliveredMessage(BaseModel):
    """`body`: what was to be posted. `detail`: the last answer; `at_ms`: when it was given up."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    key: _Word
    webhook: _Word
    tenant: _Word
    rules: tuple[_Word, ...] = Field(max_length=10_000)
    reason: _Word
    detail: str = Field("", max_length=1000)
    attempts: int = Field(0, ge=0)
    at_ms: int = Field(ge=0)
    body: str

    @property
    def delivery(self) -> WebhookDelivery:
        """The same message with the same key and the same bytes."""
        return WebhookDelivery(self.key, self.webhook, self.tenant, self.rules, self.body.encode())


def encode_undelivered(ended: EndedDelivery, at_ms: int) -> bytes:
    """The stored form of a delivery that was given up."""
    one = ended.delivery
    message = UndeliveredMessage(
        key=one.key,
        webhook=one.webhook,
        tenant=one.tenant,
        rules=one.rules,
        reason=ended.reason,
        detail=one_line(one.detail, 300),
        attempts=one.attempts,
        at_ms=at_ms,
        body=one.body.decode(),
    )
    return message.model_dump_json().encode()


def decode_undelivered(data: bytes) -> UndeliveredMessage:
    """The message of some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # others may write to the topic: bound depth and size before parsing
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=20_000)
        return UndeliveredMessage.model_validate_json(data)
    except (InvalidJson, ValidationError) as error:
        raise MalformedAlert(f"no undelivered message: {one_line(str(error))}") from error


# The durable subscription of undelivered messages.

_LOG = structlog.get_logger("webhooks")
SUBSCRIPTION: Final = "undelivered"
# the broker waits a second before it gives messages to a new consumer
_FIRST_S: Final = 5.0
# removed messages leave gaps, which are not waited for
_NEXT_S: Final = 1.0
_RECEIVER_QUEUE: Final = 500


class UndeliveredEntry(NamedTuple):
    """A message that waits in the topic; `remove` takes it off."""

    message: UndeliveredMessage
    remove: Callable[[], None]


@contextmanager
def open_undelivered(
    open_client: Callable[[], Any], topic: str, said_of: Callable[[Exception], str] = lambda error: f"{error}"
) -> Iterator[Any]:
    """The subscription, for one command at a time; `said_of` explains an error. Raises GatewayError."""
    client: Any = None
    try:
        client = open_client()
        yield client.subscribe(
            topic,
            SUBSCRIPTION,
            receiver_queue_size=_RECEIVER_QUEUE,
            initial_position=pulsar.InitialPosition.Earliest,
        )
    except pulsar.ConsumerBusy as error:
        raise GatewayError(f"{topic}: another command reads it now; ask again when it has ended") from error
    except (pulsar.PulsarException, ValueError, RuntimeError) as error:
        raise GatewayError(f"{topic}: {said_of(error)}") from error
    finally:
        if client is not None:
            client.close()


def ensure_subscription(client: Any, topic: str) -> None:
    """Create the subscription before the first message, so that the cluster keeps it."""
    try:
        client.subscribe(topic, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest).close()
    except pulsar.ConsumerBusy:
        return  # a command uses it, so it exists


def undelivered_entries(consumer: Any, tenant: str) -> Iterator[UndeliveredEntry]:
    """What the tenant's topic has now, oldest first. Messages that are not the tenant's are logged and removed."""
    last, ends_s = consumer.get_last_message_id(), time.monotonic() + _FIRST_S
    while True:
        try:
            # what was there at the start comes within a moment, or was removed before
            message = consumer.receive(max(1, round((ends_s - time.monotonic()) * 1000)))
        except pulsar.Timeout:
            return
        try:
            found = decode_undelivered(message.data())
            if found.tenant != tenant:
                raise MalformedAlert(f"a message of tenant {found.tenant} in the topic of {tenant}")
            yield UndeliveredEntry(found, partial(consumer.acknowledge, message))
        except MalformedAlert as error:
            _LOG.warning("an unreadable undelivered message is removed", tenant=tenant, problem=str(error))
            consumer.acknowledge(message)
        if message.message_id() >= last:
            return
        ends_s = time.monotonic() + _NEXT_S


# Publication of undelivered messages, retried until Pulsar has them.

MAX_WAITING: Final = 5000
"""For all tenants together, in equal shares. A tenant is not read while it has used up its share."""
# the rest was not acknowledged, and comes again
_CLOSE_S: Final = 5.0
# the longest delay before a failed topic is tried again
_TURN_S: Final = 0.2


@dataclass(eq=False)
class _TenantTopic:
    name: str
    waiting: deque[EndedDelivery] = field(default_factory=deque)
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0, random.random))
    due_s: float = 0.0
    producer: Any = None
    problem: str = ""

    def fail(self, error: Exception) -> None:
        if not self.problem:
            _LOG.warning(
                "undelivered messages could not be stored and are tried again", topic=self.name, problem=str(error)
            )
        close_quietly(self.producer)
        self.producer, self.problem = None, f"{type(error).__name__}: {error}"
        self.due_s = time.monotonic() + self.backoff.take_delay_s()


class UndeliveredWriter:
    """One thread and one client. `topic_of` names a tenant's topic; `tenants`: how many there are.

    The thread calls `on_written` for each message that Pulsar has.
    """

    def __init__(
        self,
        open_client: Callable[[], Any],
        topic_of: Callable[[str], str],
        on_written: Callable[[EndedDelivery], object],
        *,
        tenants: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_client, self._topic_of, self._clock = open_client, topic_of, clock
        self._on_written = on_written
        self._most = max(MAX_WAITING // tenants, 1)
        self._topics: dict[str, _TenantTopic] = {}
        self._changed, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="writes undelivered messages", daemon=True)

    def __len__(self) -> int:
        return sum(len(one.waiting) for one in [*self._topics.values()])

    def is_full(self, tenant: str) -> bool:
        found = self._topics.get(tenant)
        return found is not None and len(found.waiting) >= self._most

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def problems(self) -> dict[str, str]:
        """The topics that cannot be written to, and why."""
        return {one.name: one.problem for one in [*self._topics.values()] if one.problem}

    def start(self) -> None:
        self._thread.start()

    def add(self, ended: EndedDelivery) -> None:
        tenant = ended.delivery.tenant
        self._topics.setdefault(tenant, _TenantTopic(self._topic_of(tenant))).waiting.append(ended)
        self._changed.set()

    def close(self) -> None:
        """Write what waits if that is quick. The rest is not acknowledged and comes again after a start."""
        self._stop.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        client: Any = None
        while True:
            # cleared first, so that nothing is missed in between
            self._changed.clear()
            now_s = time.monotonic()
            due = [one for one in [*self._topics.values()] if one.waiting and one.due_s <= now_s]
            if not due and self._stop.is_set():
                break
            if not due:
                self._changed.wait(_TURN_S if len(self) else None)
            for topic in due:
                try:
                    client = client or self._open_client()
                    self._write(client, topic)
                except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                    topic.fail(error)
        close_quietly(client)

    def _write(self, client: Any, topic: _TenantTopic) -> None:
        if topic.producer is None:
            # before the first message, so that the cluster keeps it
            ensure_subscription(client, topic.name)
            topic.producer = client.create_producer(topic.name, send_timeout_millis=10_000)
        while topic.waiting:
            ended = topic.waiting[0]
            data = encode_undelivered(ended, round(self._clock() * 1000))
            about = {"webhook": ended.delivery.webhook, "reason": ended.reason}
            topic.producer.send(data, partition_key=ended.delivery.key, properties=about)
            topic.waiting.popleft()
            topic.problem = ""
            topic.backoff.reset()
            self._on_written(ended)
