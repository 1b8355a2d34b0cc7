"""One cluster through its admin REST: topics, partitions, subscriptions, and topics that are left out."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import structlog
from pydantic import TypeAdapter

from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    OptionError,
    PulsarOptions,
    PulsarSourceError,
    SourceCluster,
    SourceClusterUnreachable,
    SourceConnectionRefused,
    TopicMissing,
    TopicName,
)
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionState, SubscriptionProperties
from geo.replication.admin import AdminClient
from geo.replication.errors import AdminRefused, ClusterUnreachable, NoConnection, UnusableAccess
from geo.replication.rest_types import (
    CLUSTERS,
    INTERNAL_STATS,
    PARTITIONED_INTERNAL_STATS,
    PARTITIONS,
    PROPERTIES,
    InternalStats,
)
from geo.replication.topic_naming import partition_name, split_partition
from waybill.pulsar.pulsar_client import PulsarAccess

# Admin REST calls of the source.

_NOT_FOUND, _CONFLICT, _PRECONDITION, _SERVER_ERROR = 404, 409, 412, 500
_BUSY = "Busy"
"""In the reason of a 412: somebody else moves the subscription's cursor at this moment."""
_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}

_Value = TypeVar("_Value")


class SourceAdmin:
    """The admin REST of one cluster over kept-alive connections; thread-safe; each call ends within `timeout_s`.

    Raises TopicMissing for an unknown topic, AccessRefused for a refusal, and SourceClusterUnreachable for no answer,
    an answer that is not Pulsar's, a server error (5xx) or a concurrent modification.
    """

    def __init__(self, cluster: SourceCluster, access: PulsarAccess, timeout_s: float) -> None:
        """Raises OptionError."""
        self.cluster = cluster
        self._partitioned: dict[TopicName, bool] = {}
        try:
            # Whoever may only consume may not ask for a cluster's name. Whether a question is asked again is decided by
            # who watches the cluster: nothing is repeated here.
            self._client = AdminClient(
                cluster.name, cluster.admin_url, access=access, timeout_s=timeout_s, unavailable_s=0, check_name=False
            )
        except UnusableAccess as error:
            raise OptionError(str(error)) from error

    def close(self) -> None:
        self._client.close()

    def partition_states(self, topic: TopicName, subscription: str) -> dict[str, PartitionState]:
        """Each partition's full name -> its state; a topic without partitions is its own only partition.

        A partition is omitted only when Pulsar says that it does not exist.
        """
        if topic not in self._partitioned:
            self._partitioned[topic] = self._count(topic) > 0
        try:
            if self._partitioned[topic]:
                return self._partition_states(topic, subscription)
            return {str(topic): PartitionState.from_stats(self._stats(topic), subscription)}
        except TopicMissing:
            self._partitioned.pop(topic, None)  # it may come back in the other form
            raise

    def partitions(self, topic: TopicName) -> list[str]:
        """The full names of a topic's partitions; empty for a topic without partitions."""
        count = self._count(topic)
        self._partitioned[topic] = count > 0
        return [partition_name(str(topic), number) for number in range(count)]

    def _partition_states(self, topic: TopicName, subscription: str) -> dict[str, PartitionState]:
        response = self._get(f"{topic.path}/partitioned-internalStats", topic, PARTITIONED_INTERNAL_STATS)
        found = response["partitions"]
        states = {name: PartitionState.from_stats(stats, subscription) for name, stats in found.items()}
        # Pulsar answers 200 without the partitions that did not answer it, and without their number where none did.
        count = response["metadata"].partitions if found else self._count(topic)
        for name in {partition_name(str(topic), number) for number in range(count)} - states.keys():
            with suppress(TopicMissing):
                states[name] = self.partition_state(name, subscription)
        return dict(sorted(states.items()))

    def _count(self, topic: TopicName) -> int:
        return self._get(f"{topic.path}/partitions", topic, PARTITIONS).partitions

    def _stats(self, topic: TopicName) -> InternalStats:
        return self._get(f"{topic.path}/internalStats", topic, INTERNAL_STATS)

    def partition_state(self, partition: str, subscription: str) -> PartitionState:
        return PartitionState.from_stats(self._stats(TopicName.parse(partition)), subscription)

    def read_positions(self, partition: str) -> dict[str, LedgerPosition]:
        """Each cursor of a topic partition, including readers -> the next entry that the broker reads for it.

        A cursor without such an entry (for example while it is opened) is omitted.
        """
        cursors = self._stats(TopicName.parse(partition))["cursors"]
        read = {name: row.get("readPosition") for name, row in cursors.items()}
        return {name: LedgerPosition.parse(position) for name, position in read.items() if position is not None}

    def entry_headers(self, partition: str, position: LedgerPosition) -> Mapping[str, str] | None:
        """The headers of a stored entry; empty where the broker cannot unpack it, None when it is no longer stored."""
        name = TopicName.parse(partition)
        with self._errors(f"looking at entry {position} of {name}", name):
            return self._client.entry_headers(name.path, position.ledger, position.entry)

    def update_subscription_properties(
        self,
        partition: str,
        subscription: str,
        change: Callable[[SubscriptionProperties], SubscriptionProperties] = lambda properties: properties,
    ) -> SubscriptionProperties:
        """Changes the properties of a subscription, creating them if missing; returns the new ones."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}/properties"
        stored = self._get(path, name, PROPERTIES)
        kept = SubscriptionProperties.from_properties(stored)
        changed = change(kept or SubscriptionProperties(uuid4().hex[:12]))
        if changed != kept:
            # Pulsar replaces all properties by those that it is sent: the others go along.
            self._command("PUT", path, name, {**stored, **changed.to_properties()})
        return changed

    def subscribe(self, partition: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Creates a durable, replicated subscription at the latest entry; an existing one stays as it is."""
        name = TopicName.parse(partition)
        path, body = _subscription_path(name, subscription), {**_LATEST, "properties": dict(properties)}
        # No `_command`: that it exists already is no conflict here.
        with self._errors(self._action("PUT", path), name):
            self._client.put(path, body, replicated=True)

    def set_cursor(self, partition: str, subscription: str) -> None:
        """Moves the cursor before the earliest message."""
        name = TopicName.parse(partition)
        self._command("POST", f"{_subscription_path(name, subscription)}/resetcursor", name, _EARLIEST)

    def cluster_names(self) -> frozenset[str]:
        """The names of the clusters that this one knows, itself included; empty when the role may not ask."""
        try:
            names = self._get("clusters", None, CLUSTERS)
        except AccessRefused:
            # Listing clusters takes more rights than consuming.
            return frozenset()
        return frozenset(names)

    def _get(self, path: str, topic: TopicName | None, shape: TypeAdapter[_Value]) -> _Value:
        with self._errors(self._action("GET", path), topic):
            value = self._client.get(path, shape)
            if value is None:
                raise AdminRefused(self.cluster.name, f"GET {path}", _NOT_FOUND, "it does not exist")
            return value

    def _command(self, method: str, path: str, topic: TopicName, body: Any) -> None:
        send = {"PUT": self._client.put, "POST": self._client.post}[method]
        with self._errors(self._action(method, path), topic):
            if not send(path, body):
                raise AdminRefused(self.cluster.name, f"{method} {path}", _CONFLICT, "another client changes it")

    def _action(self, method: str, path: str) -> str:
        return f"{method} {self.cluster.admin_url}/admin/v2/{path}"

    @contextmanager
    def _errors(self, action: str, topic: TopicName | None = None) -> Iterator[None]:
        name = self.cluster.name
        try:
            yield
        except NoConnection as error:
            raise SourceConnectionRefused(name, action, error.reason) from error
        except ClusterUnreachable as error:
            raise SourceClusterUnreachable(name, action, error.reason) from error
        except AdminRefused as error:
            raise _refusal(name, action, error, topic) from error


