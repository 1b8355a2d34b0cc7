"""What no webhook took, on its way into the topics of its tenants: none waits for another."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

# A message that no webhook took, as it travels. Pure.

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
        data = _undelivered_of(ended, at_ms).model_dump_json().encode()
        decode_undelivered(data)
    except (MalformedAlert, ValueError) as error:
        raise UndeliveredUnfit(f"{ended.delivery.key}: {one_line(str(error), 300)}") from error
    return data


def _undelivered_of(ended: EndedDelivery, at_ms: int) -> UndeliveredMessage:
    one = ended.delivery
    return UndeliveredMessage(
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


def decode_undelivered(data: bytes) -> UndeliveredMessage:
    """The message of some bytes. Raises MalformedAlert, and nothing else for any bytes."""
    try:
        # whoever may write there may write anything: depth and size are bounded before it is read
        parse_json(data, max_bytes=MAX_BYTES, max_depth=4, max_values=20_000)
        return UndeliveredMessage.model_validate_json(data)
    except (InvalidJson, ValidationError) as error:
        raise MalformedAlert(f"no undelivered message: {one_line(str(error))}") from error


# The messages that no webhook took, as a durable subscription has them: to be looked at, and to be sent again.

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


# What no webhook took of one tenant, on its way into its topic: again and again until Pulsar has it.

_LOG = structlog.get_logger("webhooks")


class UndeliveredTopic:
    """A thread with a client of its own, so that no other tenant waits for this one.

    In its thread `on_written` hears of each message that Pulsar has, and `on_dropped` of each that cannot be kept.
    """

    def __init__(
        self,
        open_client: Callable[[], Any],
        name: str,
        on_written: Callable[[EndedDelivery], object],
        on_dropped: Callable[[EndedDelivery], object],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._open_client, self._clock = open_client, clock
        self._on_written, self._on_dropped = on_written, on_dropped
        self._waiting: deque[EndedDelivery] = deque()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writes {name}", daemon=True)
        self._backoff = Backoff(0.2, 10.0, random.random)
        self.problem = ""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def add(self, ended: EndedDelivery) -> None:
        """This one was given up."""
        self._waiting.append(ended)
        self._changed.set()

    def stop(self) -> None:
        """Ends when all is written, or at the first failure; what is left comes again after a start."""
        self._stop.set()
        self._changed.set()

    def join(self, until_s: float) -> None:
        """Waits for its end, until a moment of the monotonic clock."""
        if self._thread.ident is not None:
            self._thread.join(max(until_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        client: Any = None
        producer: Any = None
        while not self._stop.is_set() or self._waiting:
            if not self._waiting:
                # cleared before it is looked at again: nothing that comes in between is missed
                self._changed.clear()
                if not self._waiting and not self._stop.is_set():
                    self._changed.wait()
                continue
            try:
                client = client or self._open_client()
                producer = producer or self._producer(client)
                self._write_first(producer)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._note_failed(f"{type(error).__name__}: {error}")
                close_quietly(client)
                client = producer = None
                # at the end what is left is given up here: its message was not acknowledged
                if self._stop.wait(self._backoff.take_delay_s()):
                    break
        close_quietly(client)

    def _producer(self, client: Any) -> Any:
        # before the first message, or nobody would keep it for the commands
        ensure_subscription(client, self.name)
        return client.create_producer(self.name, send_timeout_millis=10_000)

    def _write_first(self, producer: Any) -> None:
        ended = self._waiting[0]
        try:
            data = encode_undelivered(ended, round(self._clock() * 1000))
            # One by one: what is given up is seldom, and each is acknowledged by this receipt alone.
            producer.send(
                data,
                partition_key=ended.delivery.key,
                properties={"webhook": ended.delivery.webhook, "reason": ended.reason},
            )
        except (UndeliveredUnfit, pulsar.MessageTooBig) as error:
            # tried again it would be the same, and all others would wait behind it
            _LOG.error(
                "a message that no webhook took cannot be kept, and is dropped",
                topic=self.name,
                key=ended.delivery.key,
                webhook=ended.delivery.webhook,
                reason=ended.reason,
                problem=str(error),
            )
            self._end_first(self._on_dropped)
        else:
            self._end_first(self._on_written)

    def _end_first(self, on_ended: Callable[[EndedDelivery], object]) -> None:
        ended = self._waiting.popleft()
        self.problem = ""
        self._backoff.reset()
        on_ended(ended)

    def _note_failed(self, problem: str) -> None:
        if not self.problem:
            _LOG.warning("undelivered messages are not written, and tried again", topic=self.name, problem=problem)
        self.problem = problem


MAX_WAITING: Final = 5000
"""Of all tenants together, in equal shares: while more wait than a tenant's, nothing more of it is read."""
# what is not written by then was not acknowledged, and comes again
_CLOSE_S: Final = 5.0


class UndeliveredWriter:
    """`topic_of` names a tenant's topic; `tenants`: how many there are. In the thread of a topic `on_written` hears of
    each message that Pulsar has, and `on_dropped` of each that cannot be kept."""

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
        self._topics: dict[str, UndeliveredTopic] = {}
        self._is_started = False

    def __len__(self) -> int:
        return sum(len(one) for one in [*self._topics.values()])

    def is_full(self, tenant: str) -> bool:
        """Whether nothing more of a tenant is to be given up now."""
        found = self._topics.get(tenant)
        return found is not None and len(found) >= self._most

    @property
    def is_running(self) -> bool:
        """Whether all its threads run."""
        return all(one.is_running for one in self._topics.values())

    @property
    def problems(self) -> dict[str, str]:
        """The topics to which nothing can be written, and why."""
        return {one.name: one.problem for one in self._topics.values() if one.problem}

    def start(self) -> None:
        """Begins to write."""
        self._is_started = True
        for one in self._topics.values():
            one.start()

    def add(self, ended: EndedDelivery) -> None:
        """This one was given up. Whoever has something for the first time gets a thread and a client of its own."""
        tenant = ended.delivery.tenant
        found = self._topics.get(tenant)
        if found is None:
            found = UndeliveredTopic(
                self._open_client, self._topic_of(tenant), self._on_written, self._on_dropped, self._clock
            )
            self._topics[tenant] = found
            if self._is_started:
                found.start()
        found.add(ended)

    def close(self) -> None:
        """Writes what waits if that is quick; the rest comes again after a start."""
        ends_s = time.monotonic() + _CLOSE_S
        for one in self._topics.values():
            one.stop()
        for one in self._topics.values():
            one.join(ends_s)
