"""Follows a compacted topic of Pulsar in a thread: first the last message of each key, then new messages.

A topic that cannot be reached is retried without end; `standing` says since when it is unreachable.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import structlog

from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import (
    AccessRefusal,
    PulsarAccess,
    access_refusal,
    close_quietly,
    open_pulsar_client,
)

_LOG = structlog.get_logger("topic")
_WAIT_MS: Final = 500
RECEIVER_QUEUE: Final = 1000
"""Messages in the client's queue; with the largest message it bounds the memory."""
_OPERATION_S: Final = 5
_CLOSE_S: Final = 5.0
STUCK_S: Final = 30.0
"""A turn of the loop takes half a second, and an operation at most `_OPERATION_S`."""


class TopicMessage(NamedTuple):
    """`published_ms`: since 1970, by the cluster's clock. A key or property that is not UTF-8 is missing."""

    key: str | None
    body: bytes
    properties: Mapping[str, str]
    published_ms: int


class TopicStanding(NamedTuple):
    """The state of the reader.

    `is_current`: it has read to the end and is connected. `unreachable_since_s`: when it lost the topic, None while it
    is connected. `messages`: read since the start. `problem`: why it is not connected; `refusal`: waiting does not
    help. `unhandled`: messages for which `on_message` raised, `last_unhandled` the last one.
    """

    is_current: bool = False
    was_current: bool = False
    unreachable_since_s: float | None = None
    messages: int = 0
    problem: str = ""
    unhandled: int = 0
    last_unhandled: str = ""
    refusal: AccessRefusal | None = None
    topic: str = ""


class SharedClient:
    """One Pulsar client for several readers: opened for the first of them, closed after the last."""

    def __init__(self, service_url: str, access: PulsarAccess) -> None:
        self._open: Callable[[], Any] = lambda: open_pulsar_client(service_url, access, timeout_s=_OPERATION_S)
        self._lock = threading.Lock()
        self._client: Any = None
        self._users = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        with self._lock:
            if self._client is None:
                self._client = self._open()
            self._users += 1
            client = self._client
        try:
            yield client
        finally:
            with self._lock:
                self._users -= 1
                if unused := self._users == 0:
                    self._client = None
            if unused:
                close_quietly(client)


