"""What is there: reads a cluster's state through its admin interface."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from geo.replication.admin import AdminClient, topic_path
from geo.replication.answers import CLUSTER, NAMES, NAMESPACE, PARTITIONS, STATS, TENANT
from geo.replication.state import BrokerDefaults, ClusterState, NamespaceState, Registration, TenantState, TopicState

__all__ = ["actual", "each", "parts", "read_defaults", "read_policies", "read_registration", "topic_names"]

_MB = 1024 * 1024
_AT_ONCE = 16
_QUOTA = "destination_storage"
_GLOBAL = "global"  # Pulsar's name for all clusters at once, no cluster


def actual(admins: Mapping[str, AdminClient], tenants: Iterable[str]) -> dict[str, ClusterState]:
    """The state of each cluster, as far as it concerns these tenants."""
    wanted = list(tenants)
    return each(admins, lambda admin: _read(admin, wanted))


_Found = TypeVar("_Found")


def each(admins: Mapping[str, AdminClient], ask: Callable[[AdminClient], _Found]) -> dict[str, _Found]:
    """What each cluster answers, asked side by side: a silent one costs its time-out once. Raises what `ask` raises."""
    if not admins:
        return {}
    with ThreadPoolExecutor(min(len(admins), _AT_ONCE)) as pool:
        waiting = {cluster: pool.submit(ask, admin) for cluster, admin in admins.items()}
    return {cluster: one.result() for cluster, one in waiting.items()}


def _read(admin: AdminClient, tenants: list[str]) -> ClusterState:
    found = {name: data for name in tenants if (data := admin.get(f"tenants/{name}", TENANT)) is not None}
    namespaces = [name for tenant in found for name in admin.get(f"namespaces/{tenant}", NAMES) or []]
    policies = {name: admin.get(f"namespaces/{name}", NAMESPACE) for name in namespaces}
    return ClusterState(
        defaults=read_defaults(admin.configuration()),
        registrations=_registrations(admin),
        tenants={
            name: TenantState(
                admin_roles=frozenset(data["adminRoles"]), allowed_clusters=frozenset(data["allowedClusters"])
            )
            for name, data in found.items()
        },
        namespaces={name: read_policies(data) for name, data in policies.items() if data is not None},
        topics={topic: state for name in namespaces for topic, state in _topics(admin, name).items()},
    )


def _registrations(admin: AdminClient) -> dict[str, Registration]:
    read = {name: admin.get(f"clusters/{name}", CLUSTER) for name in admin.get("clusters", NAMES) or []}
    return {name: read_registration(data) for name, data in read.items() if data is not None and name != _GLOBAL}


def read_registration(data: Mapping[str, Any]) -> Registration:
    """A registration from Pulsar's cluster data: the addresses with TLS where they are the ones in use."""
    kinds = ("Tls", "") if data.get("brokerClientTlsEnabled") else ("", "Tls")
    service_url, admin_url = (
        next((url for kind in kinds if (url := data.get(f"{name}{kind}"))), "")
        for name in ("brokerServiceUrl", "serviceUrl")
    )
    return Registration(service_url=service_url, admin_url=admin_url, listener=data.get("listenerName") or "")


def read_defaults(configuration: Mapping[str, str]) -> BrokerDefaults:
    """What this broker does without a policy; what its configuration does not say is Pulsar's own default."""
    own = BrokerDefaults()
    size_gb = float(configuration.get("backlogQuotaDefaultLimitGB") or -1)
    size_mb = size_gb * 1024 if size_gb > 0 else int(configuration.get("backlogQuotaDefaultLimitBytes") or -1) / _MB
    return BrokerDefaults(
        retention=(
            int(configuration.get("defaultRetentionTimeInMinutes") or own.retention[0]),
            int(configuration.get("defaultRetentionSizeInMB") or own.retention[1]),
        ),
        backlog_quota=(
            int(size_mb) if size_mb > 0 else -1,
            configuration.get("backlogQuotaDefaultRetentionPolicy") or own.backlog_quota[1],
        ),
        message_ttl_s=int(configuration.get("ttlDurationDefaultInSeconds") or own.message_ttl_s),
    )


def read_policies(data: Mapping[str, Any]) -> NamespaceState:
    """A namespace's state from the JSON of its policies."""
    retention = data.get("retention_policies")
    quota = (data.get("backlog_quota_map") or {}).get(_QUOTA)
    automatic = data.get("autoTopicCreationOverride")
    return NamespaceState(
        clusters=frozenset(data.get("replication_clusters") or ()),
        retention=(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]) if retention else None,
        backlog_quota=(quota["limitSize"] // _MB, quota["policy"]) if quota else None,
        message_ttl_s=data.get("message_ttl_in_seconds"),
        deduplication=data.get("deduplicationEnabled"),
        compaction_threshold_bytes=data.get("compaction_threshold"),
        auto_topic_creation=automatic.get("allowAutoTopicCreation") if automatic else None,
    )


def topic_names(admin: AdminClient, namespace: str) -> dict[str, int]:
    """The topics of a namespace by full name, with their number of partitions (0: not partitioned)."""
    short = len("persistent://")
    partitioned = [name[short:] for name in admin.get(f"persistent/{namespace}/partitioned", NAMES) or []]
    plain = [name[short:] for name in admin.get(f"persistent/{namespace}", NAMES) or []]
    parents = set(partitioned)
    found = {name: 0 for name in plain if name.rpartition("-partition-")[0] not in parents}
    for name in partitioned:
        if (counted := admin.get(f"{topic_path(name)}/partitions", PARTITIONS)) is not None:
            found[name] = counted["partitions"]
    # Names that begin with two underscores are the broker's own (policies, transactions).
    return {name: count for name, count in sorted(found.items()) if not name.rpartition("/")[2].startswith("__")}


def parts(topic: str, partitions: int) -> list[str]:
    """The names under which a topic's messages are stored: its partitions', or its own."""
    return [f"{topic}-partition-{number}" for number in range(partitions)] if partitions else [topic]


def _topics(admin: AdminClient, namespace: str) -> dict[str, TopicState]:
    read = {name: _topic(admin, name, partitions) for name, partitions in topic_names(admin, namespace).items()}
    return {name: state for name, state in read.items() if state is not None}


def _topic(admin: AdminClient, topic: str, partitions: int) -> TopicState | None:
    """A topic as it is; None when it is gone. A subscription exists, and is replicated, if so on every partition."""
    stats = [admin.get(f"{topic_path(part)}/stats", STATS) for part in parts(topic, partitions)]
    missing = tuple(number for number, one in enumerate(stats) if one is None)
    if missing and not partitions:
        return None
    subscriptions = [one["subscriptions"] if one else {} for one in stats]
    everywhere = set(subscriptions[0]).intersection(*subscriptions[1:])
    replicated = {name: all(_replicated(part[name]) for part in subscriptions) for name in sorted(everywhere)}
    return TopicState(partitions=partitions, subscriptions=replicated, missing=missing)


def _replicated(subscription: Mapping[str, Any]) -> bool:
    return bool(subscription.get("isReplicated", subscription.get("replicated", False)))
