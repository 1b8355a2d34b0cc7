"""Whether replication works: links, cursors and rights as they are, and a probe through every link."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import quote

import pulsar

from geo.replication.admin import AdminClient
from geo.replication.apply import AddressCheck, ServiceAddress, check_addresses, connect
from geo.replication.cluster_state import address, for_each_cluster, read_defaults, topic_stats, unprotected
from geo.replication.errors import AdminRefused, ReplicationError
from geo.replication.model import PROBE_TOPIC, Topology
from geo.replication.rest_types import CLUSTERS, SubscriptionStats, TopicStats
from geo.replication.topic_naming import is_brokers_own, split_partition, topic_path
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings

# The state of links and replicated cursors, from broker statistics.

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


# Tests of each role's rights with its token: allowed and forbidden requests.

NOBODY = "(no token)"
"""Who shows no token: may do nothing, whatever the brokers' `anonymousUserRole` is."""

_AT_ONCE = 8
_OPERATION_S = 5
_REFUSED = (401, 403)
_PAST_THE_RIGHT = (404, 409, 412)
# Who lists tenants runs the cluster.
_OPERATORS_ONLY = "tenants"
# In no topology: a topic that nobody may create, and a subscription that does not exist.
_NEW = "waybill-verify"
_SYSTEM_TOPIC = "__change_events"
# No message is as old as this, so a command that is allowed expires nothing.
_NOTHING_S = 2_147_483_647

_Found = dict[str, bool | str | None]


