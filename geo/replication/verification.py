"""The state of replication: links and cursors, and a probe through every link."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median

import pulsar

from geo.replication.admin import AdminClient
from geo.replication.cluster_state import address, for_each_cluster, topic_stats, unprotected
from geo.replication.errors import ReplicationError
from geo.replication.model import PROBE_TOPIC, Topology
from geo.replication.rest_types import CLUSTERS, SubscriptionStats, TopicStats
from geo.replication.topic_naming import is_brokers_own, split_partition
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.settings import Settings

# The state of links and replicated cursors, from broker statistics.

_Space = dict[str, dict[str, TopicStats | None]]
"""By namespace and topic."""
# Pulsar's default estimate of a backlog may stay wrong.
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
        return self.connected and not self.problem


class CursorState(Settings):
    """One replicated subscription on one partition, in one cluster.

    `age_s`: since its position last moved; `behind_s`: how long before that of the furthest cluster; None: never.
    Without consumers a position moves only with a useful cursor snapshot, so `age_s` is then that snapshot's age.

    `waiting_s`: age of the oldest unacknowledged entry, 0 without one; None: the broker does not say. Compare clusters
    by this, not by `backlog`, which counts the markers of cursor snapshots only where no consumer is.
    """

    topic: str
    subscription: str
    cluster: str
    backlog: int
    age_s: float | None
    behind_s: float | None
    waiting_s: float | None


class UnknownSubscription(Settings):
    """A durable subscription with a backlog that the topology does not name: it can fill the namespace's quota."""

    topic: str
    subscription: str
    cluster: str
    backlog: int

    def __str__(self) -> str:
        waiting = f"{self.backlog} messages wait for it, which fill the quota"
        return f"{self.cluster}: {self.topic}: the topology has no subscription {self.subscription!r}; {waiting}"


class Observation(Settings):
    """All links, cursors and unknown subscriptions at one time, and the clusters that did not answer."""

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
            # A cluster without a topic of the topology must answer, too.
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
        # The topic that is furthest behind counts: a mean would hide it.
        delay_s=max((one.delay_s for one in present), default=0),
        problem=problem,
    )


def cursor_states(stats: Mapping[str, _Space], now_s: float) -> list[CursorState]:
    """Every replicated subscription. `stats`: the statistics of topics, by cluster, namespace and topic."""
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


# Probes through every link.

_PROBES = 3
_OPERATION_S = 10
_CONNECT_S = 5

Latency = float | str  # seconds, or why there is none


class VerifyResult(Settings):
    """The state of every link, and why clusters did not answer.

    `unprotected`: settings of brokers by which the topology's rights do not count, or which let others do everything.
    `unknown`: subscriptions with a backlog that the topology does not name; they do not count for the result.
    """

    links: tuple[LinkState, ...]
    unreachable: Mapping[str, str]
    unprotected: tuple[str, ...] = ()
    unknown: tuple[UnknownSubscription, ...] = ()

    @property
    def is_good(self) -> bool | None:
        """Whether every link is good and rights are enforced; None: a cluster did not answer."""
        if self.unreachable:
            return None
        return all(link.is_good for link in self.links) and not self.unprotected


def verify(topology: Topology, clients: Mapping[str, AdminClient], *, timeout_s: float = 15.0) -> VerifyResult:
    """The state of every link, with the median latency of a few probes, or the reason why they did not arrive."""
    gone = observe(topology, clients, time.time).unreachable
    alive = {name: client for name, client in clients.items() if name not in gone}
    latencies: dict[tuple[str, str, str], Latency] = {}
    with _connections(topology, alive) as connections:
        for namespace, (_, clusters) in topology.placed().items():
            probed = sorted(cluster for cluster in clusters if cluster in connections)
            for (source, target), latency in _probe(connections, namespace, probed, timeout_s).items():
                latencies[namespace, source, target] = latency
    # Observed again after the probes: one that is stuck is part of the backlog.
    seen = observe(topology, clients, time.time)
    links = (_with_latency(link, latencies.get((link.namespace, link.source, link.target))) for link in seen.links)
    return VerifyResult(
        links=tuple(links),
        unreachable={**gone, **seen.unreachable},
        unprotected=tuple(unprotected(topology, alive)),
        unknown=seen.unknown,
    )


def _with_latency(link: LinkState, latency: Latency | None) -> LinkState:
    if isinstance(latency, float):
        return link.model_copy(update={"latency_s": latency})
    return link.model_copy(update={"problem": link.problem or latency or "not probed"})


@contextmanager
def _connections(topology: Topology, clients: Mapping[str, AdminClient]) -> Iterator[dict[str, pulsar.Client]]:
    with ExitStack() as opened:
        connections = {}
        for cluster, admin in sorted(clients.items()):
            client = open_pulsar_client(
                address(topology, cluster).service_url,
                admin.access,
                timeout_s=_OPERATION_S,
                connect_timeout_s=_CONNECT_S,
            )
            opened.callback(client.close)
            connections[cluster] = client
        yield connections


def _probe(
    connections: Mapping[str, pulsar.Client], namespace: str, clusters: Sequence[str], timeout_s: float
) -> dict[tuple[str, str], Latency]:
    """Latency by (source, target) of one namespace."""
    if len(clusters) < 2:
        return {}
    topic = f"persistent://{namespace}/{PROBE_TOPIC}"
    latencies: dict[tuple[str, str], Latency] = {}
    try:
        # Opened before a probe is sent: a reader that starts at the latest message would miss it.
        readers = {name: connections[name].create_reader(topic, pulsar.MessageId.latest) for name in clusters}
    except pulsar.PulsarException as refused:
        reason = f"no probe could be read: {refused}"
        return {(source, target): reason for source in clusters for target in clusters if source != target}
    with ThreadPoolExecutor(len(clusters)) as pool:
        for source in clusters:
            others = {name: reader for name, reader in readers.items() if name != source}
            for target, latency in _from(connections[source], topic, others, pool, timeout_s).items():
                latencies[source, target] = latency
    return latencies


def _from(
    source: pulsar.Client, topic: str, readers: Mapping[str, pulsar.Reader], pool: ThreadPoolExecutor, timeout_s: float
) -> dict[str, Latency]:
    late = f"probe did not arrive within {timeout_s:.0f} s"
    latencies: dict[str, list[float]] = {target: [] for target in readers}
    try:
        producer = source.create_producer(topic, send_timeout_millis=_OPERATION_S * 1000)
        for attempt in range(_PROBES):
            mark = uuid.uuid4().bytes
            sent = time.monotonic()
            producer.send(mark)
            # A link that let none through is not asked again.
            waiting = {
                target: pool.submit(_arrival, readers[target], mark, sent + timeout_s)
                for target, times in latencies.items()
                if len(times) == attempt
            }
            for target, arrival in waiting.items():
                if (arrived := arrival.result(timeout_s + _OPERATION_S)) is not None:
                    latencies[target].append(arrived - sent)
        producer.close()
    except pulsar.PulsarException as refused:
        late = f"no probe could be sent: {refused}"
    return {target: median(times) if len(times) == _PROBES else late for target, times in latencies.items()}


def _arrival(reader: pulsar.Reader, mark: bytes, deadline: float) -> float | None:
    """When the marked message was read, on the monotonic clock; None when it did not arrive in time."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            message = reader.read_next(max(1, int(left * 1000)))
        except pulsar.PulsarException:  # time-out, or the reader's cluster went away
            break
        if message.data() == mark:
            return time.monotonic()
    return None
