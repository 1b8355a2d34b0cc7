"""What the source asks of one cluster and changes in it by its admin REST, in the words and errors of the source."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import TypeAdapter

from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, SubscriptionProperties
from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    NamespaceMissing,
    OptionError,
    PulsarSourceError,
    SourceClusterUnreachable,
    SourceConnectionRefused,
    TopicMissing,
)
from cloud_jobs.pulsar_source.options import SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.topics import TopicListing, TopicName
from geo.replication.admin import AdminClient
from geo.replication.errors import AdminRefused, ClusterUnreachable, NoConnection, UnusableAccess
from geo.replication.rest_types import (
    CLUSTERS,
    INTERNAL_STATS,
    PARTITIONED_INTERNAL_STATS,
    PARTITIONS,
    PROPERTIES,
    InternalStats,
    topics_of,
)
from geo.replication.topic_naming import partition_name
from waybill.pulsar.pulsar_client import PulsarAccess

_NOT_FOUND, _CONFLICT, _PRECONDITION, _SERVER_ERROR = 404, 409, 412, 500
_BUSY = "Busy"
"""In the reason of a 412: somebody else moves the subscription's cursor at this moment."""
_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}

_Value = TypeVar("_Value")


class SourceAdmin:
    """One cluster, asked over kept-alive connections, also by several threads; each call ends within `timeout_s`.

    Raises TopicMissing for a topic that the cluster does not have, AccessRefused where it says no, and
    SourceClusterUnreachable where it does not answer, or not as Pulsar does, or with an error of its own (5xx), or that
    somebody else changes the same at this moment.
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
        """Closes the connections."""
        self._client.close()

    def partition_states(self, topic: TopicName, subscription: str) -> dict[str, PartitionState]:
        """Each partition's full name -> its state; a topic that is not partitioned is its only partition.

        Left out is only a partition of which Pulsar says that it does not exist.
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
        """The full names of a topic's partitions; none where it is not partitioned."""
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
        """One topic partition as it stands now."""
        return PartitionState.from_stats(self._stats(TopicName.parse(partition)), subscription)

    def read_positions(self, partition: str) -> dict[str, LedgerPosition]:
        """Each cursor of a topic partition, those of readers too -> the next entry that the broker reads for it.

        One that has no such entry, as while it is opened, is left out.
        """
        cursors = self._stats(TopicName.parse(partition))["cursors"]
        read = {name: row.get("readPosition") for name, row in cursors.items()}
        return {name: LedgerPosition.parse(position) for name, position in read.items() if position is not None}

    def entry_headers(self, partition: str, position: LedgerPosition) -> Mapping[str, str] | None:
        """The headers of a stored entry, long content left where it is; none at all where the broker cannot unpack it.

        None when it is not stored any more.
        """
        name = TopicName.parse(partition)
        with self._errors(f"looking at entry {position} of {name}", name):
            return self._client.entry_headers(name.path, position.ledger, position.entry)

    def broker_of(self, partition: str) -> str:
        """The address of the broker that serves a topic partition, with TLS where the cluster's address has it."""
        secure = self.cluster.service_url.startswith("pulsar+ssl:")
        with self._errors(f"looking for the broker of {partition}"):
            return self._client.broker_of(TopicName.parse(partition).path, secure=secure)

    def update_subscription_properties(
        self,
        partition: str,
        subscription: str,
        change: Callable[[SubscriptionProperties], SubscriptionProperties] = lambda properties: properties,
    ) -> SubscriptionProperties:
        """What is kept with the subscription, changed; begun now where there is nothing."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}/properties"
        stored = self._get(path, name, PROPERTIES)
        kept = SubscriptionProperties.from_properties(stored)
        changed = change(kept or SubscriptionProperties(uuid4().hex[:12]))
        if changed != kept:
            # Pulsar replaces all properties by those that it is sent: the others go along.
            self._command("PUT", path, name, {**stored, **changed.to_properties()})
        return changed

    def subscribe(self, partition: str, subscription: str, properties: Mapping[str, str], *, replicated: bool) -> None:
        """Creates a durable subscription at the latest entry, with its properties; leaves one that is there alone."""
        name = TopicName.parse(partition)
        path, body = _subscription_path(name, subscription), {**_LATEST, "properties": dict(properties)}
        # No `_command`: that it exists already is no conflict here.
        with self._errors(self._action("PUT", path), name):
            self._client.put(path, body, replicated=replicated)

    def set_cursor(self, partition: str, subscription: str, since_ms: int | None) -> None:
        """Moves the cursor before the first message published at that time or later; None: before the earliest."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}/resetcursor"
        if since_ms is None:
            self._command("POST", path, name, _EARLIEST)
        else:
            self._command("POST", f"{path}/{since_ms}", name, None)

    def list_topics(self, namespace: TopicName) -> TopicListing:
        """The topics of a namespace. Raises NamespaceMissing."""
        path, shape = namespace.namespace_path, topics_of(f"{namespace.tenant}/{namespace.namespace}")
        try:
            plain = self._get(path, namespace, shape)
        except TopicMissing:
            raise NamespaceMissing(self.cluster.name, f"{namespace.tenant}/{namespace.namespace}") from None
        # Asked last: what became partitioned meanwhile is.
        partitioned = self._get(f"{path}/partitioned", namespace, shape)
        return TopicListing.of(plain, frozenset(partitioned))

    def cluster_names(self) -> frozenset[str]:
        """The names of the clusters that this one knows, itself included; empty when we may not ask."""
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
                raise AdminRefused(self.cluster.name, f"{method} {path}", _CONFLICT, "somebody else changes it")

    def _action(self, method: str, path: str) -> str:
        return f"{method} {self.cluster.admin_url}/admin/v2/{path}"

    @contextmanager
    def _errors(self, action: str, topic: TopicName | None = None) -> Iterator[None]:
        """The admin client's errors -> ours."""
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
