"""How one cluster stands: its topic partitions, their states and what is kept with the subscriptions."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar
from uuid import uuid4

import structlog

from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.cluster.left_out import LeftOutTopics
from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, SubscriptionProperties
from cloud_jobs.pulsar_source.errors import AccessRefused, SourceClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.topics import TopicName
from geo.replication.topic_naming import split_partition

_PARALLEL = 8
_LOADED_TOGETHER = 32
"""How many partitions of a topic a broker may have to load before it answers one question."""
_MAX_NAMED = 20

_log = structlog.get_logger(__name__)

_T = TypeVar("_T")
States = Mapping[str, PartitionState]
"""Topic partition -> its state."""


Start = str | datetime
"""Where a subscription begins that does not exist yet: earliest, latest or a publish time."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster's topic partitions at one moment.

    `created` are those where the durable subscription was missing after the query had begun, see `FailoverState`.
    `properties`: what is kept with each subscription. `left_out`: topics that cannot be read, see `LeftOutTopics`; none
    of their partitions is in `states`.
    """

    cluster: SourceCluster
    states: States
    created: frozenset[str] = frozenset()
    properties: Mapping[str, SubscriptionProperties] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def leaves_out(self, partition: str) -> bool:
        """Whether the topic of a partition cannot be read."""
        return not self.left_out.isdisjoint({partition, split_partition(partition)[0]})

    def without(self, left_out: LeftOutTopics) -> "ClusterView":
        """Without the topics that were left out since the cluster was looked at."""
        states = {name: state for name, state in self.states.items() if name not in left_out}
        return replace(self, states=states, left_out=frozenset(filter(left_out.__contains__, left_out.reasons())))


class ClusterSurvey:
    """Asks one cluster about the topics of the options; keeps its connections and the list of topics."""

    def __init__(
        self,
        cluster: SourceCluster,
        options: PulsarOptions,
        admin: SourceAdmin | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.left_out = LeftOutTopics(cluster.name, options, clock)
        self._options = options
        self._admin = admin or SourceAdmin(cluster, options, options.call_timeout_s())
        self._pool = ThreadPoolExecutor(max_workers=_PARALLEL, thread_name_prefix="pulsar-survey")
        self._topics: list[TopicName] = []
        self._topics_at = float("-inf")
        self._loaded: set[TopicName] = set()
        self._unreadable: frozenset[str] = frozenset()
        self._known_clusters: frozenset[str] | None = None
        self._properties: dict[str, tuple[tuple[str, str], SubscriptionProperties]] = {}

    def close(self) -> None:
        """Gives the connections back."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._admin.close()

    def states(self) -> dict[str, PartitionState]:
        """Every topic partition as it stands now, as the options' subscription sees it; missing topics are left out."""
        topics = self._list_topics()
        try:
            if self._options.leaves_out:
                return self.left_out.ask_each(self._pool, topics, self._load_and_ask)
            self._load([topic for topic in topics if topic not in self._loaded])
            answers = self._pool.map(self._states_of, topics)
            return {name: state for answer in answers for name, state in answer.items()}
        except SourceClusterUnreachable:
            self._loaded.clear()  # the broker that takes over has loaded nothing
            raise

    def _load(self, topics: Sequence[TopicName]) -> None:
        """Has the broker load partitions before it is asked for all: it would answer when the last is loaded."""
        partitions = self._pool.map(self._partitions_of, topics)
        list(
            self._pool.map(
                self._load_one, [name for names in partitions if len(names) > _LOADED_TOGETHER for name in names]
            )
        )
        self._loaded.update(topics)

    def _load_and_ask(self, topic: TopicName) -> dict[str, PartitionState]:
        """One topic's states, in this thread."""
        if topic not in self._loaded:
            partitions = self._partitions_of(topic)
            for name in partitions if len(partitions) > _LOADED_TOGETHER else ():
                self._load_one(name)
            self._loaded.add(topic)
        return self._admin.partition_states(topic, self._options.subscription or "")

    def _partitions_of(self, topic: TopicName) -> list[str]:
        try:
            return self._admin.partitions(topic)
        except TopicMissing:
            return []

    def _load_one(self, partition: str) -> None:
        with suppress(TopicMissing):
            self._admin.partition_state(partition, "")

    def _states_of(self, topic: TopicName) -> dict[str, PartitionState]:
        try:
            return self._admin.partition_states(topic, self._options.subscription or "")
        except TopicMissing:
            return {}

    def ensure_properties(self, states: States) -> dict[str, SubscriptionProperties]:
        """What is kept with each subscription that exists; written where there is nothing yet.

        Whoever may consume may write it. Asked again only when the broker has opened the topic or the cursor again.
        """
        opened = {
            topic: (state.ledger_created_at, state.cursor_created_at) for topic, state in states.items() if state.cursor
        }
        stale = [
            topic for topic, key in opened.items() if topic not in self._properties or self._properties[topic][0] != key
        ]
        for topic, properties in zip(stale, self._each(self._update_properties, stale), strict=True):
            self._properties.pop(topic, None)
            if properties is not None:
                self._properties[topic] = (opened[topic], properties)
        return {topic: self._properties[topic][1] for topic in opened if topic in self._properties}

    def record_planned(self, created_times: Mapping[str, str]) -> dict[str, SubscriptionProperties]:
        """Keeps for good that batches are planned in those openings, by topic partition; returns what is kept then."""
        return self._change(created_times, SubscriptionProperties.with_planned)

    def record_acknowledged(self, created_times: Mapping[str, str]) -> None:
        """Keeps for good that batches of those openings are acknowledged, by topic partition."""
        self._change(created_times, SubscriptionProperties.with_acknowledged)

    def _change(
        self, created_times: Mapping[str, str], change: Callable[[SubscriptionProperties, str], SubscriptionProperties]
    ) -> dict[str, SubscriptionProperties]:
        kept = {topic: self._properties[topic] for topic in created_times if topic in self._properties}
        new = [
            topic for topic, (_, properties) in kept.items() if change(properties, created_times[topic]) != properties
        ]
        changed = self._pool.map(
            lambda topic: self._update_properties(topic, lambda properties: change(properties, created_times[topic])),
            new,
        )
        for topic, properties in zip(new, changed, strict=True):
            if properties is not None:
                self._properties[topic] = (kept[topic][0], properties)
        return {topic: self._properties[topic][1] for topic in kept}

    def _update_properties(
        self,
        partition: str,
        change: Callable[[SubscriptionProperties], SubscriptionProperties] = lambda properties: properties,
    ) -> SubscriptionProperties | None:
        try:
            return self._admin.update_subscription_properties(partition, self._options.subscription_name(), change)
        except TopicMissing:
            return None

    def known_clusters(self) -> frozenset[str]:
        """The names of clusters that messages can come from."""
        if self._known_clusters is None:
            named = {cluster.name for cluster in self._options.all_clusters()}
            self._known_clusters = self._admin.cluster_names() | named
        return self._known_clusters

    def subscribe_missing(self, states: States, start: Start) -> bool:
        """Creates the durable subscription where there is none, at `start` (earliest, latest or a time).

        One whose creator ended before the cursor was at its start is brought there. Whether a cursor was moved.
        """
        missing = [topic for topic, state in states.items() if state.cursor is None]
        self._each(lambda topic: self._subscribe(topic, start), missing)
        begun = [topic for topic, properties in self.ensure_properties(states).items() if properties.starting]
        self._each(self._place, (*missing, *begun))
        return bool(missing or begun)

    def _each(self, work: Callable[[str], _T | None], partitions: Sequence[str]) -> list[_T | None]:
        """What is done for each partition; raises what one of them raised, unless its topic is left out for it."""
        return list(self._pool.map(lambda partition: self._alone(work, partition), partitions))

    def _alone(self, work: Callable[[str], _T | None], partition: str) -> _T | None:
        try:
            return work(partition)
        except (AccessRefused, SourceClusterUnreachable) as error:
            if not self._options.leaves_out:
                raise
            self.left_out.on_failure(partition, error)
            return None

    def _subscribe(self, topic: str, start: Start) -> None:
        options, properties = self._options, SubscriptionProperties.of_new(uuid4().hex[:12], start)
        with suppress(TopicMissing):  # the next look shows it
            self._admin.subscribe(
                topic,
                options.subscription_name(),
                properties.to_properties(),
                replicated=options.replicate_subscription,
            )

    def _place(self, topic: str) -> None:
        self._properties.pop(topic, None)
        properties = self._update_properties(topic)
        if properties is not None and properties.starting:
            # The cursor before the note that it is placed: a process that ends between leaves it to be placed again.
            self._admin.set_cursor(topic, self._options.subscription_name(), properties.starting_ms())
            self._update_properties(topic, SubscriptionProperties.with_cursor_placed)

    def _list_topics(self) -> list[TopicName]:
        if self._options.topics:
            return list(self._options.topics)
        now = time.monotonic()
        if now - self._topics_at >= self._options.topic_discovery_seconds:
            namespace, pattern = self._options.pattern()
            listing = self._admin.list_topics(namespace)
            self._topics = [topic for topic in listing.topics if pattern.fullmatch(topic.name)]
            self._warn_unreadable(name for name in listing.unreadable if pattern.fullmatch(name.rpartition("/")[2]))
            # Last, so that a listing that failed is asked again at once.
            self._topics_at = now
        return self._topics

    def _warn_unreadable(self, names: Iterable[str]) -> None:
        unreadable = frozenset(names)
        if unreadable and unreadable != self._unreadable:
            _log.warning(
                "topics cannot be read",
                cluster=self.cluster.name,
                count=len(unreadable),
                topics=sorted(unreadable)[:_MAX_NAMED],
            )
        self._unreadable = unreadable


def check_topics(options: PulsarOptions, cluster: SourceCluster, states: States) -> None:
    """Raises TopicMissing when a topic that the options name does not exist."""
    there = {split_partition(name)[0] for name in states}
    for topic in options.topics:
        if str(topic) not in there and str(topic) not in states:
            raise TopicMissing(cluster.name, str(topic))
