"""Alerts from Pulsar: the topics of all regions at the first cluster that answers, acknowledged once they are stored.

A topic that cannot be read is left out, named and tried again; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pulsar
import structlog

from cloud_jobs.verdicts.collecting import TopicAlert
from runtime.pulsar_client import PulsarAccess, open_pulsar_client

_LOG = structlog.get_logger(__name__)
MAX_MESSAGES: Final = 5_000
"""So many messages are taken in one commit."""
_TIMEOUT_S: Final = 10
_FIRST_MS: Final = 20
"""So long a topic is waited for that has nothing; one that has something, for as long as it has more."""
_NEXT_MS: Final = 2
_TRY_AGAIN_S: Final = 5.0
_QUEUE: Final = 1_000


class AlertSubscription:
    """The subscription `name` on topics, each with its tenant. `problems`: why a topic is not read, by its name."""

    def __init__(
        self,
        service_urls: Sequence[str],
        access: PulsarAccess,
        topics: Mapping[str, str | None],
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls, self._access, self._topics, self._name, self._clock = service_urls, access, topics, name, clock
        self._client: Any = None
        self._consumers: dict[str, Any] = {}
        self._taken: list[tuple[str, Any]] = []
        self._at = 0
        self._try_at_s = float("-inf")
        self.problems: dict[str, str] = {}

    def read(self) -> list[TopicAlert]:
        """What is there, at most so many messages; none while no cluster answers."""
        self._subscribe()
        self._taken = []
        found: list[TopicAlert] = []
        for topic, consumer in [*self._consumers.items()]:
            try:
                self._drain(topic, consumer, found)
            except pulsar.PulsarException as error:
                self._lose(topic, str(error))
        return found

    def acknowledge(self) -> None:
        """What was read last is stored. A message whose acknowledgement is lost comes again, and is there already."""
        for topic, message in self._taken:
            if (consumer := self._consumers.get(topic)) is not None:
                with contextlib.suppress(pulsar.PulsarException):
                    consumer.acknowledge(message)
        self._taken = []

    def close(self) -> None:
        """Leave the topics; what was not acknowledged comes again."""
        self._consumers.clear()
        if self._client is not None:
            with contextlib.suppress(pulsar.PulsarException):
                self._client.close()
            self._client = None

    def _drain(self, topic: str, consumer: Any, found: list[TopicAlert]) -> None:
        wait_ms = _FIRST_MS
        while len(found) < MAX_MESSAGES:
            try:
                message = consumer.receive(wait_ms)
            except pulsar.Timeout:
                return
            wait_ms = _NEXT_MS
            found.append(TopicAlert(topic, self._topics[topic], message.data()))
            self._taken.append((topic, message))

    def _subscribe(self) -> None:
        """Subscribes to what is not read yet, now and then; at another cluster if none of the topics can be read."""
        missing = [topic for topic in self._topics if topic not in self._consumers]
        if not missing or self._clock() < self._try_at_s:
            return
        self._try_at_s = self._clock() + _TRY_AGAIN_S
        if self._client is None:
            self._client = open_pulsar_client(self._urls[self._at], self._access, timeout_s=_TIMEOUT_S)
        for topic in missing:
            try:
                self._consumers[topic] = self._client.subscribe(
                    topic,
                    self._name,
                    consumer_type=pulsar.ConsumerType.Failover,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=_QUEUE,
                    replicate_subscription_state_enabled=True,
                )
            except pulsar.PulsarException as error:
                self._lose(topic, str(error))
                if not self._consumers:
                    # a cluster that does not answer: the other topics would wait for it as long again
                    break
            else:
                self.problems.pop(topic, None)
        if not self._consumers:
            self.close()
            self._at = (self._at + 1) % len(self._urls)

    def _lose(self, topic: str, problem: str) -> None:
        if self.problems.get(topic) != problem:
            _LOG.warning("alerts cannot be read", topic=topic, problem=problem)
        self.problems[topic] = problem
        if (consumer := self._consumers.pop(topic, None)) is not None:
            with contextlib.suppress(pulsar.PulsarException):
                consumer.close()