class CompactedTopicReader:
    """Calls `on_message` for each message, and `on_standing` when it becomes current or stops being so.

    With `is_compacted=False` it reads all messages that are still there, and with `from_end` only those that come from
    now on. `starts_anew` is asked twice a second whether
    to read everything again. `on_begin` is called at each beginning. The topic is also read again when it has become
    empty, which is checked every `loss_look_s`. `client`: shared with other readers; None: its own.

    All are called in the reader's thread. A message for which `on_message` raises is counted and skipped. A reader
    whose thread has ended or hangs is not current.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        topic: str,
        on_message: Callable[[TopicMessage], object],
        on_standing: Callable[[TopicStanding], object] = lambda _: None,
        *,
        backoff_max_s: float = 5.0,
        is_compacted: bool = True,
        from_end: bool = False,
        on_begin: Callable[[], object] = lambda: None,
        starts_anew: Callable[[], bool] = lambda: False,
        loss_look_s: float = math.inf,
        client: SharedClient | None = None,
        receiver_queue: int = RECEIVER_QUEUE,
    ) -> None:
        self._on_begin, self._starts_anew = on_begin, starts_anew
        self.topic, self._is_compacted, self._from_end = topic, is_compacted, from_end
        self._client, self._receiver_queue = client or SharedClient(service_url, access), receiver_queue
        self._access = access
        self._on_message, self._on_standing = on_message, on_standing
        self._backoff = Backoff(0.1, backoff_max_s, random.random)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reads {topic.rpartition('/')[2]}", daemon=True)
        self._last: Any = None
        self._turned_s = self._turned_at_s = 0.0
        self._loss_look_s, self._loss_look_at_s = loss_look_s, time.monotonic() + loss_look_s
        self._noted = TopicStanding(unreachable_since_s=time.time(), problem="not connected yet", topic=topic)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def standing(self) -> TopicStanding:
        """The state; a reader whose thread has ended or hangs is not current."""
        noted = self._noted
        if not noted.is_current:
            return noted
        problem = "" if self.is_running else "the thread that reads it has ended"
        if time.monotonic() - self._turned_s > STUCK_S:
            problem = problem or f"the thread that reads it has hung for more than {STUCK_S:g} s"
        if not problem:
            return noted
        return noted._replace(is_current=False, unreachable_since_s=self._turned_at_s, problem=problem)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        import pulsar  # noqa: PLC0415 - an agent is installed without it

        while not self._stop.is_set():
            try:
                self._follow(pulsar)
            except Exception as error:  # noqa: BLE001 - of many kinds, and none of them is the last word
                # A cluster does not answer to an expired token, so the token itself is checked.
                why = self._access.token_problem(time.time())
                self._note_lost(why or f"{type(error).__name__}: {error}", access_refusal(error))
                self._stop.wait(self._backoff.take_delay_s())

    def _follow(self, pulsar: Any) -> None:
        with self._client.use() as client:
            if self._last is None:
                self._on_begin()
            first = pulsar.MessageId.latest if self._from_end else pulsar.MessageId.earliest
            start = first if self._last is None else self._last
            # A reader leaves no subscription behind.
            reader = client.create_reader(
                self.topic, start, is_read_compacted=self._is_compacted, receiver_queue_size=self._receiver_queue
            )
            try:
                self._backoff.reset()
                while not self._stop.is_set():
                    if self._starts_anew() or self._has_lost_all(pulsar, client):
                        self._last = None
                        problem = "it is read again from the beginning"
                        self._noted = self._noted._replace(is_current=False, problem=problem)
                        return
                    self._look(pulsar, reader)
            finally:
                close_quietly(reader)

    def _has_lost_all(self, pulsar: Any, client: Any) -> bool:
        """Whether the topic has become empty, for example because it was deleted."""
        now_s = time.monotonic()
        if self._last is None or not self._noted.is_current or now_s < self._loss_look_at_s:
            return False
        self._loss_look_at_s = now_s + self._loss_look_s
        start = pulsar.MessageId.earliest
        another = client.create_reader(self.topic, start, is_read_compacted=self._is_compacted, receiver_queue_size=1)
        try:
            return not another.has_message_available()
        finally:
            another.close()

    def _look(self, pulsar: Any, reader: Any) -> None:
        self._turned_s, self._turned_at_s = time.monotonic(), time.time()
        if not reader.is_connected():
            self._note_lost("the connection to the cluster is lost")
        # Only until it is current: the question goes to the broker, and would delay each message.
        elif not self._noted.is_current and not reader.has_message_available():
            self._note(
                self._noted._replace(
                    is_current=True, was_current=True, unreachable_since_s=None, problem="", refusal=None
                )
            )
        try:
            message = reader.read_next(_WAIT_MS)
        except pulsar.Timeout:
            return
        # Before the call: a message that raises must not be read again forever.
        self._last = message.message_id()
        self._noted = self._noted._replace(messages=self._noted.messages + 1)
        try:
            self._on_message(_read(message))
        except Exception as error:  # noqa: BLE001 - whatever one message does, the next one is read
            said = f"message {self._noted.messages} of {self.topic}: {type(error).__name__}: {error!s:.200}"
            self._noted = self._noted._replace(unhandled=self._noted.unhandled + 1, last_unhandled=said)
            _LOG.error("a message cannot be handled", topic=self.topic, problem=said)

    def _note_lost(self, problem: str, refusal: AccessRefusal | None = None) -> None:
        before = self._noted
        since_s = before.unreachable_since_s or time.time()
        self._note(before._replace(is_current=False, unreachable_since_s=since_s, problem=problem, refusal=refusal))

    def _note(self, standing: TopicStanding) -> None:
        before, self._noted = self._noted, standing
        if before.is_current != standing.is_current or before.problem != standing.problem:
            _LOG.info("topic", topic=self.topic, current=standing.is_current, problem=standing.problem)
            self._on_standing(standing)


def _read(message: Any) -> TopicMessage:
    return TopicMessage(
        _text(message.partition_key), message.data(), _text(message.properties) or {}, message.publish_timestamp()
    )


def _text(ask: Callable[[], Any]) -> Any:
    """None for bytes that are not UTF-8, which the client raises for."""
    try:
        return ask()
    except UnicodeDecodeError:
        return None
