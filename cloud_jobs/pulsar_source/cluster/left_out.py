"""The topics of a cluster that are left out of batches because they cannot be read: why, and when each is tried again.

So that one tenant's topic holds up no other's. What is tried costs the others time (a broker that does not answer is
waited for), so a topic that cost much is tried rarely.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState
from cloud_jobs.pulsar_source.errors import AccessRefused, PulsarSourceError, SourceClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.topics import TopicName
from geo.replication.topic_naming import split_partition

_log = structlog.get_logger(__name__)
_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 30.0
_COST_SHARE = 0.05
"""The most of the others' time that goes into trying one topic."""

Ask = Callable[[TopicName], dict[str, PartitionState]]


@dataclass(slots=True)
class _Held:
    reason: str
    wait_s: float
    again_at_s: float
    is_tried: bool = False


class LeftOutTopics:
    """Topics by their full names; calls that take a partition mean its topic. The clock counts seconds."""

    def __init__(self, cluster: str, options: PulsarOptions, clock: Callable[[], float]) -> None:
        self._cluster, self._clock = cluster, clock
        self._named = frozenset(map(str, options.topics))
        self._silence_s = 2 * options.cluster_lost_after_seconds
        """Longer than a cluster may be silent: another cluster that has the topic is read instead."""
        self._held: dict[str, _Held] = {}
        self._silent_since: dict[str, float] = {}

    def reasons(self) -> Mapping[str, str]:
        """Why each of them is left out; one that is being tried is still among them."""
        return {topic: held.reason for topic, held in sorted(self._held.items())}

    def __contains__(self, partition: str) -> bool:
        """Whether it is left out of what is read now; one that is tried is not."""
        held = self._held.get(self._topic_of(partition))
        return held is not None and not held.is_tried

    def hold(self, partition: str, reason: str, cost_s: float = 0.0) -> None:
        """Leaves it out until it is tried again; `cost_s`: how long the others waited for it."""
        topic = self._topic_of(partition)
        before = self._held.get(topic)
        wait_s = min(_MAX_WAIT_S, before.wait_s * 2) if before else _FIRST_WAIT_S
        self._held[topic] = _Held(reason, wait_s, self._clock() + max(wait_s, cost_s / _COST_SHARE))
        if before is None or before.reason != reason:
            _log.error("the topic is left out", cluster=self._cluster, topic=topic, reason=reason)

    def on_failure(self, partition: str, error: PulsarSourceError, cost_s: float = 0.0) -> None:
        """The cluster answers, and that topic cannot be read. Raises the error while it may be only late."""
        if isinstance(error, SourceClusterUnreachable):
            topic, now_s = self._topic_of(partition), self._clock()
            since_s = self._silent_since.setdefault(topic, now_s - cost_s)
            if topic not in self._held and now_s - since_s < self._silence_s:
                raise error
        self.hold(partition, str(error), cost_s)

    def on_served(self, partitions: Iterable[str]) -> None:
        """A batch was planned with them, as far as they are not left out since."""
        if not self._held and not self._silent_since:
            return
        for topic in {self._topic_of(partition) for partition in partitions}:
            if topic not in self:
                self._silent_since.pop(topic, None)
                if self._held.pop(topic, None):
                    _log.info("the topic is served again", cluster=self._cluster, topic=topic)

    def ask_each(self, pool: Executor, topics: Sequence[TopicName], ask: Ask) -> dict[str, PartitionState]:
        """The states of the partitions of those topics that answer. Raises what they all meet, as a cluster's failure.

        Where all are left out, all are asked.
        """
        now_s = self._clock()
        for held in self._held.values():
            held.is_tried = now_s >= held.again_at_s
        due = [topic for topic in topics if str(topic) not in self]
        if not due:
            due = list(topics)
            for held in self._held.values():
                held.is_tried = True
        answers = list(pool.map(lambda topic: self._ask(topic, ask), due))
        failed = [(topic, cost_s, found) for topic, cost_s, found in answers if isinstance(found, PulsarSourceError)]
        refusals = [error for _, _, error in failed if not isinstance(error, TopicMissing)]
        if refusals and len(failed) == len(due):
            raise refusals[0]
        for topic, cost_s, error in failed:
            self.on_failure(str(topic), error, cost_s)
        return {name: state for _, _, found in answers if isinstance(found, dict) for name, state in found.items()}

    def _ask(
        self, topic: TopicName, ask: Ask
    ) -> tuple[TopicName, float, dict[str, PartitionState] | PulsarSourceError]:
        began = self._clock()
        try:
            return topic, 0.0, ask(topic) or TopicMissing(self._cluster, str(topic))
        except (TopicMissing, AccessRefused, SourceClusterUnreachable) as error:
            return topic, self._clock() - began, error

    def _topic_of(self, partition: str) -> str:
        return partition if partition in self._named else split_partition(partition)[0]
