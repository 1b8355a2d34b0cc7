"""The state of a cluster, in the same form whether desired by a topology or read from the cluster."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from geo.replication.admin import AdminClient
from geo.replication.errors import NoAddress
from geo.replication.model import PROBE_TOPIC, ClusterAddress, Namespace, Topic, Topology
from geo.replication.rest_types import (
    CLUSTER,
    CLUSTERS,
    NAMESPACE,
    NAMESPACES,
    PARTITIONS,
    STATS,
    TENANT,
    ClusterData,
    NamespaceData,
    TopicStats,
    topics_of,
)
from geo.replication.topic_naming import (
    PERSISTENT,
    is_addressable,
    is_brokers_own,
    partition_name,
    split_partition,
    topic_path,
)
from waybill.settings import Settings

# The actual state, read from a cluster's admin interface.


class Registration(Settings):
    """The addresses that one cluster knows of another, or of itself. The schemes say whether TLS is used."""

    service_url: str
    admin_url: str
    listener: str = ""
    trust_certs_file: str = ""  # desired: "" leaves it as it is


class TenantState(Settings):
    admin_roles: frozenset[str] = frozenset()
    allowed_clusters: frozenset[str]


class NamespaceState(Settings):
    """A namespace's policies in one cluster; None: not set, so the broker's own applies."""

    clusters: frozenset[str]
    retention: tuple[int, int] | None = None  # minutes, MB
    backlog_quota: tuple[int, str] | None = None  # MB, policy
    publish_rate: tuple[int, int] | None = None  # messages a second, KB a second
    message_ttl_s: int | None = None
    deduplication: bool | None = None
    compaction_threshold_bytes: int | None = None
    auto_topic_creation: bool | None = None
    # Actions by role, by topic or by the namespace itself; desired None: left as they are.
    grants: Mapping[str, Mapping[str, frozenset[str]]] | None = None
    subscription_roles: Mapping[str, frozenset[str]] | None = None  # who may use a subscription, by its name


class TopicState(Settings):
    """A topic in one cluster and its durable subscriptions by name, with whether each is replicated.

    `missing`: the numbers of the partitions that do not exist; only in the actual state.
    """

    partitions: int
    subscriptions: Mapping[str, bool] = {}
    missing: tuple[int, ...] = ()


class ClusterState(Settings):
    """All parts of a topology that one cluster has. Namespaces are tenant/name, topics tenant/name/topic.

    `others`: clusters that may be registered for other purposes; only in the desired state.
    """

    others: frozenset[str] = frozenset()
    enforces_rights: bool = False
    registrations: Mapping[str, Registration] = {}
    tenants: Mapping[str, TenantState] = {}
    namespaces: Mapping[str, NamespaceState] = {}
    topics: Mapping[str, TopicState] = {}


_MB = 1024 * 1024
_KB = 1024
_AT_ONCE = 16
_QUOTA = "destination_storage"
_GLOBAL = "global"  # Pulsar's name for all clusters at once, no cluster


def actual(admins: Mapping[str, AdminClient], tenants: Iterable[str]) -> dict[str, ClusterState]:
    wanted = list(tenants)
    return for_each_cluster(admins, lambda admin: _read(admin, wanted))


_Found = TypeVar("_Found")


def for_each_cluster(admins: Mapping[str, AdminClient], ask: Callable[[AdminClient], _Found]) -> dict[str, _Found]:
    """The answer of each cluster, asked in parallel: silent ones cost one time-out in all. Raises what `ask` raises."""
    if not admins:
        return {}
    with ThreadPoolExecutor(min(len(admins), _AT_ONCE)) as pool:
        waiting = {cluster: pool.submit(ask, admin) for cluster, admin in admins.items()}
    return {cluster: one.result() for cluster, one in waiting.items()}


def _read(admin: AdminClient, tenants: list[str]) -> ClusterState:
    tenants_found = {name: data for name in tenants if (data := admin.get(f"tenants/{name}", TENANT)) is not None}
    namespaces = [name for tenant in tenants_found for name in admin.get(f"namespaces/{tenant}", NAMESPACES) or []]
    policies = {name: admin.get(f"namespaces/{name}", NAMESPACE) for name in namespaces}
    return ClusterState(
        enforces_rights=admin.configuration().authorization,
        registrations=_registrations(admin),
        tenants={
            name: TenantState(
                admin_roles=frozenset(data.admin_roles), allowed_clusters=frozenset(data.allowed_clusters)
            )
            for name, data in tenants_found.items()
        },
        namespaces={
            name: read_policies(name, data, admin.cluster) for name, data in policies.items() if data is not None
        },
        topics={topic: state for name in namespaces for topic, state in _topics(admin, name).items()},
    )


def _registrations(admin: AdminClient) -> dict[str, Registration]:
    read = {name: admin.get(f"clusters/{name}", CLUSTER) for name in admin.get("clusters", CLUSTERS) or []}
    return {name: read_registration(data) for name, data in read.items() if data is not None and name != _GLOBAL}


def read_registration(data: ClusterData) -> Registration:
    """A registration from Pulsar's cluster data, with the TLS addresses where TLS is enabled."""
    service, service_tls = data.get("brokerServiceUrl"), data.get("brokerServiceUrlTls")
    admin, admin_tls = data.get("serviceUrl"), data.get("serviceUrlTls")
    if data["brokerClientTlsEnabled"]:
        service, service_tls, admin, admin_tls = service_tls, service, admin_tls, admin
    return Registration(
        service_url=service or service_tls or "",
        admin_url=admin or admin_tls or "",
        listener=data.get("listenerName") or "",
        trust_certs_file=data.get("brokerClientTrustCertsFilePath") or "",
    )


