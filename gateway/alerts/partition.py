"""One partition that this process owns: its batches are read, evaluated, and acknowledged once their alerts are safe.

In a thread of its own. Before anything is said, the state is made from the messages of a bounded time before the first
one that nobody acknowledged; what follows from those, the owner before has said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import pulsar
import structlog

from gateway.alerts.ack_order import AckOrder
from gateway.alerts.batch_reading import PassedOver, read_fixes
from gateway.alerts.live_fixes import BatchFixes, FoundEvent, LiveFixes
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.outbox import Outbox
from gateway.alerts.rewinding import RewindEnd, position_of, rewound
from gateway.errors import PulsarUnreachable, last_line
from geo.alerts import Alert
from geo.spatial import Kind
from identity import Unsealer

__all__ = ["OwnedPartition", "PartitionRules", "PartitionSettings"]

FIRST_WAIT_MS: Final = 300
"""So long a new owner waits for a message that was left: if there is none, it goes on behind the last one."""
RECEIVE_MS: Final = 250
MAX_MESSAGES: Final = 2000
MAX_BYTES: Final = 4 << 20
"""What is read in one window, at most."""
RECEIVER_QUEUE: Final = 500
MAX_FIXES: Final = 50_000
"""So many are evaluated at once, however much a batch unpacks to."""
MAX_TAKEN: Final = 10_000
"""While so many groups of messages wait for receipts, no more are read."""
LOST_AFTER_S: Final = 2.0
"""A subscription that is not connected for so long is given up: another process may have the partition."""
_FULL_WAIT_S: Final = 0.05
_LOG = structlog.get_logger("alerts")


class PartitionRules(Protocol):
    """An evaluation whose rules may change while it runs."""

    def take(self, fixes: LiveFixes, now_ms: int, *, report: bool) -> Sequence[FoundEvent]:
        """See LiveEvaluation."""

    def change_rules(self, rules: Any) -> None:
        """Other fences hold from now on."""


class PartitionSettings(NamedTuple):
    """What all partitions of one tenant's topic have in common."""

    region: str
    tenants: frozenset[str]
    unsealer: Unsealer
    rewind_ms: int


