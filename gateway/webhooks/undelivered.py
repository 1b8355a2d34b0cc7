"""What no webhook took: kept in the topics of its tenants, listed, sent again and discarded."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import pulsar
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import UndeliveredUnfit, UndeliveredUnread
from gateway.webhooks.posting import EndedDelivery, WebhookDelivery
from geo.alerts import MalformedAlert
from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

# An undelivered message. Pure.

MAX_BYTES: Final = 1 << 20
"""Of whoever writes it and whoever reads it; a body with all the rules that it names has a third of it."""
_Word = Annotated[str, Field(min_length=1, max_length=300)]


class UndeliveredMessage(BaseModel):
    """`body`: what was to be posted, as it is. `reason`: a word; `detail`: what was said last; `at_ms`: when it was
    given up."""

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
        """The same message, to be delivered again: with the same key and the same bytes."""
        return WebhookDelivery(self.key, self.webhook, self.tenant, self.rules, self.body.encode())


def encode_undelivered(ended: EndedDelivery, at_ms: int) -> bytes:
    """What is kept of a delivery that was given up, as whoever reads it takes it. Raises UndeliveredUnfit."""
    try:
        one = ended.delivery
        made = UndeliveredMessage(
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
        data = made.model_dump_json().encode()
        decode_undelivered(data)
    except (MalformedAlert, ValueError) as error:
        raise UndeliveredUnfit(f"{ended.delivery.key}: {one_line(str(error), 300)}") from error
    return data


def decode_undelivered(data: bytes) -> UndeliveredMessage:
    """The message of some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # whoever may write there may write anything: depth and size are bounded before it is read
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=20_000)
        return UndeliveredMessage.model_validate_json(data)
    except (InvalidJson, ValidationError) as error:
        raise MalformedAlert(f"no undelivered message: {one_line(str(error))}") from error


# The durable subscription of undelivered messages.

SUBSCRIPTION: Final = "undelivered"
# the broker waits a second before it gives a new consumer any
_FIRST_S: Final = 5.0
# what was taken away before leaves gaps, and is not waited for
_NEXT_S: Final = 1.0
_RECEIVER_QUEUE: Final = 500


class UndeliveredEntry(NamedTuple):
    """One that still is to be delivered; None: a message that is none, with what is wrong. `remove` takes it away."""

    message: UndeliveredMessage | None
    fault: str
    remove: Callable[[], None]

    def in_topic_of(self, tenant: str) -> UndeliveredEntry:
        """The same; none where it says that it is another tenant's: nobody may put that here."""
        if self.message is None or self.message.tenant == tenant:
            return self
        return UndeliveredEntry(None, f"of tenant {self.message.tenant} in the topic of {tenant}", self.remove)


@contextmanager
def open_undelivered(
    open_client: Callable[[], Any], topic: str, said_of: Callable[[Exception], str] = lambda error: f"{error}"
) -> Iterator[Any]:
    """The subscription, for one command at a time; `said_of` names what is wrong. Raises UndeliveredUnread."""
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
        raise UndeliveredUnread(f"{topic}: another command reads it now; ask again when it has ended") from error
    except (pulsar.PulsarException, ValueError, RuntimeError) as error:
        raise UndeliveredUnread(f"{topic}: {said_of(error)}") from error
    finally:
        if client is not None:
            client.close()


def ensure_subscription(client: Any, topic: str) -> None:
    """Before the first message: what a subscription has not acknowledged is kept for as long as it takes."""
    try:
        client.subscribe(topic, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest).close()
    except pulsar.ConsumerBusy:
        return  # a command has it now, so it is there


def undelivered_entries(consumer: Any) -> Iterator[UndeliveredEntry]:
    """What the subscription has now, in the order in which it was given up. What comes meanwhile is not awaited."""
    last, ends_s = consumer.get_last_message_id(), time.monotonic() + _FIRST_S
    while True:
        try:
            # What was there when we began comes within a moment, or was taken away before.
            message = consumer.receive(max(1, round((ends_s - time.monotonic()) * 1000)))
        except pulsar.Timeout:
            return
        yield _entry(consumer, message)
        if message.message_id() >= last:
            return
        ends_s = time.monotonic() + _NEXT_S