def read_policies(name: str, data: NamespaceData, cluster: str) -> NamespaceState:
    retention, automatic = data.retention, data.auto_topic_creation
    quota = (data.quotas or {}).get(_QUOTA)
    rate = (data.publish_rates or {}).get(cluster)
    return NamespaceState(
        clusters=frozenset(data.replication_clusters),
        retention=(retention.minutes, retention.size_mb) if retention else None,
        backlog_quota=(quota.limit_bytes // _MB, quota.policy) if quota else None,
        publish_rate=(rate.messages_per_s, rate.bytes_per_s // _KB) if rate else None,
        message_ttl_s=data.message_ttl_s,
        deduplication=data.deduplication,
        compaction_threshold_bytes=data.compaction_threshold_bytes,
        auto_topic_creation=automatic.allowed if automatic else None,
        grants=rights(name, data),
        subscription_roles={one: frozenset(roles) for one, roles in data.rights.of_subscriptions.items()},
    )


def rights(name: str, data: NamespaceData) -> dict[str, dict[str, frozenset[str]]]:
    """The actions of each role on the namespace and on each of its topics, the broker's own topics included.

    Pulsar also lists rights by partition; a right on a partition alone counts as one on its topic.
    """
    given: dict[str, dict[str, frozenset[str]]] = {}
    for full_name, roles in [(name, data.rights.of_namespace), *data.rights.of_topics.items()]:
        of_one = given.setdefault(split_partition(full_name.removeprefix(PERSISTENT))[0], {})
        for role, actions in roles.items():
            of_one[role] = of_one.get(role, frozenset()) | frozenset(actions)
    return given


def topic_names(admin: AdminClient, namespace: str) -> dict[str, int]:
    """The topics of a namespace by full name, with their number of partitions (0: not partitioned).

    Non-persistent topics, the broker's own (their names begin with two underscores) and those that no URL can address
    (see `is_addressable`) are left out.
    """
    plain, partitioned = (
        [name.removeprefix(PERSISTENT) for name in admin.get(path, topics_of(namespace)) or [] if _is_used(name)]
        for path in (f"persistent/{namespace}", f"persistent/{namespace}/partitioned")
    )
    parents = set(partitioned)
    counts = {name: 0 for name in plain if split_partition(name)[0] not in parents}
    for name in partitioned:
        if (counted := admin.get(f"{topic_path(name)}/partitions", PARTITIONS)) is not None:
            counts[name] = counted.partitions
    return dict(sorted(counts.items()))


def _is_used(name: str) -> bool:
    return name.startswith(PERSISTENT) and not is_brokers_own(name) and is_addressable(name)


def parts(topic: str, partitions: int) -> list[str]:
    """The names of a topic's partitions, or its own."""
    return [partition_name(topic, number) for number in range(partitions)] if partitions else [topic]


def _topics(admin: AdminClient, namespace: str) -> dict[str, TopicState]:
    read = {name: _topic(admin, name, partitions) for name, partitions in topic_names(admin, namespace).items()}
    return {name: state for name, state in read.items() if state is not None}


def _topic(admin: AdminClient, topic: str, partitions: int) -> TopicState | None:
    """The state of a topic; None when it is gone. A subscription counts as present or replicated when it is so on every
    partition.
    """
    stats = [admin.get(f"{topic_path(part)}/stats", STATS) for part in parts(topic, partitions)]
    missing = tuple(number for number, one in enumerate(stats) if one is None)
    if missing and not partitions:
        return None
    subscriptions = [one.subscriptions if one else {} for one in stats]
    everywhere = set(subscriptions[0]).intersection(*subscriptions[1:])
    replicated = {name: all(part[name].replicated for part in subscriptions) for name in sorted(everywhere)}
    return TopicState(partitions=partitions, subscriptions=replicated, missing=missing)


def topic_stats(admin: AdminClient, namespace: str, **asked: bool) -> dict[str, TopicStats | None]:
    """The statistics of every topic of a namespace, by partition; None for one that is gone.

    `asked`: options of the request.
    """
    topics = [part for name, partitions in topic_names(admin, namespace).items() for part in parts(name, partitions)]
    return {topic: admin.get(f"{topic_path(topic)}/stats", STATS, **asked) for topic in topics}


# The desired state of each cluster. Pure.


def address(topology: Topology, cluster: str) -> ClusterAddress:
    """Raises NoAddress when the topology has no address of the cluster."""
    known = topology.clusters[cluster].address
    if known is None:
        raise NoAddress(cluster)
    return known


def desired(topology: Topology) -> dict[str, ClusterState]:
    """The desired state of each cluster, by its name.

    Every policy except the quotas is set, so that no broker's default decides.
    """
    return {cluster: _cluster_state(topology, cluster) for cluster in sorted(topology.clusters)}


def _cluster_state(topology: Topology, cluster: str) -> ClusterState:
    here = {name: placed for name, placed in topology.placed().items() if cluster in placed[1]}
    everywhere = frozenset(topology.clusters)
    return ClusterState(
        others=frozenset(topology.other_clusters),
        registrations={other: _registration(topology, other, cluster) for other in sorted(everywhere)},
        tenants={
            name: TenantState(admin_roles=frozenset(tenant.admin_roles), allowed_clusters=everywhere)
            for name, tenant in topology.tenants.items()
        },
        namespaces={
            name: _namespace_state(topology, cluster, name, spec, clusters) for name, (spec, clusters) in here.items()
        },
        topics={
            f"{name}/{topic}": _topic_state(topology, cluster, made)
            for name, (spec, clusters) in here.items()
            for topic, made in {**spec.topics, **_probe(clusters)}.items()
        },
    )


def _probe(clusters: frozenset[str]) -> dict[str, Topic]:
    return {PROBE_TOPIC: Topic()} if len(clusters) > 1 else {}


def _registration(topology: Topology, other: str, seen_by: str) -> Registration:
    where = address(topology, other)
    way = where.seen_from.get(seen_by)
    return Registration(
        service_url=way.service_url if way else where.service_url,
        admin_url=where.admin_url,
        listener=way.listener if way else "",
        trust_certs_file=where.trust_certs_file,
    )


def _namespace_state(
    topology: Topology, cluster: str, name: str, spec: Namespace, clusters: frozenset[str]
) -> NamespaceState:
    return NamespaceState(
        clusters=clusters,
        retention=(spec.retention.minutes, spec.retention.size_mb),
        backlog_quota=(spec.backlog_quota.size_mb, spec.backlog_quota.policy) if spec.backlog_quota else None,
        publish_rate=(spec.publish_rate.messages_per_s, spec.publish_rate.kb_per_s) if spec.publish_rate else None,
        message_ttl_s=spec.message_ttl_s,
        deduplication=spec.deduplication,
        compaction_threshold_bytes=spec.compaction_threshold_bytes,
        auto_topic_creation=spec.auto_topic_creation,
        grants=topology.grants(cluster, name) if topology.roles else None,
        subscription_roles=topology.subscription_roles(cluster, name) if topology.roles else None,
    )


def _topic_state(topology: Topology, cluster: str, topic: Topic) -> TopicState:
    return TopicState(
        partitions=topic.partitions,
        subscriptions={
            name: subscription.replicated
            for name, subscription in topic.subscriptions.items()
            if subscription.create and (subscription.on == "everywhere" or cluster in topology.centres)
        },
    )


# Whether brokers enforce a topology's rights.


def unprotected(topology: Topology, clients: Mapping[str, AdminClient]) -> Iterator[str]:
    """Settings of brokers that weaken the topology's rights; nothing where it names no role."""
    if not topology.roles:
        return
    for cluster, admin in clients.items():
        said = admin.configuration()
        meant = {*topology.superusers(), topology.role_of_brokers(cluster)}
        if not said.authorization:
            yield f"{cluster}: its brokers do not enforce rights (authorizationEnabled is not true)"
            continue
        if more := sorted(said.superusers - meant):
            yield f"{cluster}: {', '.join(more)} may do everything (superUserRoles), but not by the topology"
        if said.topic_policies:
            yield (
                f"{cluster}: its brokers apply topic policies (topicLevelPoliciesEnabled): a message in "
                "__change_events deletes topics, and no plan sees it"
            )
        if said.auto_topic_creation:
            yield f"{cluster}: its brokers create topics that a client asks for (allowAutoTopicCreation)"
        if not said.guarded_metrics:
            yield f"{cluster}: anyone can read its brokers' metrics (authenticateMetricsEndpoint is not true)"
