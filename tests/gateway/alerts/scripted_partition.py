"""A partition of a topic in memory, with readers and a subscription as the client gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulsar

from gateway.alerts.alert_sender import AlertSender
from gateway.alerts.config import EvaluationSettings
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition import OwnedPartition
from gateway.alerts.partition_evaluation import PartitionEvaluation, PartitionSettings
from gateway.alerts.standby import PartitionStandby, PreparedState
from geo.alerts import Alert, decode_alert
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix, live_rules
from waybill.daemon.backoff import Backoff
from waybill.identity.sealing import Unsealer
from waybill.pulsar.pulsar_positions import EntryPosition
from waybill.record import Batch, Position, Record, encode

NAME = "persistent://acme/telemetry-eu/batches-partition-0"
REWIND_MS = 100 * 365 * 86_400_000
"""Everything there is."""
RULES = live_rules()


class ScriptedMessage:
    """One that is its own id. Several of one entry were sent together."""

    def __init__(self, entry: int, batch_index: int, payload: bytes, publish_ms: int) -> None:
        self._place, self._payload, self._publish_ms = (7, entry, batch_index), payload, publish_ms

    def ledger_id(self) -> int:
        return self._place[0]

    def entry_id(self) -> int:
        return self._place[1]

    def batch_index(self) -> int:
        return self._place[2]

    def message_id(self) -> ScriptedMessage:
        return self

    def data(self) -> bytes:
        return self._payload

    def properties(self) -> dict[str, str]:
        return {"tenant": "acme", "region": "eu"}

    def publish_timestamp(self) -> int:
        return self._publish_ms


def messages_of(parts: Iterable[Sequence[LiveFix]], publish_ms: int = NOON) -> list[ScriptedMessage]:
    """One for each part, which is of one device; a second apart."""
    made = []
    for number, part in enumerate(parts):
        records = tuple(Record(one.seq, one.t_ms * 1000, _position(one)) for one in part)
        payload = encode(Batch(part[0].device, 7, part[-1].seq, records))
        made.append(ScriptedMessage(number, -1, payload, publish_ms + 1000 * number))
    return made


def _position(fix: LiveFix) -> Position:
    accuracy_m = None if fix.accuracy_m != fix.accuracy_m else fix.accuracy_m
    speed_mps = None if fix.speed_mps != fix.speed_mps else fix.speed_mps
    return Position(latitude=fix.latitude, longitude=fix.longitude, accuracy_m=accuracy_m, speed_mps=speed_mps)


@dataclass
class ScriptedTopic:
    """A partition's messages. As a client it gives readers; `read`: how many messages they gave."""

    messages: list[ScriptedMessage]
    read: int = 0

    def create_reader(self, name: str, start: Any, **_: object) -> ScriptedReader:
        assert name == NAME
        return ScriptedReader(self, self.messages.index(start) + 1 if isinstance(start, ScriptedMessage) else 0)


@dataclass
class ScriptedReader:
    topic: ScriptedTopic
    at: int = 0

    def seek(self, since_ms: int) -> None:
        later = (at for at, one in enumerate(self.topic.messages) if one.publish_timestamp() >= since_ms)
        self.at = next(later, len(self.topic.messages))

    def has_message_available(self) -> bool:
        return self.at < len(self.topic.messages)

    def read_next(self, _timeout_ms: int) -> ScriptedMessage:
        if not self.has_message_available():
            raise pulsar.Timeout
        self.at, self.topic.read = self.at + 1, self.topic.read + 1
        return self.topic.messages[self.at - 1]

    def close(self) -> None:
        """Leaves nothing behind."""