class OwnedPartition:
    """A partition whose exclusive subscription this process has. `run` is its thread's; `stop` ends it in order."""

    def __init__(
        self,
        name: str,
        settings: PartitionSettings,
        client: Any,
        consumer: Any,
        *,
        outbox: Outbox,
        rules: Callable[[], Any],
        evaluate: Callable[[Any], PartitionRules],
        metrics: AlertMetrics,
    ) -> None:
        self.name = name
        self._settings, self._client, self._consumer, self._outbox = settings, client, consumer, outbox
        self._rules_now, self._evaluate, self._metrics = rules, evaluate, metrics
        self._order: AckOrder[Any] = AckOrder()
        self._stop = threading.Event()
        self._rules = rules()
        self._live = evaluate(self._rules)
        self._rewound: RewindEnd | None = None
        self._lost_at_s: float | None = None
        self.is_rebuilt = False
        self.lost_reason = ""
        self.newest_ms: int | None = None
        self.turned_s = time.monotonic()

    @property
    def problem(self) -> str:
        """Why its alerts may not come; empty when nothing is wrong."""
        if not self.is_rebuilt:
            return f"{self.name}: its state is being rebuilt"
        return f"{self.name}: {self._outbox.problem}" if self._outbox.problem else ""

    @property
    def unreceipted(self) -> int:
        """How many alerts have no receipt yet."""
        return self._order.unreceipted

    def lag_s(self, now_s: float) -> float:
        """The age of the newest message that was read; 0 when there was none left."""
        newest_ms = self.newest_ms
        return 0.0 if newest_ms is None else max(now_s - newest_ms / 1000, 0.0)

    def stop(self) -> None:
        """Read nothing more, wait for the receipts of what was read, and give the partition back."""
        self._stop.set()

    def run(self, finish_s: float) -> None:
        """Serves until it is stopped, then for at most `finish_s` until all is receipted; or until it is lost."""
        try:
            first = self._received()
            if self._rebuild(first):
                self._handle(first)
            while not self._stop.is_set() and not self._is_lost():
                self._turn()
            self._finish(finish_s)
        except (pulsar.PulsarException, PulsarUnreachable) as error:
            self.lost_reason = f"{type(error).__name__}: {error}"
        finally:
            self._outbox.close()
            _close(self._consumer)

    def _turn(self) -> None:
        self.turned_s = time.monotonic()
        self._acknowledge()
        if (rules := self._rules_now()) is not self._rules:
            self._rules = rules
            self._live.change_rules(rules)
        if self._outbox.is_full or len(self._order) >= MAX_TAKEN:
            self._outbox.came.wait(_FULL_WAIT_S)
            return
        messages = self._received()
        if messages and self._rewound is not None:
            rewound_to, self._rewound = self._rewound, None
            # One that the owner before left, and that came late: what follows from it is still to be said.
            if not rewound_to.is_before(position_of(messages[0].message_id())) and not self._rebuild(messages):
                return
        self._handle(messages)

    def _received(self) -> list[Any]:
        """What comes within a window from the first message on; nothing when none came for a moment."""
        try:
            first = self._consumer.receive(RECEIVE_MS if self.is_rebuilt else FIRST_WAIT_MS)
        except pulsar.Timeout:
            self.newest_ms = None
            return []
        return [first, *self._consumer.batch_receive()]

    def _rebuild(self, messages: Sequence[Any]) -> bool:
        """The state as it was before the first of these messages; without any, as it is behind the last one.

        Whether it is whole: it is not where this is stopped.
        """
        began_s, self.is_rebuilt = time.monotonic(), False
        self._live = self._evaluate(self._rules)
        if messages:
            end = RewindEnd(position_of(messages[0].message_id()), included=False)
            until_ms = messages[0].publish_timestamp()
        else:
            end = RewindEnd(position_of(self._consumer.get_last_message_id()), included=True)
            until_ms = round(time.time() * 1000)
            self._rewound = end
        since_ms = max(until_ms - self._settings.rewind_ms, 0)
        count = 0
        for part in _parts(self._read(rewound(self._client, self.name, since_ms, end))):
            if self._stop.is_set():
                return False
            self.turned_s = time.monotonic()
            count += len(part.messages)
            self._take(part, report=False)
        self.is_rebuilt = True
        seconds = time.monotonic() - began_s
        self._metrics.on_rebuilt(seconds)
        _LOG.info("partition taken", partition=self.name, messages=count, seconds=round(seconds, 3))
        return True

    def _handle(self, messages: Iterable[Any]) -> None:
        for part in _parts(self._read(messages)):
            self.newest_ms = part.messages[-1].publish_timestamp()
            found = self._take(part, report=True)
            now_ms = round(time.time() * 1000)
            alerts = [_alert(one, part.received_ms, self._settings.region, now_ms) for one in found]
            self._outbox.add(alerts, self._order.take(part.messages[-1].message_id(), len(alerts)))
            self._acknowledge()

    def _take(self, part: _Part, *, report: bool) -> Sequence[FoundEvent]:
        if not part.batches:
            return ()
        began_s = time.monotonic()
        try:
            found = self._evaluated(part.batches, report=report)
        except Exception as error:  # noqa: BLE001 - of whatever kind: one batch must not end the alerts of all
            _LOG.error("an evaluation failed; its batches are evaluated one by one", problem=last_line(error))
            found = [event for one in part.batches for event in self._evaluated_alone(one, report=report)]
        if report:
            self._metrics.on_evaluated(sum(map(len, part.batches)), time.monotonic() - began_s)
        return found

    def _evaluated(self, batches: Sequence[BatchFixes], *, report: bool) -> Sequence[FoundEvent]:
        return self._live.take(LiveFixes.of(batches), round(time.time() * 1000), report=report)

    def _evaluated_alone(self, batch: BatchFixes, *, report: bool) -> Sequence[FoundEvent]:
        try:
            return self._evaluated([batch], report=report)
        except Exception as error:  # noqa: BLE001 - as above
            self._metrics.on_passed_over("internal-error")
            name = f"{batch.tenant}/{batch.device}"
            _LOG.error("a batch is passed over", partition=self.name, device=name, problem=last_line(error))
            return ()

    def _read(self, messages: Iterable[Any]) -> Iterator[tuple[Any, BatchFixes | None]]:
        """Each message, and its fixes; None where it is passed over."""
        for message in messages:
            try:
                yield (
                    message,
                    read_fixes(
                        message.data(),
                        _properties(message),
                        received_ms=message.publish_timestamp(),
                        tenants=self._settings.tenants,
                        unsealer=self._settings.unsealer,
                    ),
                )
            except PassedOver as passed:
                if self.is_rebuilt:
                    self._metrics.on_passed_over(passed.reason)
                    _LOG.warning("a message is passed over", partition=self.name, problem=str(passed))
                yield message, None

    def _acknowledge(self) -> None:
        for sent in self._outbox.pump():
            self._order.on_receipt(sent.taken)
            self._metrics.on_published(sent.alert.kind, time.time() - sent.alert.received_ms / 1000)
        position = self._order.pop_done()
        if position is not None:
            self._consumer.acknowledge_cumulative(position)

    def _finish(self, finish_s: float) -> None:
        ends_s = time.monotonic() + finish_s
        self._acknowledge()
        while len(self._order) and time.monotonic() < ends_s and not self._is_lost():
            self._outbox.came.wait(_FULL_WAIT_S)
            self._acknowledge()

    def _is_lost(self) -> bool:
        """Whether the subscription is gone for so long that the partition is another's, or may be."""
        if self._consumer.is_connected():
            self._lost_at_s = None
            return False
        now_s = time.monotonic()
        self._lost_at_s = self._lost_at_s or now_s
        if now_s - self._lost_at_s < LOST_AFTER_S:
            return False
        self.lost_reason = "the subscription is not connected"
        return True


