"""The driver's side for one cluster: which topic partitions there are, how they stand, what a batch takes of them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from uuid import uuid4

import structlog

from cloud_jobs.pulsar_source.admin import Admin
from cloud_jobs.pulsar_source.errors import ClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.planned import PlannedRange
from cloud_jobs.pulsar_source.position import BEGINNING, Position, Range
from cloud_jobs.pulsar_source.subscription import SubscriptionNotes
from cloud_jobs.pulsar_source.topics import TopicName, split_partition

_PARALLEL = 8
_LOADED_TOGETHER = 32
"""How many partitions of a topic a broker may have to load before it answers one question."""
_MAX_QUEUE = 1000
_MOST_NAMED = 20

_log = structlog.get_logger(__name__)

States = Mapping[str, TopicState]
"""Topic partition -> its state."""


class Survey:
    """Asks one cluster about the topics of the options; keeps its connections and the list of topics."""

    def __init__(self, cluster: Cluster, options: PulsarOptions, admin: Admin | None = None) -> None:
        self.cluster = cluster
        self._options = options
        self._admin = admin or Admin(cluster, options, options.call_timeout_s())
        self._pool = ThreadPoolExecutor(max_workers=_PARALLEL, thread_name_prefix="pulsar-survey")
        self._topics: list[TopicName] = []
        self._topics_at = float("-inf")
        self._loaded: set[TopicName] = set()
        self._unreadable: frozenset[str] = frozenset()
        self._known_clusters: frozenset[str] | None = None
        self._notes: dict[str, tuple[tuple[str, str], SubscriptionNotes]] = {}

    def close(self) -> None:
        """Gives the connections back."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._admin.close()

    def states(self) -> dict[str, TopicState]:
        """Every topic partition as it stands now, as the options' subscription sees it; missing topics are left out."""
        topics = self._list_topics()
        try:
            self._load([topic for topic in topics if topic not in self._loaded])
            answers = self._pool.map(self._states_of, topics)
            return {name: state for answer in answers for name, state in answer.items()}
        except ClusterUnreachable:
            self._loaded.clear()  # the broker that takes over has loaded nothing
            raise

    def _load(self, topics: Sequence[TopicName]) -> None:
        """Has the broker load partitions before it is asked for all: it would answer when the last is loaded."""
        found = self._pool.map(self._partitions_of, topics)
        list(
            self._pool.map(self._load_one, [name for names in found if len(names) > _LOADED_TOGETHER for name in names])
        )
        self._loaded.update(topics)

    def _partitions_of(self, topic: TopicName) -> list[str]:
        try:
            return self._admin.partitions(topic)
        except TopicMissing:
            return []

    def _load_one(self, partition: str) -> None:
        with suppress(TopicMissing):
            self._admin.state(partition, "")

    def _states_of(self, topic: TopicName) -> dict[str, TopicState]:
        try:
            return self._admin.states(topic, self._options.subscription or "")
        except TopicMissing:
            return {}

    def notes(self, states: States) -> dict[str, SubscriptionNotes]:
        """What is kept with each subscription that exists; begun where there is nothing.

        Whoever may consume may write it. Asked again only when the broker has opened the topic or the cursor again.
        """
        opened = {topic: (state.opened, state.subscribed) for topic, state in states.items() if state.cursor}
        stale = [topic for topic, key in opened.items() if topic not in self._notes or self._notes[topic][0] != key]
        for topic, notes in zip(stale, self._pool.map(self._note, stale), strict=True):
            self._notes.pop(topic, None)
            if notes is not None:
                self._notes[topic] = (opened[topic], notes)
        return {topic: self._notes[topic][1] for topic in opened if topic in self._notes}

    def note_planned(self, openings: Mapping[str, str]) -> dict[str, SubscriptionNotes]:
        """Keeps for good that batches are planned in those openings, by topic partition; returns what is kept then."""
        return self._change(openings, SubscriptionNotes.planning)

    def note_acknowledged(self, openings: Mapping[str, str]) -> None:
        """Keeps for good that batches of those openings are acknowledged, by topic partition."""
        self._change(openings, SubscriptionNotes.acknowledging)

    def _change(
        self, openings: Mapping[str, str], change: Callable[[SubscriptionNotes, str], SubscriptionNotes]
    ) -> dict[str, SubscriptionNotes]:
        kept = {topic: self._notes[topic] for topic in openings if topic in self._notes}
        new = [topic for topic, (_, notes) in kept.items() if change(notes, openings[topic]) != notes]
        changed = self._pool.map(lambda topic: self._note(topic, lambda notes: change(notes, openings[topic])), new)
        for topic, notes in zip(new, changed, strict=True):
            if notes is not None:
                self._notes[topic] = (kept[topic][0], notes)
        return {topic: self._notes[topic][1] for topic in kept}

    def _note(
        self, partition: str, change: Callable[[SubscriptionNotes], SubscriptionNotes] = lambda notes: notes
    ) -> SubscriptionNotes | None:
        try:
            return self._admin.notes(partition, self._options.subscription_name(), change)
        except TopicMissing:
            return None

    def known_clusters(self) -> frozenset[str]:
        """The names of clusters that messages can come from."""
        if self._known_clusters is None:
            named = {cluster.name for cluster in self._options.all_clusters()}
            self._known_clusters = self._admin.clusters() | named
        return self._known_clusters

    def subscribe_missing(self, states: States, start: str | datetime) -> bool:
        """Creates the durable subscription where there is none, at `start` (earliest, latest or a time).

        One whose creator ended before the cursor was at its start is brought there. Whether a cursor was moved.
        """
        missing = [topic for topic, state in states.items() if state.cursor is None]
        list(self._pool.map(lambda topic: self._subscribe(topic, start), missing))
        begun = [topic for topic, notes in self.notes(states).items() if notes.starting]
        list(self._pool.map(self._place, (*missing, *begun)))
        return bool(missing or begun)

    def _subscribe(self, topic: str, start: str | datetime) -> None:
        options, notes = self._options, SubscriptionNotes.created(uuid4().hex[:12], start)
        with suppress(TopicMissing):  # the next look tells
            self._admin.subscribe(
                topic, options.subscription_name(), notes.properties(), replicated=options.replicate_subscription
            )

    def _place(self, topic: str) -> None:
        self._notes.pop(topic, None)
        notes = self._note(topic)
        if notes is not None and notes.starting:
            self._admin.set_cursor(topic, self._options.subscription_name(), notes.starting_ms())
            self._note(topic, SubscriptionNotes.placed)

    def _list_topics(self) -> list[TopicName]:
        if self._options.topics:
            return list(self._options.topics)
        now = time.monotonic()
        if now - self._topics_at >= self._options.topic_discovery_seconds:
            namespace, pattern = self._options.pattern()
            listing = self._admin.topics(namespace)
            self._topics = [topic for topic in listing.topics if pattern.fullmatch(topic.name)]
            self._tell_unreadable(name for name in listing.unreadable if pattern.fullmatch(name.rpartition("/")[2]))
            self._topics_at = now
        return self._topics

    def _tell_unreadable(self, names: Iterable[str]) -> None:
        found = frozenset(names)
        if found and found != self._unreadable:
            _log.warning(
                "topics_unreadable", cluster=self.cluster.name, count=len(found), topics=sorted(found)[:_MOST_NAMED]
            )
        self._unreadable = found


