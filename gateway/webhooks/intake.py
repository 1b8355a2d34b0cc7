"""Reads alerts and verdicts from the topics of the centre's cluster.

The process with the exclusive subscription of the first topic reads all topics. Another process waits for it and takes
over when it ends.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pulsar
import structlog

from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly
from waybill.pulsar.pulsar_positions import Silence, position_of

MAX_TAKEN: Final = 1000
"""Messages that are read ahead."""
# per topic; after a crash not many more messages come again
RECEIVER_QUEUE: Final = 200
# a thread notices a stop within this time
_WAIT_MS: Final = 500
# for all partitions of a topic together, as each waits for the others
_WAIT_ALL_MS: Final = 100
# while messages flow, no wait for an idle partition
_NO_WAIT_MS: Final = 1
# a thread that has to wait reports this often that it is alive
_PUT_S: Final = 0.2
_CLOSE_S: Final = 3.0
LOST_AFTER_S: Final = 10.0
"""How long a subscription may be without a connection. The client does not say when another process has got it."""
LOOK_S: Final = 30.0
"""How often new partitions of a topic are looked for."""
_LOG = structlog.get_logger("webhooks")


class AlertTopic(NamedTuple):
    name: str
    tenant: str
    is_verdicts: bool


class TakenMessage(NamedTuple):
    """One message. `place` is its unique position; `acknowledge` is called once, when all of its deliveries have
    ended.
    """

    topic: AlertTopic
    place: str
    data: bytes
    acknowledge: Callable[[], object]


class _PartitionReading(NamedTuple):
    name: str
    consumer: Any
    silence: Silence

    @property
    def problem(self) -> str:
        return self.silence.problem(is_connected=self.consumer.is_connected())

    def receive(self, wait_ms: int) -> Any:
        """The next message; None: none came in time. Raises PulsarException."""
        try:
            message = self.consumer.receive(wait_ms)
        except pulsar.Timeout:
            # without a connection this call would wait for the cluster
            if self.silence.is_to_ask(time.monotonic()) and self.consumer.is_connected():
                self.silence.on_end(position_of(self.consumer.get_last_message_id()).of_entry, time.monotonic())
            return None
        self.silence.on_read(position_of(message.message_id()).of_entry, time.monotonic())
        return message

    def begin(self) -> None:
        self.silence.on_begin(position_of(self.consumer.get_last_message_id()).of_entry, time.monotonic())


class AlertIntake:
    """A thread for each topic puts messages into `taken`. `may_read`: whether more messages of a tenant may be read."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        subscription: str,
        topics: Sequence[AlertTopic],
        may_read: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._open_client, self._subscription, self._may_read = open_client, subscription, may_read
        self.topics = tuple(topics)
        self.taken: queue.Queue[TakenMessage] = queue.Queue(MAX_TAKEN)
        self._stop = threading.Event()
        self._has_first = threading.Event()
        self._is_others = self._is_closing = False
        self._problems: dict[str, str] = {one.name: "not subscribed yet" for one in self.topics}
        self._turned_s = {one.name: time.monotonic() for one in self.topics}
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name=f"reads {one.name}", daemon=True)
            for one in self.topics
        ]

    @property
    def is_running(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    @property
    def is_standby(self) -> bool:
        """Whether another process reads the alerts. A process whose access is refused is not a standby."""
        return self._is_others and not self._has_first.is_set()

    @property
    def turned_s(self) -> float:
        """When the slowest thread last completed a turn, by the monotonic clock."""
        return min(self._turned_s.values())

    @property
    def problems(self) -> dict[str, str]:
        return {name: problem for name, problem in self._problems.items() if problem}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Read nothing more. Messages that were taken may still be acknowledged."""
        self._stop.set()

    def close(self) -> None:
        """Close the subscriptions. Messages that are not acknowledged come again."""
        self._stop.set()
        self._is_closing = True
        ends_s = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(ends_s - time.monotonic(), 0.0))

    def _run(self, topic: AlertTopic) -> None:
        backoff, is_first = Backoff(0.2, 5.0, random.random), topic is self.topics[0]
        while not self._stop.is_set():
            self._turned_s[topic.name] = time.monotonic()
            if not is_first and not self._has_first.wait(_PUT_S):
                continue
            client: Any = None
            try:
                # a client for each topic, so that one that hangs does not block the others
                client = self._open_client()
                partitions = self._subscribed(client, topic)
                if is_first:
                    self._has_first.set()
                backoff.reset()
                self._note(topic, "")
                self._follow(topic, client, partitions)
                self._on_ended(is_first=is_first, is_busy=False)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._on_ended(is_first=is_first, is_busy=isinstance(error, pulsar.ConsumerBusy))
                self._note(topic, f"{type(error).__name__}: {error}")
                self._stop.wait(backoff.take_delay_s())
            finally:
                close_quietly(client)

    def _subscribed(self, client: Any, topic: AlertTopic) -> list[_PartitionReading]:
        names = client.get_topic_partitions(topic.name)
        partitions = [
            _PartitionReading(
                name,
                client.subscribe(
                    name,
                    self._subscription,
                    receiver_queue_size=max(RECEIVER_QUEUE // len(names), 1),
                    initial_position=pulsar.InitialPosition.Earliest,
                ),
                Silence(),
            )
            for name in names
        ]
        for one in partitions:
            one.begin()
        return partitions

    def _on_ended(self, *, is_first: bool, is_busy: bool) -> None:
        if is_first:
            # the process that has the first topic has the others, too
            self._is_others = is_busy
            self._has_first.clear()

    def _follow(self, topic: AlertTopic, client: Any, partitions: Sequence[_PartitionReading]) -> None:
        """Read until the end, until a partition is lost or gives nothing, or until the topic gets more partitions."""
        connected_s = looked_s = time.monotonic()
        idle_ms = _WAIT_MS if len(partitions) == 1 else max(_WAIT_ALL_MS // len(partitions), 1)
        wait_ms = idle_ms
        while not self._is_closing and self._has_first.is_set():
            self._turned_s[topic.name] = now_s = time.monotonic()
            problem = next((one.problem for one in partitions if one.problem), "")
            self._note(topic, problem)
            if self._stop.is_set() or not self._may_read(topic.tenant):
                # acknowledgements still need these consumers
                connected_s = now_s
                time.sleep(_PUT_S)
                continue
            connected_s = connected_s if problem else now_s
            if now_s - connected_s >= LOST_AFTER_S:
                return
            if now_s - looked_s >= LOOK_S and not problem:
                looked_s = now_s
                if _has_others(client, topic, partitions):
                    return
            has_come = False
            for one in partitions:
                has_come |= self._drain(topic, one, _NO_WAIT_MS if has_come else wait_ms)
            wait_ms = _NO_WAIT_MS if has_come else idle_ms

    def _drain(self, topic: AlertTopic, partition: _PartitionReading, wait_ms: int) -> bool:
        """Take what a partition has; returns whether anything came in time."""
        for count in range(RECEIVER_QUEUE):
            if count and (self._stop.is_set() or not self._may_read(topic.tenant)):
                return True
            message = partition.receive(_NO_WAIT_MS if count else wait_ms)
            if message is None:
                return count > 0
            self._put(_taken(topic, partition, message))
        return True

    def _put(self, message: TakenMessage) -> None:
        while not self._stop.is_set():
            try:
                self.taken.put(message, timeout=_PUT_S)
            except queue.Full:
                self._turned_s[message.topic.name] = time.monotonic()
            else:
                return

    def _note(self, topic: AlertTopic, problem: str) -> None:
        if problem != self._problems[topic.name]:
            _LOG.info("topic", topic=topic.name, problem=problem)
        self._problems[topic.name] = problem


def _has_others(client: Any, topic: AlertTopic, partitions: Sequence[_PartitionReading]) -> bool:
    try:
        found: list[str] = client.get_topic_partitions(topic.name)
    except pulsar.PulsarException as error:
        _LOG.warning("partitions are not known", topic=topic.name, problem=str(error))
        return False
    return found != [one.name for one in partitions]


def _taken(topic: AlertTopic, partition: _PartitionReading, message: Any) -> TakenMessage:
    place = message.message_id()

    def acknowledge() -> None:
        try:
            partition.consumer.acknowledge(place)
        except pulsar.PulsarException as error:
            # it comes again with the same key
            _LOG.warning("an acknowledgement failed", topic=topic.name, problem=str(error))

    return TakenMessage(topic, f"{partition.name} {place}", message.data(), acknowledge)
