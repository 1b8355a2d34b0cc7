"""A partition of another process whose state this one keeps ready, so that it can take over at once.

It has a thread of its own, which reads much at a time and rests. It stays behind what the owner has acknowledged: the
alerts of those messages were raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pulsar
import structlog

from gateway.alerts.partition_evaluation import MAX_MESSAGES, PartitionEvaluation
from gateway.errors import PulsarUnreachable
from waybill.pulsar.pulsar_client import close_quietly
from waybill.pulsar.pulsar_positions import EntryPosition, MessagePosition, position_of

# State recovery of a new owner: messages of a bounded time before its position.

_WAIT_MS: Final = 1000
_MAX_SILENCES: Final = 10
"""Seconds after which a reader has failed if the cluster says that there is more."""
_RECEIVER_QUEUE: Final = 2000


def rewound(client: Any, partition: str, start: int | Any, until: MessagePosition) -> Iterator[Any]:
    """The messages of a partition from `start` to the one before a position.

    `start`: a publish time (ms since 1970), or the id of the message before the first one. It uses a reader, so the
    position of the subscription does not move. Raises PulsarUnreachable, and what the client raises.
    """
    since_ms = start if isinstance(start, int) else None
    begin = start if since_ms is None else pulsar.MessageId.earliest
    reader = client.create_reader(partition, begin, receiver_queue_size=_RECEIVER_QUEUE)
    try:
        if since_ms is not None:
            # by publish time, inclusive
            reader.seek(since_ms)
        silences = 0
        while True:
            try:
                message = reader.read_next(_WAIT_MS)
            except pulsar.Timeout:
                silences += 1
                if not reader.has_message_available():
                    return
                if silences >= _MAX_SILENCES:
                    raise PulsarUnreachable(f"{partition}: a reader gave nothing for {silences} s") from None
                continue
            silences = 0
            if position_of(message.message_id()) >= until:
                return
            yield message
    finally:
        reader.close()


PAUSE_S: Final = 2.0
"""The pause once it has everything."""
REST_TIMES: Final = 1.0
"""Before that, the pause as a multiple of the last evaluation."""
SPARE_S: Final = 60.0
"""It reads so much more than `rewind_s`, for batches that waited."""
MAX_BEHIND_S: Final = 10.0
"""A standby that is behind for longer is not ready."""
_RETRY_S: Final = 5.0
_UNKNOWN_S: Final = 0.5
_READ_MS: Final = 500
_FOLLOW_QUEUE: Final = 500
_HAND_OVER_S: Final = 5.0
_LOG = structlog.get_logger("alerts")


class PreparedState(NamedTuple):
    """A state of everything that was published from a moment (ms since 1970) to its last message."""

    state: PartitionEvaluation
    since_ms: int

    @property
    def position(self) -> MessagePosition:
        return position_of(self.state.last_id)

    def serves(self, first: MessagePosition, since_ms: int) -> bool:
        """Whether reading on from its last message gives the state before a message, of everything since a moment."""
        return self.since_ms <= since_ms and self.position < first


class PartitionStandby:
    """Follows a partition. `run` is its thread; `hand_over` ends it and returns its state.

    `acknowledged`: the entry before which the owner has acknowledged everything; None: unknown.
    """

    def __init__(
        self,
        state: PartitionEvaluation,
        client: Any,
        acknowledged: Callable[[], EntryPosition | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = state.name
        self._state, self._client, self._acknowledged = state, client, acknowledged
        self._since_ms = max(round((time.time() - SPARE_S) * 1000) - state.settings.rewind_ms, 0)
        self._next: Any = None
        self._has_all = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"standby of {self.name}", daemon=True)
        self._monotonic, self._had_all_s, self._is_ready = monotonic, monotonic(), False
        self.problem = ""

    @property
    def is_ready(self) -> bool:
        """Whether it recently had everything that the owner acknowledged."""
        return self._is_ready and self.behind_s <= MAX_BEHIND_S

    @property
    def behind_s(self) -> float:
        """How long ago it last had everything that the owner acknowledged, or since it began."""
        return max(self._monotonic() - self._had_all_s, 0.0)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def hand_over(self) -> PreparedState | None:
        """Its state; None: it has none, or its thread does not end."""
        self._stop.set()
        return self.made if self.wait(_HAND_OVER_S) else None

    @property
    def made(self) -> PreparedState | None:
        """The state as it is, for the thread that uses it; None: it has no message."""
        return None if self._state.last_id is None else PreparedState(self._state, self._since_ms)

    def run(self) -> None:
        """Follow until it is stopped; after an error of the cluster try again."""
        while not self._stop.is_set():
            try:
                self._follow()
            except pulsar.PulsarException as error:
                if not self.problem:
                    _LOG.warning("a partition is not followed", partition=self.name, problem=str(error))
                self.problem = f"{type(error).__name__}: {error}"
                # an owner must not give its partition away to a state that does not advance
                self._is_ready = False
                self._stop.wait(_RETRY_S)

    def _follow(self) -> None:
        # a new reader continues behind what was taken
        last_id, self._next = self._state.last_id, None
        start = pulsar.MessageId.earliest if last_id is None else last_id
        reader = self._client.create_reader(self.name, start, receiver_queue_size=_FOLLOW_QUEUE)
        try:
            if last_id is None:
                reader.seek(self._since_ms)
            while not self._stop.is_set():
                pause_s = self.turn(reader)
                self.problem = ""
                self._stop.wait(pause_s)
        finally:
            close_quietly(reader)

    def turn(self, reader: Any) -> float:
        """Take what the owner has acknowledged, up to a bound; returns how long to rest (s)."""
        self._state.follow_rules()
        until, began_s = self._acknowledged(), time.monotonic()
        if until is None:
            # an owner that is gone acknowledges nothing more: a ready state stays ready
            self._had_all_s = self._monotonic() if self.is_ready else self._had_all_s
            return _UNKNOWN_S
        for part in self._state.parts(self._read(reader, until), report=False):
            # the next owner reads again what was not taken
            if self._stop.is_set():
                return 0.0
            self._state.take(part, report=False)
        took_s = time.monotonic() - began_s
        if not self._has_all:
            return min(REST_TIMES * took_s, PAUSE_S)
        self._is_ready, self._had_all_s = True, self._monotonic()
        return PAUSE_S

    def _read(self, reader: Any, until: EntryPosition) -> Iterator[Any]:
        """Messages before an entry, as many as one evaluation takes. The first one behind it is kept for the next
        turn.
        """
        self._has_all = False
        for _ in range(MAX_MESSAGES):
            if self._stop.is_set():
                return
            if self._next is None:
                try:
                    self._next = reader.read_next(_READ_MS)
                except pulsar.Timeout:
                    self._has_all = not reader.has_message_available()
                    return
            if position_of(self._next.message_id()).of_entry >= until:
                self._has_all = True
                return
            message, self._next = self._next, None
            yield message
