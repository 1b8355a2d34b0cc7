"""Alerts and verdicts as they come from the topics of the centre's cluster, each with its acknowledgement.

One process has them at a time: whoever has the exclusive subscription of the first topic. Another one waits for it, and
takes over when it ends.
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

from runtime.backoff import Backoff
from runtime.pulsar_client import PulsarAccessError, close_quietly

__all__ = ["AlertIntake", "AlertTopic", "TakenMessage"]

MAX_TAKEN: Final = 1000
"""So many messages are read ahead of whoever decides on them."""
# of each topic: what a crash lets come again is not much more
RECEIVER_QUEUE: Final = 200
# so that a thread that is to stop does
_WAIT_MS: Final = 500
# so often a thread that may not go on says that it lives
_PUT_S: Final = 0.2
# the client's own time-out ends what hangs for longer
_CLOSE_S: Final = 3.0
LOST_AFTER_S: Final = 10.0
"""A subscription that is not connected for so long is given up: another process may have it, and the client, which
tries again by itself, does not say so."""
_LOG = structlog.get_logger("webhooks")


class AlertTopic(NamedTuple):
    """A topic, whose it is, and whether it has verdicts."""

    name: str
    tenant: str
    is_verdicts: bool


class TakenMessage(NamedTuple):
    """One message. `place` distinguishes it from all others; `acknowledge` is called once, when all has ended."""

    topic: AlertTopic
    place: str
    data: bytes
    acknowledge: Callable[[], object]


class AlertIntake:
    """A thread for each topic, which puts what it reads into `taken`. `may_read`: whether more is to be read now."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        subscription: str,
        topics: Sequence[AlertTopic],
        may_read: Callable[[], bool] = lambda: True,
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
        """Whether all its threads run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def is_standby(self) -> bool:
        """Whether another process has the alerts; one that is refused them, or cannot reach them, is none."""
        return self._is_others and not self._has_first.is_set()

    @property
    def turned_s(self) -> float:
        """When the thread turned that did so longest ago, by the monotonic clock."""
        return min(self._turned_s.values())

    @property
    def problems(self) -> dict[str, str]:
        """The topics that are not read, and why."""
        return {name: problem for name, problem in self._problems.items() if problem}

    def start(self) -> None:
        """Begins to read."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Reads nothing more; what was taken may still be acknowledged."""
        self._stop.set()

    def close(self) -> None:
        """Gives the subscriptions back; what is not acknowledged comes again."""
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
                # a client for each topic: one topic whose reading hangs does not hold up the others
                client = self._open_client()
                consumer = client.subscribe(
                    topic.name,
                    self._subscription,
                    receiver_queue_size=RECEIVER_QUEUE,
                    initial_position=pulsar.InitialPosition.Earliest,
                )
                if is_first:
                    self._has_first.set()
                backoff.reset()
                self._note(topic, "")
                self._follow(topic, consumer)
                self._on_ended(is_first=is_first, is_busy=False)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._on_ended(is_first=is_first, is_busy=isinstance(error, pulsar.ConsumerBusy))
                self._note(topic, f"{type(error).__name__}: {error}")
                self._stop.wait(backoff.take_delay_s())
            finally:
                close_quietly(client)

    def _on_ended(self, *, is_first: bool, is_busy: bool) -> None:
        if is_first:
            # whoever has it now has the others, too
            self._is_others = is_busy
            self._has_first.clear()

    def _follow(self, topic: AlertTopic, consumer: Any) -> None:
        """Until the end, or until it is lost."""
        connected_s = time.monotonic()
        while not self._is_closing and self._has_first.is_set():
            self._turned_s[topic.name] = time.monotonic()
            if self._stop.is_set() or not self._may_read():
                # its acknowledgements still go through this consumer
                connected_s = time.monotonic()
                time.sleep(_PUT_S)
                continue
            is_connected = consumer.is_connected()
            self._note(topic, "" if is_connected else "the connection to the cluster is lost")
            connected_s = time.monotonic() if is_connected else connected_s
            if time.monotonic() - connected_s >= LOST_AFTER_S:
                return
            try:
                message = consumer.receive(_WAIT_MS)
            except pulsar.Timeout:
                continue
            self._put(_taken(topic, consumer, message))

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


def _taken(topic: AlertTopic, consumer: Any, message: Any) -> TakenMessage:
    place = message.message_id()

    def acknowledge() -> None:
        try:
            consumer.acknowledge(place)
        except pulsar.PulsarException as error:
            # It comes again, with the same key.
            _LOG.warning("an acknowledgement failed", topic=topic.name, problem=str(error))

    return TakenMessage(topic, f"{topic.name} {place}", message.data(), acknowledge)
