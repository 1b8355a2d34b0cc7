"""One partition of this process: its batches are read, evaluated, and acknowledged after the receipts of their alerts.

It has a thread of its own. First it rebuilds the state from the messages of a bounded time before the first one that is
not acknowledged; the previous owner raised their alerts. If this process was the standby, most of that is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pulsar
import structlog

from gateway.alerts.alert_sender import AckOrder, AlertSender
from gateway.alerts.evaluation import FoundEvent
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition_evaluation import EvaluationPart, PartitionEvaluation, alert_of
from gateway.alerts.standby import PreparedState, rewound
from gateway.alerts.status import age_s
from gateway.errors import PulsarUnreachable
from waybill.pulsar.pulsar_client import close_quietly
from waybill.pulsar.pulsar_positions import WITHHELD, EntryPosition, Silence, position_of

# How long batches gather before one evaluation. Pure.

MAX_PAUSE_S: Final = 0.02
"""The longest pause."""
_TIMES: Final = 2.0


def pause_s(took_s: float, messages: int, many: int) -> float:
    """The pause after an evaluation; none if `many` or more messages wait."""
    return 0.0 if messages >= many else min(_TIMES * took_s, MAX_PAUSE_S)


RECEIVE_MS: Final = 250
MAX_BYTES: Final = 4 << 20
"""The most that is read at once."""
RECEIVER_QUEUE: Final = 500
MAX_TAKEN: Final = 10_000
"""The most groups of messages that wait for receipts."""
MANY: Final = RECEIVER_QUEUE // 2
"""So many messages at once are a backlog, after which there is no pause."""
LOST_AFTER_S: Final = 2.0
"""How long a subscription may be without a connection before it is given up."""
# a receipt wakes it; this is for a missed one
_FULL_WAIT_S: Final = 0.05
# the longest delay of a stop while other partitions are evaluated
_TURN_WAIT_S: Final = 0.5
_LOG = structlog.get_logger("alerts")


class _EvaluatedPart(NamedTuple):
    part: EvaluationPart
    found: Sequence[FoundEvent]
    took_s: float


class OwnedPartition:
    """A partition whose exclusive subscription this process has. `run` is its thread; `stop` ends it in order.

    `state`: empty. `evaluating`: held during an evaluation, and never while waiting for the cluster. The partitions of
    a process share it, as threads that compute at once only slow each other down. `prepared`: the state of the standby,
    if this process was that. `acknowledged`: everything before that entry is acknowledged; None: unknown.
    """

    def __init__(
        self,
        state: PartitionEvaluation,
        client: Any,
        consumer: Any,
        *,
        sender: AlertSender,
        metrics: AlertMetrics,
        evaluating: threading.Lock,
        prepared: Callable[[], PreparedState | None] = lambda: None,
    ) -> None:
        self.name, self._state = state.name, state
        self._client, self._consumer, self._sender = client, consumer, sender
        self._metrics, self._evaluating, self._prepared = metrics, evaluating, prepared
        self._order: AckOrder[Any] = AckOrder()
        self._stop = threading.Event()
        self._has_state = False
        self._lost_at_s: float | None = None
        self._pause_s = 0.0
        self._silence = Silence()
        self.acknowledged: EntryPosition | None = None
        self.is_rebuilt = False
        self.lost_reason = ""
        self.newest_ms: int | None = None
        self.turned_s = time.monotonic()

    @property
    def problem(self) -> str:
        if not self.is_rebuilt:
            return f"{self.name}: its state is being rebuilt"
        return f"{self.name}: {self._sender.problem}" if self._sender.problem else ""

    @property
    def device_count(self) -> int:
        return self._state.device_count

    @property
    def unreceipted(self) -> int:
        return self._order.unreceipted

    def lag_s(self, now_s: float) -> float | None:
        """The age of the newest message read; 0 if none is left. During a rebuild, the age of the first message that
        waits.

        None: unknown, because nothing can arrive, messages are withheld, or the publisher's clock differs from ours.
        """
        newest_ms = self.newest_ms
        if newest_ms is None:
            is_at_end = self.is_rebuilt and self._consumer.is_connected() and not self._silence.is_withheld
            return 0.0 if is_at_end else None
        return age_s(newest_ms, now_s)

    def stop(self) -> None:
        """Read nothing more, wait for the receipts, and give the partition back."""
        self._stop.set()

    def run(self, finish_s: float) -> None:
        """Serve until it is stopped or lost; after a stop, wait at most `finish_s` for receipts."""
        try:
            while not self._stop.is_set() and not self._is_lost():
                self._turn()
            self._finish(finish_s)
        except (pulsar.PulsarException, PulsarUnreachable) as error:
            # give the partition up; its next owner makes the state again
            self.lost_reason = f"{type(error).__name__}: {error}"
        finally:
            self._sender.close()
            close_quietly(self._consumer)

    def _turn(self) -> None:
        self.turned_s = time.monotonic()
        self._acknowledge()
        self._state.follow_rules()
        if self._sender.is_full or len(self._order) >= MAX_TAKEN:
            self._sender.came.wait(_FULL_WAIT_S)
            return
        # messages that arrive meanwhile are evaluated together
        self._stop.wait(self._pause_s)
        messages = self._received()
        # the first message that was left says up to where the state is made
        if not messages or self._has_state or self._rebuild(messages):
            self._handle(messages)

    def _received(self) -> list[Any]:
        """The messages within the batching delay of the first one; empty if none came for a moment."""
        try:
            first = self._consumer.receive(RECEIVE_MS)
        except pulsar.Timeout:
            self.newest_ms, now_s = None, time.monotonic()
            is_new = self.acknowledged is None
            # without a connection this call would wait for the cluster
            if (is_new or self._silence.is_to_ask(now_s)) and self._consumer.is_connected():
                end = position_of(self._consumer.get_last_message_id()).of_entry
                self._silence.on_end(end, now_s)
                if is_new:
                    # nothing is left: what the owner before read was acknowledged
                    self._silence.on_begin(end, now_s)
                    self.acknowledged, self.is_rebuilt = end, True
            return []
        # an idle partition wakes four times a second, not once per batching delay
        messages = [first, *self._consumer.batch_receive()]
        self._silence.on_read(position_of(messages[-1].message_id()).of_entry, time.monotonic())
        return messages

    def _rebuild(self, messages: Sequence[Any]) -> bool:
        """Make the state as it was before the first of these messages. Returns whether it is complete."""
        began_s, self.is_rebuilt = time.monotonic(), False
        first = position_of(messages[0].message_id())
        self.newest_ms = messages[0].publish_timestamp()
        self.acknowledged = first.of_entry
        start: Any = max(messages[0].publish_timestamp() - self._state.settings.rewind_ms, 0)
        kept, count = self._prepared(), 0
        is_kept = kept is not None and kept.serves(first, start)
        if kept is not None and is_kept:
            self._state, start = kept.state, kept.state.last_id
            self._state.follow_rules()
        for part in self._state.parts(rewound(self._client, self.name, start, first), report=False):
            if self._stop.is_set():
                return False
            self.turned_s = time.monotonic()
            count += len(part.messages)
            self._state.take(part, report=False)
        self.is_rebuilt = self._has_state = True
        seconds = time.monotonic() - began_s
        self._metrics.rebuild_s.observe(seconds)
        _LOG.info("partition taken", partition=self.name, messages=count, seconds=round(seconds, 3), standby=is_kept)
        return True

    def _handle(self, messages: Sequence[Any]) -> None:
        if not messages:
            self._pause_s = 0.0
            return
        took_s, parts = 0.0, self._state.parts(messages, report=True)
        while (evaluated := self._next_evaluated(parts)) is not None:
            self.newest_ms = evaluated.part.messages[-1].publish_timestamp()
            now_ms = round(time.time() * 1000)
            alerts = [alert_of(one, self._state.settings.region, now_ms) for one in evaluated.found]
            # also without alerts, to be acknowledged in order
            self._sender.add(alerts, self._order.take(evaluated.part.messages[-1].message_id(), len(alerts)))
            # opening a producer may wait for the cluster; other partitions go on meanwhile
            self._acknowledge()
            took_s += evaluated.took_s
        self._pause_s = pause_s(took_s, len(messages), MANY)

    def _next_evaluated(self, parts: Iterator[EvaluationPart]) -> _EvaluatedPart | None:
        """The next part, once it is this partition's turn; None: there is none, or a stop came first."""
        while not self._evaluating.acquire(timeout=_TURN_WAIT_S):
            # waiting is not being stuck
            self.turned_s = time.monotonic()
            if self._stop.is_set():
                return None
        try:
            self.turned_s = began_s = time.monotonic()
            part = next(parts, None)
            if part is None:
                return None
            return _EvaluatedPart(part, self._state.take(part, report=True), time.monotonic() - began_s)
        finally:
            self._evaluating.release()

    def _acknowledge(self) -> None:
        for sent in self._sender.pump():
            self._order.on_receipt(sent.taken)
            self._metrics.on_published(sent.alert.kind, time.time() - sent.alert.received_ms / 1000)
        # the client sends it within 100 ms; a lost one causes a repetition, no loss
        position = self._order.pop_done()
        if position is not None:
            self._consumer.acknowledge_cumulative(position)
            self.acknowledged = position_of(position).of_entry

    def _finish(self, finish_s: float) -> None:
        ends_s = time.monotonic() + finish_s
        self._acknowledge()
        while len(self._order) and time.monotonic() < ends_s and not self._is_lost():
            self._sender.came.wait(_FULL_WAIT_S)
            self._acknowledge()

    def _is_lost(self) -> bool:
        """Whether the subscription was away for so long that another process may have it, or gives nothing."""
        if self._silence.is_withheld:
            self.lost_reason = WITHHELD
            return True
        if self._consumer.is_connected():
            self._lost_at_s = None
            return False
        now_s = time.monotonic()
        self._lost_at_s = self._lost_at_s or now_s
        if now_s - self._lost_at_s < LOST_AFTER_S:
            return False
        self.lost_reason = "the subscription is not connected"
        return True
