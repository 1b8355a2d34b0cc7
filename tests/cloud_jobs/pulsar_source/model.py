"""A Pulsar cluster in memory, behind the interfaces that the source speaks to, with what an operator can do to it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from cloud_jobs.pulsar_source.acknowledging import to_whole_entry
from cloud_jobs.pulsar_source.admin import ClusterSurvey
from cloud_jobs.pulsar_source.entries import Fate, FateAt, PlannedRange, RangeIO
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.options import (
    PulsarOptions,
    PulsarSourceError,
    SourceCluster,
    SourceClusterUnreachable,
    TopicMissing,
    TopicName,
)
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, PartitionState, Role, SubscriptionProperties
from cloud_jobs.pulsar_source.range_reader import read_range
from geo.replication.topic_naming import split_partition
from tests.cloud_jobs.pulsar_source.model_topic import ChunkEnd, ModelTopic, is_marker


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.001)


class ModelCluster:
    """Topic partitions, ledger numbers that begin anew with new disks, and whether it answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = True
        self.topics: dict[str, ModelTopic] = {}
        self.failing: dict[str, PulsarSourceError] = {}
        """What is answered to each question about a topic."""
        self.created: Callable[[str], None] = lambda _: None
        """Called when a subscription was created, before anything else happens to it."""
        self._ledgers = self._openings = 0

    def check(self) -> None:
        if not self.answers:
            raise SourceClusterUnreachable(self.name, "asking the model", "it is down")

    def create(self, partition: str) -> ModelTopic:
        # Clients that were connected connect again by themselves.
        before = self.topics.get(partition)
        self.topics[partition] = topic = ModelTopic({self._next_ledger(): []}, self._opening())
        if before is not None:
            topic.present = before.present
        return topic

    def open_again(self, partition: str) -> None:
        """A new ledger, as after a restart of the broker; an empty one goes."""
        topic = self.topics[partition]
        if not topic.ledgers[max(topic.ledgers)]:
            empty = max(topic.ledgers)
            del topic.ledgers[empty]
        topic.ledgers[self._next_ledger()] = []
        topic.opened = self._opening()
        if topic.cursor is not None and topic.cursor.ledger not in topic.ledgers:
            topic.cursor = LedgerPosition(min(topic.ledgers), -1)

    def wipe(self) -> None:
        """The disks are empty; the topics are created again as they are needed."""
        self._ledgers = 0
        for partition in list(self.topics):
            self.create(partition)

    def named(self, partition: str) -> ModelTopic:
        self.check()
        if partition in self.failing:
            raise self.failing[partition]
        if partition not in self.topics:
            raise TopicMissing(self.name, partition)
        return self.topics[partition]

    def _next_ledger(self) -> int:
        self._ledgers += 1
        return self._ledgers

    def _opening(self) -> str:
        self._openings += 1
        return f"opening {self._openings}"