@dataclass
class ScriptedConsumer:
    """The exclusive subscription: gives `most` messages at once from the first that is not acknowledged.

    `silences`: so many times it gives nothing before the first. `on_end` is called once nothing is left.
    """

    topic: ScriptedTopic
    at: int
    most: int = 3
    silences: int = 0
    on_end: Callable[[], object] = lambda: None
    acknowledged: list[ScriptedMessage] = field(default_factory=list)

    def receive(self, _timeout_ms: int) -> ScriptedMessage:
        if self.silences:
            self.silences -= 1
            raise pulsar.Timeout
        if self.at >= len(self.topic.messages):
            self.on_end()
            raise pulsar.Timeout
        self.at += 1
        return self.topic.messages[self.at - 1]

    def batch_receive(self) -> list[ScriptedMessage]:
        first, self.at = self.at, min(self.at + self.most - 1, len(self.topic.messages))
        return self.topic.messages[first : self.at]

    def get_last_message_id(self) -> Any:
        return self.topic.messages[-1] if self.topic.messages else ScriptedMessage(-1, -1, b"", 0)

    def acknowledge_cumulative(self, message: ScriptedMessage) -> None:
        self.acknowledged.append(message)

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        """Gives it back."""


class ReceiptingProducer:
    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def send_async(self, payload: bytes, callback: Callable[[Any, Any], None], **_: Any) -> None:
        self.alerts.append(decode_alert(payload))
        callback(pulsar.Result.Ok, None)

    def close(self) -> None:
        """It is done."""


def partition_state(
    rules: Callable[[], AlertRules | None] = lambda: RULES,
    rewind_ms: int = REWIND_MS,
    metrics: AlertMetrics | None = None,
) -> PartitionEvaluation:
    common = PartitionSettings("eu", frozenset({"acme"}), Unsealer.of_folder(None), rewind_ms)
    settings = EvaluationSettings(max_age_s=3_153_600_000)
    return PartitionEvaluation(NAME, common, rules, lambda by: LiveEvents(by, settings), metrics or AlertMetrics())


def standby_of(topic: ScriptedTopic, acknowledged: Iterable[int], rewind_ms: int = REWIND_MS) -> PartitionStandby:
    """One that looked at a partition each time when so many entries were acknowledged."""
    until: list[EntryPosition] = []
    one = PartitionStandby(partition_state(rewind_ms=rewind_ms), topic, lambda: until[-1])
    reader = topic.create_reader(NAME, None)
    for entry in acknowledged:
        until.append(EntryPosition(7, entry))
        one.turn(reader)
    return one


@dataclass
class ServedPartition:
    """A partition that is served from a message on until nothing is left."""

    owned: OwnedPartition
    consumer: ScriptedConsumer
    alerts: list[Alert]
    metrics: AlertMetrics

    def run(self) -> None:
        self.owned.run(5.0)
        assert not self.owned.lost_reason

    @property
    def said(self) -> list[tuple[str, object]]:
        return [(alert.id, alert.event) for alert in self.alerts]


def served(
    topic: ScriptedTopic,
    first: int,
    prepared: PreparedState | None = None,
    *,
    silences: int = 0,
    rewind_ms: int = REWIND_MS,
    evaluating: threading.Lock | None = None,
    open_topic: Callable[[], object] = lambda: None,
    run: bool = True,
) -> ServedPartition:
    """By a new owner, from the first message that is not acknowledged on; without `run` it has not begun.

    `open_topic` is called before there is a producer of alerts.
    """
    producer, metrics = ReceiptingProducer(), AlertMetrics()

    def open_producer() -> ReceiptingProducer:
        open_topic()
        return producer

    consumer = ScriptedConsumer(topic, first, silences=silences)

    owned = OwnedPartition(
        partition_state(rewind_ms=rewind_ms, metrics=metrics),
        topic,
        consumer,
        sender=AlertSender(open_producer, Backoff(0.1, 1.0, lambda: 0.5), clock=time.monotonic),
        metrics=metrics,
        evaluating=evaluating or threading.Lock(),
        prepared=lambda: prepared,
    )
    consumer.on_end = owned.stop
    made = ServedPartition(owned, consumer, producer.alerts, metrics)
    if run:
        made.run()
    return made
