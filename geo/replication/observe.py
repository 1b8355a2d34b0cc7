"""What replication does now: every link and every replicated cursor, read from the brokers' own statistics."""

from collections.abc import Callable, Mapping

from geo.replication.actual import for_each_cluster, topic_stats
from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from geo.replication.model import Topology
from geo.replication.rest_types import CLUSTERS, SubscriptionStats, TopicStats
from geo.replication.topic_naming import is_brokers_own, split_partition
from waybill.settings import Settings

__all__ = [
    "CursorState",
    "LinkState",
    "Observation",
    "UnknownSubscription",
    "cursor_states",
    "link_state",
    "observe",
    "unknown_subscriptions",
]


_Space = dict[str, dict[str, TopicStats | None]]
"""By namespace and topic."""
# The estimate of a backlog that Pulsar gives otherwise may be wrong for ever.
_ASKED = {"getPreciseBacklog": True, "getEarliestTimeInBacklog": True}


class LinkState(Settings):
    """One direction between two clusters in one namespace, over all its topics; None: the source did not answer."""

    namespace: str
    source: str
    target: str
    connected: bool
    backlog: int | None
    delay_s: float | None
    problem: str = ""
    latency_s: float | None = None

    @property
    def is_good(self) -> bool:
        """Connected, and without a problem."""
        return self.connected and not self.problem


class CursorState(Settings):
    """One replicated subscription on one partition, in one cluster.

    `age_s`: since its position last moved; `behind_s`: how long before the furthest cluster's it last moved. Where
    nobody consumes, a position moves only when a snapshot arrives, so there `age_s` is the age of the last cursor
    snapshot that was of use. None: it never moved.

    `waiting_s`: since the oldest entry behind its position was published, 0 where there is none; None: the broker does
    not say. Compare clusters by this, not by `backlog`: that has the markers of cursor snapshots, often more than there
    are messages, where nobody consumes, and does not have them where somebody does.
    """

    topic: str
    subscription: str
    cluster: str
    backlog: int
    age_s: float | None
    behind_s: float | None
    waiting_s: float | None


class UnknownSubscription(Settings):
    """A durable subscription that the topology does not name, with a backlog: it can fill the namespace's quota."""

    topic: str
    subscription: str
    cluster: str
    backlog: int

    def __str__(self) -> str:
        waiting = f"{self.backlog} messages wait for it, which fill the quota"
        return f"{self.cluster}: {self.topic}: the topology has no subscription {self.subscription!r}; {waiting}"


class Observation(Settings):
    """All links, cursors and unknown subscriptions at one moment, and the clusters that did not answer."""

    links: tuple[LinkState, ...]
    cursors: tuple[CursorState, ...]
    unknown: tuple[UnknownSubscription, ...] = ()
    unreachable: Mapping[str, str]


def observe(topology: Topology, clients: Mapping[str, AdminClient], clock: Callable[[], float]) -> Observation:
    """Ask every cluster once. `clock` gives seconds since the epoch; the clusters' clocks should agree with it."""
    stats: dict[str, _Space] = {}
    unreachable: dict[str, str] = {}
    placed = topology.placed()

    def ask(admin: AdminClient) -> _Space | str:
        try:
            # Also where the topology has no topic: nobody answers for a cluster that was not asked.
            admin.get("clusters", CLUSTERS)
            here = [name for name, (_, clusters) in placed.items() if admin.cluster in clusters]
            return {name: topic_stats(admin, name, **_ASKED) for name in here}
        except ReplicationError as error:
            return str(error)

    for cluster, answer in for_each_cluster(clients, ask).items():
        if isinstance(answer, str):
            unreachable[cluster] = answer
        else:
            stats[cluster] = answer
    links = [
        link_state(namespace, source, target, stats[source][namespace], unreachable.get(target, ""))
        if source in stats
        else _unknown(namespace, source, target, unreachable[source])
        for namespace, source, target in topology.links()
    ]
    return Observation(
        links=tuple(links),
        cursors=tuple(cursor_states(stats, clock())),
        unknown=tuple(unknown_subscriptions(topology, stats)),
        unreachable=unreachable,
    )


def unknown_subscriptions(topology: Topology, stats: Mapping[str, _Space]) -> list[UnknownSubscription]:
    """Every durable subscription with a backlog that the topology does not name at its topic."""
    named = {
        (f"{namespace}/{topic}", name)
        for namespace, (spec, _) in topology.placed().items()
        for topic, made in spec.topics.items()
        for name in made.subscriptions
    }
    return [
        UnknownSubscription(topic=topic, subscription=name, cluster=cluster, backlog=subscription.backlog)
        for cluster, namespaces in sorted(stats.items())
        for topics in namespaces.values()
        for topic, one in topics.items()
        for name, subscription in (one.subscriptions if one else {}).items()
        if subscription.durable and subscription.backlog > 0
        if (split_partition(topic)[0], name) not in named and not is_brokers_own(name)
    ]


def link_state(
    namespace: str, source: str, target: str, topics: Mapping[str, TopicStats | None], problem: str = ""
) -> LinkState:
    """The state of one link from the statistics of the source's topics."""
    replicators = {name: stats.replication.get(target) if stats else None for name, stats in topics.items()}
    missing = sorted(name for name, one in replicators.items() if one is None)
    present = [one for one in replicators.values() if one is not None]
    if missing and not problem:
        problem = f"no replicator for {', '.join(missing)}"
    return LinkState(
        namespace=namespace,
        source=source,
        target=target,
        connected=bool(present) and not missing and all(one.connected for one in present),
        backlog=sum(one.backlog for one in present),
        # Of many topics the one that is furthest behind counts: a mean would hide it.
        delay_s=max((one.delay_s for one in present), default=0),
        problem=problem,
    )


def cursor_states(stats: Mapping[str, _Space], now_s: float) -> list[CursorState]:
    """Every replicated subscription: by cluster, namespace and topic, the statistics of that topic."""
    cursors = [
        (topic, name, cluster, subscription)
        for cluster, namespaces in stats.items()
        for topics in namespaces.values()
        for topic, one in topics.items()
        for name, subscription in (one.subscriptions if one else {}).items()
        if subscription.replicated
    ]
    furthest: dict[tuple[str, str], float] = {}
    for topic, name, _, subscription in cursors:
        furthest[topic, name] = max(furthest.get((topic, name), 0), _moved_s(subscription))
    return [
        CursorState(
            topic=topic,
            subscription=name,
            cluster=cluster,
            backlog=subscription.backlog,
            # The broker's clock may be ahead of ours.
            age_s=max(0.0, now_s - moved) if (moved := _moved_s(subscription)) else None,
            behind_s=furthest[topic, name] - moved if moved else None,
            waiting_s=_waiting_s(subscription, now_s),
        )
        for topic, name, cluster, subscription in sorted(cursors, key=lambda one: one[:3])
    ]


def _moved_s(subscription: SubscriptionStats) -> float:
    return subscription.moved_ms / 1000


def _waiting_s(subscription: SubscriptionStats, now_s: float) -> float | None:
    if subscription.backlog <= 0:
        return 0.0
    return max(0.0, now_s - subscription.earliest_ms / 1000) if subscription.earliest_ms > 0 else None


def _unknown(namespace: str, source: str, target: str, problem: str) -> LinkState:
    return LinkState(
        namespace=namespace, source=source, target=target, connected=False, backlog=None, delay_s=None, problem=problem
    )