class ModelAdmin:
    """What `admin.SourceAdmin` answers."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    def close(self) -> None: ...

    def cluster_names(self) -> frozenset[str]:
        return frozenset({"hq", "dr"})

    def partition_states(self, topic: TopicName, _: str) -> dict[str, PartitionState]:
        self._cluster.check()
        if str(topic) in self._cluster.failing:
            raise self._cluster.failing[str(topic)]
        parts = {
            name: one for name, one in self._cluster.topics.items() if str(topic) in (name, split_partition(name)[0])
        }
        if not parts:
            raise TopicMissing(self._cluster.name, str(topic))
        return {name: one.state() for name, one in sorted(parts.items())}

    def partitions(self, topic: TopicName) -> list[str]:
        return [name for name in self.partition_states(topic, "") if name != str(topic)]

    def update_subscription_properties(
        self,
        partition: str,
        _: str,
        change: Callable[[SubscriptionProperties], SubscriptionProperties] = lambda notes: notes,
    ) -> SubscriptionProperties:
        topic = self._cluster.named(partition)
        if topic.cursor is None:
            raise TopicMissing(self._cluster.name, partition)
        topic.notes = change(topic.notes or SubscriptionProperties(uuid4().hex[:12]))
        return topic.notes

    def subscribe(self, partition: str, _: str, properties: Mapping[str, str]) -> None:
        topic = self._cluster.named(partition)
        if topic.cursor is None:
            topic.subscribe()
            topic.cursor, topic.notes = topic.last, SubscriptionProperties.from_properties(properties)
        self._cluster.created(partition)

    def set_cursor(self, partition: str, _: str) -> None:
        topic = self._cluster.named(partition)
        topic.cursor = LedgerPosition(min(topic.ledgers), -1)


@dataclass(frozen=True)
class ModelMessage:
    number: int
    at: LedgerPosition
    entry_size: int

    def message_id(self) -> "ModelMessage":
        return self

    def ledger_id(self) -> int:
        return self.at.ledger

    def entry_id(self) -> int:
        return self.at.entry

    def batch_index(self) -> int:
        return self.at.batch

    def serialize(self) -> bytes:
        return bytes([6 << 3, self.entry_size])

    def data(self) -> bytes:
        return str(self.number).encode()

    def encryption_context(self) -> None:
        return None

    def publish_timestamp(self) -> int:
        return 1

    def producer_name(self) -> str:
        return "producer"


class _ModelFeed:
    def __init__(self, cluster: ModelCluster, planned: PlannedRange, time: Time, meanwhile: Callable[[], None]) -> None:
        self._cluster, self._planned, self._time, self._meanwhile = cluster, planned, time, meanwhile
        topic = cluster.named(planned.topic)
        if planned.durable:
            topic.subscribe()
            assert topic.cursor is not None
        self._after = topic.cursor if planned.durable and topic.cursor else to_whole_entry(planned.start)

    def receive(self) -> list[Any]:
        found = self._next_entries()
        self._meanwhile()
        self._time.pause(0.5)
        return found

    def _next_entries(self) -> list[Any]:
        if not self.connected():
            return []
        topic = self._cluster.topics[self._planned.topic]
        if self._planned.durable:
            topic.subscribe()
            self._after = max(self._after, topic.cursor or BEGINNING) if self._after <= topic.last else BEGINNING
        for position, entry in topic.entries():
            if topic.is_held(position):
                break
            if self._planned.durable and position in topic.holes:
                continue
            if position > self._after:
                self._after = position
                if is_marker(entry) and self._planned.durable and topic.cursor is not None:
                    self._pass_marker(topic, position)
                if entry:
                    many = len(entry) > 1
                    ids = [position._replace(batch=index if many else -1) for index in range(len(entry))]
                    return [ModelMessage(n, at, len(entry)) for n, at in zip(entry, ids, strict=True)]
        return []

    @staticmethod
    def _pass_marker(topic: ModelTopic, marker: LedgerPosition) -> None:
        """The broker acknowledges a marker itself, so the cursor goes over those that follow it at once."""
        between = [at for at, _ in topic.entries() if topic.cursor is not None and topic.cursor < at < marker]
        if not between:
            topic.acknowledge(marker)

    def last(self) -> LedgerPosition:
        newest = BEGINNING
        topic = self._cluster.named(self._planned.topic)
        for position, entry in topic.entries():
            if not is_marker(entry) and not topic.is_held(position):
                newest = position._replace(batch=len(entry) - 1 if len(entry) > 1 else -1)
        return newest

    def probe_exhausted(self, upto: LedgerPosition) -> bool:
        topic = self._cluster.named(self._planned.topic)
        after = max(self._after, topic.cursor or BEGINNING) if self._planned.durable else self._after
        coming = (place for place, entry in topic.entries() if entry and after < place <= upto)
        return not any(topic.is_held(place) or not (self._planned.durable and place in topic.holes) for place in coming)

    def connected(self) -> bool:
        return self._cluster.answers and self._planned.topic in self._cluster.topics


class ModelWorld:
    """Two clusters, one clock, and what happens to them in the middle of a read."""

    def __init__(self) -> None:
        self.time = Time()
        self.clusters = {name: ModelCluster(name) for name in ("hq", "dr")}
        self.meanwhile: Callable[[], None] = lambda: None

    def survey(self, cluster: SourceCluster, options: PulsarOptions) -> ClusterSurvey:
        admin = ModelAdmin(self.clusters[cluster.name])
        return ClusterSurvey(cluster, options, admin, self.time)  # type: ignore[arg-type]

    def own(
        self, cluster: SourceCluster, _: PulsarOptions, partition: str, role: Role, token: str
    ) -> Callable[[], None]:
        present = self.clusters[cluster.name].named(partition).present[role]
        present.add(token)
        return lambda: present.discard(token)

    def acknowledge(
        self, cluster: SourceCluster, _: PulsarOptions, ends: Mapping[str, LedgerPosition]
    ) -> dict[str, LedgerPosition]:
        model = self.clusters[cluster.name]
        if not model.answers:
            return {}
        for partition, end in ends.items():
            model.named(partition).subscribe()
            model.named(partition).acknowledge(to_whole_entry(end))
        return dict(ends)

    @contextmanager
    def feed(self, _: PulsarOptions, planned: PlannedRange) -> Iterator[Feed]:
        yield _ModelFeed(self.clusters[planned.cluster.name], planned, self.time, self.meanwhile)

    def read(self, options: PulsarOptions, planned: PlannedRange) -> Iterator[pa.RecordBatch]:
        return read_range(options, planned, RangeIO(self.feed, self.fates, self.look, self.time))

    @contextmanager
    def fates(self, _: PulsarOptions, planned: PlannedRange) -> Iterator[FateAt]:
        def fate_at(place: LedgerPosition) -> Fate:
            topic = self.clusters[planned.cluster.name].named(planned.topic)
            entry = dict(topic.entries()).get(place)
            if entry is None:
                return Fate.REMOVED
            if is_marker(entry):
                return Fate.NOT_SENT
            return Fate.HELD if topic.is_held(place) else Fate.CHUNK_END if isinstance(entry, ChunkEnd) else Fate.STORED

        yield fate_at

    def look(self, _: PulsarOptions, planned: PlannedRange) -> PartitionState:
        return self.clusters[planned.cluster.name].named(planned.topic).state()