class _Part(NamedTuple):
    """Messages that are evaluated together, the batches with fixes in them, and when each device's came last."""

    messages: list[Any]
    batches: list[BatchFixes]
    received_ms: dict[tuple[str, str], int]


def _parts(read: Iterable[tuple[Any, BatchFixes | None]]) -> Iterator[_Part]:
    """Messages in groups of at most about MAX_FIXES fixes."""
    part, fixes = _Part([], [], {}), 0
    for message, batch in read:
        part.messages.append(message)
        if batch is not None and len(batch):
            part.batches.append(batch)
            part.received_ms[batch.tenant, batch.device] = message.publish_timestamp()
            fixes += len(batch)
        if fixes >= MAX_FIXES or len(part.messages) >= MAX_MESSAGES:
            yield part
            part, fixes = _Part([], [], {}), 0
    if part.messages:
        yield part


def _alert(found: FoundEvent, received_ms: dict[tuple[str, str], int], region: str, now_ms: int) -> Alert:
    event = found.event
    return Alert(
        id=found.id,
        tenant=found.tenant,
        device=found.device,
        region=region,
        epoch=event.epoch,
        seq=event.seq,
        kind=cast("Kind", event.kind),
        place=event.place,
        t_ms=event.t_ms,
        value=event.value,
        received_ms=received_ms[found.tenant, found.device],
        raised_ms=now_ms,
    )


def _properties(message: Any) -> dict[str, str]:
    try:
        return dict(message.properties())
    except UnicodeDecodeError:
        # Of nobody: it is passed over as that.
        return {}


def _close(consumer: Any) -> None:
    try:
        consumer.close()
    except pulsar.PulsarException:
        return