def check_topics(options: PulsarOptions, cluster: Cluster, states: States) -> None:
    """Raises TopicMissing when a topic that the options name does not exist."""
    there = {split_partition(name)[0] for name in states}
    for topic in options.topics:
        if str(topic) not in there and str(topic) not in states:
            raise TopicMissing(cluster.name, str(topic))


def begin_of(positions: Mapping[str, Position], states: States, options: PulsarOptions) -> dict[str, Position]:
    """Where reading begins: the query's positions, and the cursor for partitions that it meets for the first time.

    A cursor before the first entry of a ledger is delivered the compacted form from the beginning, which a removed
    ledger can have left behind.
    """
    whole = options.read_compacted and options.starting_position == "earliest"
    return {
        topic: positions.get(topic)
        or (BEGINNING if state.cursor is None or (whole and state.cursor.entry < 0) else state.cursor)
        for topic, state in states.items()
    }


def everything(begin: Mapping[str, Position], states: States) -> dict[str, Position]:
    """The ends that take in all there is: a partition without news stays exactly where it is.

    From the beginning there can be more than the ledgers hold: the compacted form of those that were removed.
    """
    return {
        topic: states[topic].last if start == BEGINNING or states[topic].has_more_than(start) else start
        for topic, start in begin.items()
    }


def upto_target(
    begin: Mapping[str, Position], ends: Mapping[str, Position], target: Mapping[str, Position]
) -> dict[str, Position]:
    """The ends, none beyond the target; a partition that the target does not know stays where it is."""
    return {topic: max(begin[topic], min(end, target.get(topic, begin[topic]))) for topic, end in ends.items()}


def planned_range(
    piece: Range, state: TopicState, cluster: Cluster, options: PulsarOptions, known_clusters: frozenset[str]
) -> PlannedRange:
    """One range of a batch -> one task's work.

    What was compacted is read by a reader: through the subscription nobody could tell it from what somebody else has
    acknowledged.
    """
    compacted = options.read_compacted and piece.start < state.compacted
    return PlannedRange(
        cluster=cluster,
        topic=piece.topic,
        start=piece.start,
        end=piece.end,
        durable=state.serves(piece.start) and not compacted,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.sizes_between(piece.start, piece.end),
    )


def reader_range(
    piece: Range, state: TopicState, cluster: Cluster, options: PulsarOptions, known_clusters: frozenset[str]
) -> PlannedRange:
    """One range of a batch query -> one task's work, within the publish times of the options."""
    return PlannedRange(
        cluster=cluster,
        topic=piece.topic,
        start=piece.start,
        end=piece.end,
        durable=False,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.sizes_between(piece.start, piece.end),
        since_ms=_milliseconds(options.starting_position),
        until_ms=_milliseconds(options.ending_position),
        whole=False,
    )


def _milliseconds(moment: str | datetime) -> int | None:
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else None


def queue_size(state: TopicState, prefetch_bytes: int) -> int:
    """How many messages a consumer may hold ahead, by the mean size of the stored entries."""
    mean = state.mean_entry_size()
    return max(1, min(_MAX_QUEUE, int(prefetch_bytes / mean))) if mean else _MAX_QUEUE