def _entry(consumer: Any, message: Any) -> UndeliveredEntry:
    def remove() -> None:
        consumer.acknowledge(message)

    try:
        return UndeliveredEntry(decode_undelivered(message.data()), "", remove)
    except MalformedAlert as error:
        return UndeliveredEntry(None, str(error), remove)


# Publication of undelivered messages, retried until Pulsar has them.

MAX_WAITING: Final = 5000
"""Of all tenants together, in equal shares: while more wait than a tenant's, nothing more of it is read."""
# what is not written by then was not acknowledged, and comes again
_CLOSE_S: Final = 5.0
# a topic that failed is tried again by itself, so late at most
_TURN_S: Final = 0.2
_LOG = structlog.get_logger("webhooks")


@dataclass(eq=False)
class _TenantTopic:
    name: str
    waiting: deque[EndedDelivery] = field(default_factory=deque)
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0, random.random))
    due_s: float = 0.0
    producer: Any = None
    problem: str = ""

    def fail(self, error: Exception) -> None:
        """It takes nothing now: the other topics go on meanwhile."""
        if not self.problem:
            _LOG.warning("undelivered messages are not written, and tried again", topic=self.name, problem=str(error))
        close_quietly(self.producer)
        self.producer, self.problem = None, f"{type(error).__name__}: {error}"
        self.due_s = time.monotonic() + self.backoff.take_delay_s()


class UndeliveredWriter:
    """One thread and one client. `topic_of` names a tenant's topic; `tenants`: how many there are. In the thread
    `on_written` hears of each message that Pulsar has, and `on_dropped` of each that cannot be kept."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        topic_of: Callable[[str], str],
        on_written: Callable[[EndedDelivery], object],
        on_dropped: Callable[[EndedDelivery], object] = lambda _: None,
        *,
        tenants: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_client, self._topic_of, self._clock = open_client, topic_of, clock
        self._on_written, self._on_dropped = on_written, on_dropped
        self._most = max(MAX_WAITING // tenants, 1)
        self._topics: dict[str, _TenantTopic] = {}
        self._changed, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="writes undelivered messages", daemon=True)

    def __len__(self) -> int:
        return sum(len(one.waiting) for one in [*self._topics.values()])

    def is_full(self, tenant: str) -> bool:
        """Whether nothing more of a tenant is to be given up now."""
        found = self._topics.get(tenant)
        return found is not None and len(found.waiting) >= self._most

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def problems(self) -> dict[str, str]:
        """The topics to which nothing can be written, and why."""
        return {one.name: one.problem for one in [*self._topics.values()] if one.problem}

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def add(self, ended: EndedDelivery) -> None:
        """This one was given up."""
        tenant = ended.delivery.tenant
        self._topics.setdefault(tenant, _TenantTopic(self._topic_of(tenant))).waiting.append(ended)
        self._changed.set()

    def close(self) -> None:
        """Writes what waits if that is quick; the rest comes again after a start."""
        self._stop.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        client: Any = None
        while True:
            # cleared before it is looked: nothing that comes in between is missed
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
        """All that waits for a topic, one by one: what is given up is seldom, and each has a receipt of its own."""
        if topic.producer is None:
            # before the first message, or nobody would keep it for the commands
            ensure_subscription(client, topic.name)
            topic.producer = client.create_producer(topic.name, send_timeout_millis=10_000)
        while topic.waiting:
            ended, on_ended = topic.waiting[0], self._on_written
            about = {"webhook": ended.delivery.webhook, "reason": ended.reason}
            try:
                data = encode_undelivered(ended, round(self._clock() * 1000))
                topic.producer.send(data, partition_key=ended.delivery.key, properties=about)
            except (UndeliveredUnfit, pulsar.MessageTooBig) as error:
                # tried again it would be the same, and all others would wait behind it
                on_ended = self._on_dropped
                _LOG.error(
                    "an undelivered message cannot be stored and is dropped",
                    topic=topic.name,
                    key=ended.delivery.key,
                    problem=str(error),
                    **about,
                )
            topic.waiting.popleft()
            topic.problem = ""
            topic.backoff.reset()
            on_ended(ended)