def _refusal(cluster: str, action: str, error: AdminRefused, topic: TopicName | None) -> PulsarSourceError:
    detail = f"{error.status} {error.reason}".strip()
    if error.status == _NOT_FOUND and topic is not None:
        return TopicMissing(cluster, str(topic))
    # A broker that answers with an error of its own serves us as little as a silent one; another cluster may be well.
    passes = error.status == _CONFLICT or (error.status == _PRECONDITION and _BUSY in error.reason)
    kind = SourceClusterUnreachable if passes or error.status >= _SERVER_ERROR else AccessRefused
    return kind(cluster, action, detail)


def _subscription_path(topic: TopicName, subscription: str) -> str:
    return f"{topic.path}/subscription/{quote(subscription, safe='')}"


# Topics left out of batches because they cannot be read: reason and retry time.

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
    """Topics that are left out because they cannot be read; calls that take a partition mean its topic. Times in
    seconds.
    """

    def __init__(self, cluster: str, options: PulsarOptions, clock: Callable[[], float]) -> None:
        self._cluster, self._clock = cluster, clock
        self._named = frozenset(map(str, options.topics))
        self._silence_s = 2 * options.cluster_lost_after_seconds
        """Longer than a cluster may be silent: another cluster that has the topic is read instead."""
        self._held: dict[str, _Held] = {}
        self._silent_since: dict[str, float] = {}

    def reasons(self) -> Mapping[str, str]:
        """Topic -> why it is left out, including topics that are being retried."""
        return {topic: held.reason for topic, held in sorted(self._held.items())}

    def __contains__(self, partition: str) -> bool:
        """Whether a topic is left out now; False while it is retried."""
        held = self._held.get(self._topic_of(partition))
        return held is not None and not held.is_tried

    def hold(self, partition: str, reason: str, cost_s: float = 0.0) -> None:
        """Leaves a topic out until its next retry. `cost_s`: how long the other topics waited for it."""
        topic = self._topic_of(partition)
        before = self._held.get(topic)
        wait_s = min(_MAX_WAIT_S, before.wait_s * 2) if before else _FIRST_WAIT_S
        self._held[topic] = _Held(reason, wait_s, self._clock() + max(wait_s, cost_s / _COST_SHARE))
        if before is None or before.reason != reason:
            _log.error("the topic is left out", cluster=self._cluster, topic=topic, reason=reason)

    def on_failure(self, partition: str, error: PulsarSourceError, cost_s: float = 0.0) -> None:
        """Handles a topic that cannot be read although its cluster answers. Raises the error while it may only be
        late.
        """
        if isinstance(error, SourceClusterUnreachable):
            topic, now_s = self._topic_of(partition), self._clock()
            since_s = self._silent_since.setdefault(topic, now_s - cost_s)
            if topic not in self._held and now_s - since_s < self._silence_s:
                raise error
        self.hold(partition, str(error), cost_s)

    def on_served(self, partitions: Iterable[str]) -> None:
        """Records that a batch was planned with these partitions."""
        if not self._held and not self._silent_since:
            return
        for topic in {self._topic_of(partition) for partition in partitions}:
            if topic not in self:
                self._silent_since.pop(topic, None)
                if self._held.pop(topic, None):
                    _log.info("the topic is served again", cluster=self._cluster, topic=topic)

    def ask_each(self, pool: Executor, topics: Sequence[TopicName], ask: Ask) -> dict[str, PartitionState]:
        """The states of the partitions of those topics that answer; asks all topics where all are left out.

        Raises an error that every topic meets, as the cluster's failure.
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


_PARALLEL = 8
_LOADED_TOGETHER = 32
"""How many partitions of a topic a broker may have to load before it answers one question."""


_T = TypeVar("_T")
States = Mapping[str, PartitionState]
"""Topic partition -> its state."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster's topic partitions at one moment.

    `created`: partitions whose durable subscription was missing after the query had begun, see `FailoverState`.
    `properties`: those of each subscription. `left_out`: topics that cannot be read; `states` has none of their
    partitions.
    """

    cluster: SourceCluster
    states: States
    created: frozenset[str] = frozenset()
    properties: Mapping[str, SubscriptionProperties] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def leaves_out(self, partition: str) -> bool:
        return not self.left_out.isdisjoint({partition, split_partition(partition)[0]})

    def without(self, left_out: LeftOutTopics) -> "ClusterView":
        """The view without the topics that were left out since it was made."""
        states = {name: state for name, state in self.states.items() if name not in left_out}
        return replace(self, states=states, left_out=frozenset(filter(left_out.__contains__, left_out.reasons())))


class ClusterSurvey:
    """Asks one cluster about the topics of the options; caches its connections and the list of topics."""

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
        self._loaded: set[TopicName] = set()
        self._known_clusters: frozenset[str] | None = None
        self._properties: dict[str, tuple[tuple[str, str], SubscriptionProperties]] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._admin.close()

    def states(self) -> dict[str, PartitionState]:
        """The present state of every topic partition for the options' subscription; missing topics are omitted."""
        topics = self._options.topics
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
        """Makes the broker load each partition first: a question about all would be answered only after the last is
        loaded.
        """
        partitions = self._pool.map(self._partitions_of, topics)
        list(
            self._pool.map(
                self._load_one, [name for names in partitions if len(names) > _LOADED_TOGETHER for name in names]
            )
        )
        self._loaded.update(topics)

    def _load_and_ask(self, topic: TopicName) -> dict[str, PartitionState]:
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
        """The properties of each existing subscription; writes new ones where there are none.

        Any consumer may write them. They are read again only when the broker has reopened the topic or the cursor.
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
        """Stores with the subscriptions that batches are planned in those openings, per partition; returns their
        properties.
        """
        return self._change(created_times, SubscriptionProperties.with_planned)

    def record_acknowledged(self, created_times: Mapping[str, str]) -> None:
        """Stores with the subscriptions that batches of those openings are acknowledged, per partition."""
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
            named = {cluster.name for cluster in self._options.clusters}
            self._known_clusters = self._admin.cluster_names() | named
        return self._known_clusters

    def subscribe_missing(self, states: States) -> bool:
        """Creates missing durable subscriptions at the earliest message; returns whether a cursor was moved.

        Also finishes a subscription whose creator stopped before its cursor was at its start.
        """
        missing = [topic for topic, state in states.items() if state.cursor is None]
        self._each(self._subscribe, missing)
        begun = [topic for topic, properties in self.ensure_properties(states).items() if properties.starting]
        self._each(self._place, (*missing, *begun))
        return bool(missing or begun)

    def _each(self, work: Callable[[str], _T | None], partitions: Sequence[str]) -> list[_T | None]:
        """The results of `work` for each partition; raises the first error, unless it leaves the topic out."""
        return list(self._pool.map(lambda partition: self._alone(work, partition), partitions))

    def _alone(self, work: Callable[[str], _T | None], partition: str) -> _T | None:
        try:
            return work(partition)
        except (AccessRefused, SourceClusterUnreachable) as error:
            if not self._options.leaves_out:
                raise
            self.left_out.on_failure(partition, error)
            return None

    def _subscribe(self, topic: str) -> None:
        # a broker creates each at the latest entry
        properties = SubscriptionProperties(uuid4().hex[:12], starting="earliest")
        with suppress(TopicMissing):  # the next look shows it
            self._admin.subscribe(topic, self._options.subscription_name(), properties.to_properties())

    def _place(self, topic: str) -> None:
        self._properties.pop(topic, None)
        properties = self._update_properties(topic)
        if properties is not None and properties.starting:
            # The cursor before the note that it is placed: a process that ends between leaves it to be placed again.
            self._admin.set_cursor(topic, self._options.subscription_name())
            self._update_properties(topic, SubscriptionProperties.with_cursor_placed)


def check_topics(options: PulsarOptions, cluster: SourceCluster, states: States) -> None:
    """Raises TopicMissing when a topic of the options does not exist."""
    there = {split_partition(name)[0] for name in states}
    for topic in options.topics:
        if str(topic) not in there and str(topic) not in states:
            raise TopicMissing(cluster.name, str(topic))
