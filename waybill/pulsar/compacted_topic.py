"""Following a compacted topic of Pulsar in a thread: what it holds of each key, then what comes, for as long as we run.

Knows nothing of what the messages say. A topic that cannot be reached is tried again, for ever; what was read before
stays, and `standing` says since when nothing could be.
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
"""Messages that the client holds for us: with the largest that a topic takes, the bound of its memory."""
_OPERATION_S: Final = 5
_CLOSE_S: Final = 5.0
STUCK_S: Final = 30.0
"""A turn of the loop takes half a second, and a question to the broker at most `_OPERATION_S`."""


class TopicMessage(NamedTuple):
    """One message. `published_ms`: since 1970, by the cluster's clock. A key or property that is no text is missing."""

    key: str | None
    body: bytes
    properties: Mapping[str, str]
    published_ms: int


class TopicStanding(NamedTuple):
    """How far the reading is.

    `is_current`: it has read to the end, and is connected, so nothing is there that it does not know, but what is on
    its way. `unreachable_since_s`: the wall clock when it lost the topic, None while it has it. `messages`: read since
    the start. `problem`: why it is not connected; `refusal`: that we are not let in, and waiting does not help.
    `unhandled`: messages that its owner raised for, `last_unhandled` the last of them. `topic`: its name.
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
    """One client for all readers of a process: opened for the first of them, closed when none uses it."""

    def __init__(self, service_url: str, access: PulsarAccess) -> None:
        self._open: Callable[[], Any] = lambda: open_pulsar_client(service_url, access, timeout_s=_OPERATION_S)
        self._lock = threading.Lock()
        self._client: Any = None
        self._users = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """The client, open until the end of the block at least."""
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
    """Calls `on_message` for each message, and `on_standing` when it is current for the first time or again, or not.

    With `is_compacted=False` it reads all that is still there of each key, not only the last. `starts_anew` is asked
    twice a second whether everything is to be read again: what its owner could not take before may be right now.
    `on_begin` hears each time that it is read from the beginning. So it is too where it has become empty, for which is
    looked every `loss_look_s` seconds. `client`: shared with other readers; none: one of its own.

    All are called in the reader's thread. A message for which `on_message` raises is counted, and the next is read:
    no message ends a reader. A reader whose thread has ended or hangs is not current, whatever it read. `start` begins.
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
        on_begin: Callable[[], object] = lambda: None,
        starts_anew: Callable[[], bool] = lambda: False,
        loss_look_s: float = math.inf,
        client: SharedClient | None = None,
        receiver_queue: int = RECEIVER_QUEUE,
    ) -> None:
        self._on_begin, self._starts_anew = on_begin, starts_anew
        self.topic, self._is_compacted = topic, is_compacted
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
        """Begin to read."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def standing(self) -> TopicStanding:
        """How far the reading is; asked of the thread, so that one that is no more does not go on to be current."""
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
        """Stop reading; what the client takes longer for is left to the end of the process."""
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        import pulsar  # noqa: PLC0415 - an agent is installed without it

        while not self._stop.is_set():
            try:
                self._follow(pulsar)
            except Exception as error:  # noqa: BLE001 - of many kinds, and none of them is the last word
                # Who shows a token that has ended is not answered, which says nothing: what it says itself is said.
                why = self._access.token_problem(time.time())
                self._note_lost(why or f"{type(error).__name__}: {error}", access_refusal(error))
                self._stop.wait(self._backoff.take_delay_s())

    def _follow(self, pulsar: Any) -> None:
        with self._client.use() as client:
            if self._last is None:
                self._on_begin()
            start = pulsar.MessageId.earliest if self._last is None else self._last
            # Whose thing it is says the cluster: a reader of ours leaves no subscription behind.
            reader = client.create_reader(
                self.topic, start, is_read_compacted=self._is_compacted, receiver_queue_size=self._receiver_queue
            )
            try:
                self._backoff.reset()
                while not self._stop.is_set():
                    if self._starts_anew() or self._has_lost_all(pulsar, client):
                        self._last = None
                        # What it has read it may judge otherwise now: it is at the end when it comes there again.
                        problem = "it is read again from the beginning"
                        self._noted = self._noted._replace(is_current=False, problem=problem)
                        return
                    self._look(pulsar, reader)
            finally:
                close_quietly(reader)

    def _has_lost_all(self, pulsar: Any, client: Any) -> bool:
        """Whether nothing is there any more of what was read, as after the topic was deleted."""
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
        # Asked until it is current: the question goes to the broker, and each message would wait for it.
        elif not self._noted.is_current and not reader.has_message_available():
            self._note_current()
        try:
            message = reader.read_next(_WAIT_MS)
        except pulsar.Timeout:
            return
        # Before it is handed over: one that its owner cannot handle must not come again for ever.
        self._last = message.message_id()
        self._noted = self._noted._replace(messages=self._noted.messages + 1)
        try:
            self._on_message(_read(message))
        except Exception as error:  # noqa: BLE001 - whatever one message does, the next one is read
            said = f"message {self._noted.messages} of {self.topic}: {type(error).__name__}: {error!s:.200}"
            self._noted = self._noted._replace(unhandled=self._noted.unhandled + 1, last_unhandled=said)
            _LOG.error("a message cannot be handled", topic=self.topic, problem=said)

    def _note_current(self) -> None:
        self._note(
            self._noted._replace(is_current=True, was_current=True, unreachable_since_s=None, problem="", refusal=None)
        )

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
    """What the client answers; None where it stumbles over bytes that are no UTF-8."""
    try:
        return ask()
    except UnicodeDecodeError:
        return None