class TriedRight(Settings):
    """One thing that one role tried in one cluster; `was` None: it could be seen neither refused nor allowed."""

    role: str
    cluster: str
    action: str
    resource: str
    may: bool
    was: bool | None
    reason: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was as the topology says."""
        return self.was == self.may

    def __str__(self) -> str:
        found = {True: "was allowed", False: "was refused", None: f"unknown: {self.reason}"}[self.was]
        must = "may" if self.may else "must not"
        return f"{self.cluster}: {self.role} {must} {self.action} {self.resource}: {found}"


def try_rights(topology: Topology, clients: Mapping[str, AdminClient], tokens: Path | None) -> list[TriedRight]:
    """What each role that has a file `ROLE.token` in the folder may do in these clusters, tried; and who has no token.

    On each topic of a namespace where the role has a right, on one where it has none, on the system topic and on a new
    topic: a producer and a reader, which are opened and closed. Over HTTP: an operator's question, backlogs of the
    namespace, and each subscription of a topic that the role consumes. Nothing is sent, read or changed. Where brokers
    ask for no right nothing is tried.
    """
    roles: list[tuple[str, Path | None]] = [(NOBODY, None)]
    roles += [
        (role, file) for role in topology.roles_by_name() if tokens and (file := _token_of(role, tokens)).exists()
    ]
    asked = [admin for admin in clients.values() if read_defaults(admin.configuration()).authorization]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tried = pool.map(
            lambda one: list(_tried(topology, *one)), [(admin, *role) for admin in asked for role in roles]
        )
        return [right for rights in tried for right in rights]


def untried_roles(topology: Topology, tokens: Path | None) -> tuple[str, ...]:
    """The roles of which no token is at hand: what they may do is not known."""
    return tuple(role for role in topology.roles_by_name() if tokens is None or not _token_of(role, tokens).exists())


def _token_of(role: str, tokens: Path) -> Path:
    return tokens / f"{role}.token"


def _tried(topology: Topology, operator: AdminClient, role: str, token: Path | None) -> Iterator[TriedRight]:
    cluster = operator.cluster
    is_superuser = role in topology.superusers()
    access = PulsarAccess(
        token_file=token, tls_ca=operator.access.tls_ca, tls_validate_hostname=operator.access.tls_validate_hostname
    )
    right = partial(TriedRight, role=role, cluster=cluster)
    with AdminClient(cluster, operator.url, access=access, check_name=False, unavailable_s=0) as admin:
        asked = _asked(lambda: admin.get(_OPERATORS_ONLY))
        yield right(action="ask for", resource="tenants", may=is_superuser, **asked)
        way = ServiceAddress(address(topology, cluster).service_url)
        client = connect(admin, way, operation_s=_OPERATION_S)
        try:
            for topic, action, granted in _opening(topology, cluster, role, is_superuser):
                found = _opened(client, topic, action)
                # Whoever is nobody gets no answer at all, here as everywhere; from a dead address nobody does.
                is_silent = token is None and found["was"] is None
                if is_silent and asked["was"] is False and _answers(operator, way, topic, action):
                    found = {"was": False}
                yield right(action=action, resource=topic, may=granted, **found)
                if is_silent:
                    return
        finally:
            client.close()
        if not is_superuser:
            for action, resource, granted, command in _commands(topology, admin, role):
                yield right(action=action, resource=resource, may=granted, **_asked(command))


def _opening(topology: Topology, cluster: str, role: str, is_superuser: bool) -> Iterator[tuple[str, str, bool]]:
    """Each topic and action that is tried, and whether the role has the right."""
    for namespace in _namespaces(topology, cluster):
        grants = topology.grants(cluster, namespace)
        is_known = is_superuser or any(role in roles for roles in grants.values())
        named = [*grants] if is_known else [*grants][:1]
        # A superuser would create these.
        closed = [] if is_superuser else [f"{namespace}/{_SYSTEM_TOPIC}", f"{namespace}/{_NEW}"]
        for topic in [*named, *closed]:
            for action in ("produce", "consume"):
                yield topic, action, is_superuser or action in grants.get(topic, {}).get(role, ())


def _commands(
    topology: Topology, admin: AdminClient, role: str
) -> Iterator[tuple[str, str, bool, Callable[[], object]]]:
    for namespace in _namespaces(topology, admin.cluster):
        clear = partial(admin.post, f"namespaces/{namespace}/clearBacklog/{_NEW}")
        yield "clear backlogs of", namespace, False, clear
        subscriptions = topology.subscription_roles(admin.cluster, namespace)
        for topic, roles in topology.grants(admin.cluster, namespace).items():
            if "consume" in roles.get(role, ()):
                for name, users in subscriptions.items():
                    path = f"{topic_path(topic)}/subscription/{quote(name, safe='')}/expireMessages/{_NOTHING_S}"
                    yield "expire messages of", f"{topic} {name}", role in users, partial(admin.post, path)


def _namespaces(topology: Topology, cluster: str) -> list[str]:
    return [name for name, (_, clusters) in topology.placed().items() if cluster in clusters]


def _asked(command: Callable[[], object]) -> _Found:
    try:
        command()
    except AdminRefused as refused:
        if refused.status in _PAST_THE_RIGHT:
            return {"was": True}
        return {"was": False} if refused.status in _REFUSED else {"was": None, "reason": str(refused)}
    except ReplicationError as error:
        return {"was": None, "reason": str(error)}
    return {"was": True}


def _answers(operator: AdminClient, way: ServiceAddress, topic: str, action: str) -> bool:
    """Whether this address answers the operator what it may do."""
    client = connect(operator, way, operation_s=_OPERATION_S)
    try:
        return _opened(client, topic, action)["was"] is not None
    finally:
        client.close()


def _opened(client: pulsar.Client, topic: str, action: str) -> _Found:
    name = f"persistent://{topic}"
    try:
        if action == "produce":
            client.create_producer(name).close()
        else:
            client.create_reader(name, pulsar.MessageId.latest).close()
    except (pulsar.AuthorizationError, pulsar.AuthenticationError):
        return {"was": False}
    except pulsar.TopicNotFound:
        # A broker looks at the right first.
        return {"was": True}
    except pulsar.PulsarException as error:
        return {"was": None, "reason": str(error)}
    return {"was": True}


_PROBES = 3
_PROBE_OPERATION_S = 10

Latency = float | str  # seconds, or why there is none


class VerifyResult(Settings):
    """Every link of the topology, every right that was tried, and the clusters that did not answer: what these would
    say nobody knows. `untried`: roles whose rights count, and of which no token was at hand. `unprotected`: clusters
    whose brokers ask nobody for the rights that the topology names, or let more roles do everything. `unknown`:
    subscriptions with a backlog that the topology does not name, which are no part of the verdict."""

    links: tuple[LinkState, ...]
    unreachable: Mapping[str, str]
    rights: tuple[TriedRight, ...] = ()
    untried: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    unknown: tuple[UnknownSubscription, ...] = ()

    @property
    def is_good(self) -> bool | None:
        """Whether every link and right is; None: unknown, for want of an answer or of a token."""
        if self.unreachable:
            return None
        known = [right for right in self.rights if right.was is not None]
        is_good = all(link.is_good for link in self.links) and all(right.is_good for right in known)
        is_good &= not self.unprotected
        return None if is_good and (self.untried or len(known) < len(self.rights)) else is_good


def verify(
    topology: Topology, clients: Mapping[str, AdminClient], *, timeout_s: float = 15.0, role_tokens: Path | None = None
) -> VerifyResult:
    """The state of every link, with the median latency of a few probes; a link that let none through says so.

    `role_tokens`: a folder with a file `ROLE.token` of each role whose rights are tried too.
    """
    unreachable = dict(observe(topology, clients, time.time).unreachable)
    checked = for_each_cluster(_without(clients, unreachable), lambda admin: _checked(topology, admin))
    unreachable |= {cluster: error for cluster, error in checked.items() if isinstance(error, str)}
    alive = _without(clients, unreachable)
    wrong = [
        check for checks in checked.values() if isinstance(checks, list) for check in checks if check.belongs is False
    ]
    # Into a cluster that is not the one that is meant no probe is sent.
    strangers = {check.cluster for check in wrong if not check.seen_by}
    latencies: dict[tuple[str, str, str], Latency] = {}
    reached = {name: client for name, client in alive.items() if name not in strangers}
    with _connections(topology, reached) as connections:
        for namespace, (_, clusters) in topology.placed().items():
            probed = sorted(cluster for cluster in clusters if cluster in connections)
            for (source, target), latency in _probe(connections, namespace, probed, timeout_s).items():
                latencies[namespace, source, target] = latency
    # Looked at after the probes: one that is stuck is part of the backlog.
    seen = observe(topology, clients, time.time)
    for link in seen.links:
        for check in wrong:
            if check.concerns(link.source, link.target):
                latencies[link.namespace, link.source, link.target] = (
                    f"{check.service_url} is not of cluster {check.cluster}"
                )
    links = tuple(_with_latency(link, latencies.get((link.namespace, link.source, link.target))) for link in seen.links)
    rights = tuple(try_rights(topology, reached, role_tokens)) if topology.roles else ()
    return VerifyResult(
        links=links,
        unreachable={**unreachable, **seen.unreachable},
        rights=rights,
        # Where nothing was tried at all no right counts.
        untried=untried_roles(topology, role_tokens) if rights else (),
        unprotected=tuple(unprotected(topology, reached)),
        unknown=seen.unknown,
    )


def _without(clients: Mapping[str, AdminClient], gone: Mapping[str, str]) -> dict[str, AdminClient]:
    return {cluster: admin for cluster, admin in clients.items() if cluster not in gone}


def _checked(topology: Topology, admin: AdminClient) -> list[AddressCheck] | str:
    try:
        return check_addresses(topology, {admin.cluster: admin})
    except ReplicationError as error:
        return str(error)


def _with_latency(link: LinkState, latency: Latency | None) -> LinkState:
    if isinstance(latency, float):
        return link.model_copy(update={"latency_s": latency})
    return link.model_copy(update={"problem": link.problem or latency or "not probed"})


@contextmanager
def _connections(topology: Topology, clients: Mapping[str, AdminClient]) -> Iterator[dict[str, pulsar.Client]]:
    with ExitStack() as opened:
        connections = {}
        for cluster, admin in sorted(clients.items()):
            client = connect(
                admin, ServiceAddress(address(topology, cluster).service_url), operation_s=_PROBE_OPERATION_S
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
        producer = source.create_producer(topic, send_timeout_millis=_PROBE_OPERATION_S * 1000)
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
                if (arrived := arrival.result(timeout_s + _PROBE_OPERATION_S)) is not None:
                    latencies[target].append(arrived - sent)
        producer.close()
    except pulsar.PulsarException as refused:
        late = f"no probe could be sent: {refused}"
    return {target: median(times) if len(times) == _PROBES else late for target, times in latencies.items()}


def _arrival(reader: pulsar.Reader, mark: bytes, deadline: float) -> float | None:
    """When the marked message was read, on the monotonic clock; None when the time was over."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            message = reader.read_next(max(1, int(left * 1000)))
        except pulsar.PulsarException:  # time-out, or the reader's cluster went away
            break
        if message.data() == mark:
            return time.monotonic()
    return None
