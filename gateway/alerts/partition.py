"""One partition that this process owns: its batches are read, evaluated, and acknowledged once their alerts are safe.

In a thread of its own. Before anything is said, the state is made from the messages of a bounded time before the first
one that nobody acknowledged; what follows from those, the owner before has said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import pulsar
import structlog

from gateway.alerts.ack_order import AckOrder
from gateway.alerts.alert_sender import AlertSender
from gateway.alerts.batch_reading import UnusableBatch, read_batch
from gateway.alerts.evaluation import FoundEvent, LiveEvents
from gateway.alerts.evaluation_part import EvaluationPart, ReadBatch, alert_of, parts_of
from gateway.alerts.fix_columns import FixColumns
from gateway.alerts.gathering import pause_s
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.rewinding import RewindEnd, position_of, rewound
from gateway.alerts.rules import AlertRules
from gateway.errors import PulsarUnreachable, last_line
from identity import Unsealer

__all__ = ["OwnedPartition", "PartitionSettings"]

FIRST_WAIT_MS: Final = 300
"""So long a new owner waits for a message that was left: if there is none, it goes on behind the last one."""
RECEIVE_MS: Final = 250
MAX_BYTES: Final = 4 << 20
"""What is read in one window, at most."""
RECEIVER_QUEUE: Final = 500
MAX_TAKEN: Final = 10_000
"""While so many groups of messages wait for receipts, no more are read."""
MANY: Final = RECEIVER_QUEUE // 2
"""As many messages in one window are a backlog: nothing is awaited then."""
LOST_AFTER_S: Final = 2.0
"""A subscription that is not connected for so long is given up: another process may have the partition."""
# a receipt wakes it; this is for the one that was missed
_FULL_WAIT_S: Final = 0.05
_LOG = structlog.get_logger("alerts")


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
        sender: AlertSender,
        rules: Callable[[], AlertRules | None],
        evaluate: Callable[[AlertRules], LiveEvents],
        metrics: AlertMetrics,
    ) -> None:
        self.name = name
        self._settings, self._client, self._consumer, self._sender = settings, client, consumer, sender
        self._rules_now, self._evaluate, self._metrics = rules, evaluate, metrics
        self._order: AckOrder[Any] = AckOrder()
        self._stop = threading.Event()
        now = rules()
        assert now is not None, "nothing is claimed before there are rules"
        self._rules = now
        self._live = evaluate(now)
        self._passed_over: dict[str, int] = {}
        self._rewound: RewindEnd | None = None
        self._lost_at_s: float | None = None
        self._pause_s = 0.0
        self.is_rebuilt = False
        self.lost_reason = ""
        self.newest_ms: int | None = None
        self.turned_s = time.monotonic()

    @property
    def problem(self) -> str:
        """Why its alerts may not come; empty when nothing is wrong."""
        if not self.is_rebuilt:
            return f"{self.name}: its state is being rebuilt"
        return f"{self.name}: {self._sender.problem}" if self._sender.problem else ""

    @property
    def device_count(self) -> int:
        """Of how many devices something is held."""
        return self._live.device_count

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
            # before the state is made: the first message that was left says up to where it is made
            first = self._received()
            if self._rebuild(first):
                self._handle(first)
            while not self._stop.is_set() and not self._is_lost():
                self._turn()
            self._finish(finish_s)
        except (pulsar.PulsarException, PulsarUnreachable) as error:
            # of the cluster: the partition is given up, and whoever gets it makes its state anew
            self.lost_reason = f"{type(error).__name__}: {error}"
        finally:
            self._sender.close()
            _close(self._consumer)

    def _turn(self) -> None:
        self.turned_s = time.monotonic()
        self._acknowledge()
        rules = self._rules_now()
        if rules is not None and rules is not self._rules:
            self._rules = rules
            self._live.replace_rules(rules)
        if self._sender.is_full or len(self._order) >= MAX_TAKEN:
            self._sender.came.wait(_FULL_WAIT_S)
            return
        # what comes meanwhile is with the client: it is evaluated with what is awaited then
        self._stop.wait(self._pause_s)
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
        # An idle partition costs a wake-up four times a second, and not one for each window.
        return [first, *self._consumer.batch_receive()]

    def _rebuild(self, messages: Sequence[Any]) -> bool:
        """The state as it was before the first of these messages; without any, as it is behind the last one.

        Whether it is whole: it is not where this is stopped.
        """
        began_s, self.is_rebuilt = time.monotonic(), False
        # anew, not on top: what was known of these devices may be of a time in which somebody else had the partition
        self._live = self._evaluate(self._rules)
        if messages:
            end = RewindEnd(position_of(messages[0].message_id()), included=False)
            until_ms = messages[0].publish_timestamp()
        else:
            # Nothing is left, or it has not come yet: where the first message shows that, all is done again.
            end = RewindEnd(position_of(self._consumer.get_last_message_id()), included=True)
            until_ms = round(time.time() * 1000)
            self._rewound = end
        since_ms = max(until_ms - self._settings.rewind_ms, 0)
        count = 0
        for part in parts_of(self._read(rewound(self._client, self.name, since_ms, end))):
            if self._stop.is_set():
                return False
            self.turned_s = time.monotonic()
            count += len(part.messages)
            self._take(part, report=False)
        self._passed_over = asdict(self._live.passed_over)
        self.is_rebuilt = True
        seconds = time.monotonic() - began_s
        self._metrics.on_rebuilt(seconds)
        _LOG.info("partition taken", partition=self.name, messages=count, seconds=round(seconds, 3))
        return True

    def _handle(self, messages: Sequence[Any]) -> None:
        began_s = time.monotonic()
        for part in parts_of(self._read(messages)):
            self.newest_ms = part.messages[-1].publish_timestamp()
            found = self._take(part, report=True)
            now_ms = round(time.time() * 1000)
            alerts = [alert_of(one, self._settings.region, now_ms) for one in found]
            # also without alerts: it is acknowledged in its order
            self._sender.add(alerts, self._order.take(part.messages[-1].message_id(), len(alerts)))
            self._acknowledge()
        self._pause_s = pause_s(time.monotonic() - began_s, len(messages), MANY) if messages else 0.0

    def _take(self, part: EvaluationPart, *, report: bool) -> Sequence[FoundEvent]:
        if not part.batches:
            return ()
        began_s = time.monotonic()
        try:
            fixes = FixColumns.of(part.batches)
            found: Sequence[FoundEvent] = self._live.take(fixes, round(time.time() * 1000), report=report)
            count = len(fixes)
        except Exception as error:  # noqa: BLE001 - of whatever kind: one batch must not end the alerts of all
            _LOG.error("an evaluation failed; its batches are evaluated one by one", problem=last_line(error))
            found = [event for one in part.batches for event in self._evaluated_alone(one, report=report)]
            count = 0
        if report:
            self._metrics.on_evaluated(count, time.monotonic() - began_s)
            before, self._passed_over = self._passed_over, asdict(self._live.passed_over)
            self._metrics.on_fixes_passed_over(
                {reason: number - before.get(reason, 0) for reason, number in self._passed_over.items()}
            )
        return found

    def _evaluated_alone(self, batch: ReadBatch, *, report: bool) -> Sequence[FoundEvent]:
        try:
            return self._live.take(FixColumns.of([batch]), round(time.time() * 1000), report=report)
        except Exception as error:  # noqa: BLE001 - as above
            self._metrics.on_passed_over("internal-error")
            name = f"{batch[0]}/{batch[1].header.device}"
            _LOG.error("a batch is passed over", partition=self.name, device=name, problem=last_line(error))
            return ()

    def _read(self, messages: Iterable[Any]) -> Iterator[tuple[Any, ReadBatch | None]]:
        """Each message, and what is in it; None where it is passed over."""
        settings = self._settings
        for message in messages:
            try:
                tenant, columns = read_batch(
                    message.data(), _properties(message), tenants=settings.tenants, unsealer=settings.unsealer
                )
                yield message, (tenant, columns, message.publish_timestamp())
            except UnusableBatch as passed:
                if self.is_rebuilt:
                    self._metrics.on_passed_over(passed.reason)
                    _LOG.warning("a message is passed over", partition=self.name, problem=str(passed))
                yield message, None

    def _acknowledge(self) -> None:
        for sent in self._sender.pump():
            self._order.on_receipt(sent.taken)
            self._metrics.on_published(sent.alert.kind, time.time() - sent.alert.received_ms / 1000)
        # The client sends it within 100 ms, and by itself: one that is lost is a repetition, no loss.
        position = self._order.pop_done()
        if position is not None:
            self._consumer.acknowledge_cumulative(position)

    def _finish(self, finish_s: float) -> None:
        ends_s = time.monotonic() + finish_s
        self._acknowledge()
        while len(self._order) and time.monotonic() < ends_s and not self._is_lost():
            self._sender.came.wait(_FULL_WAIT_S)
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
