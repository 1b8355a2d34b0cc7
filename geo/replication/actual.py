"""What is there: reads a cluster's state through its admin interface."""

from collections.abc import Iterable, Mapping
from typing import Any

from geo.replication.admin import AdminClient, topic_path
from geo.replication.state import ClusterState, NamespaceState, Registration, TenantState, TopicState

__all__ = ["actual", "read_policies", "topic_names"]

_MB = 1024 * 1024
_QUOTA = "destination_storage"


def actual(admins: Mapping[str, AdminClient], tenants: Iterable[str]) -> dict[str, ClusterState]:
    """The state of each cluster, as far as it concerns these tenants."""
    wanted = list(tenants)
    return {cluster: _read(admin, wanted) for cluster, admin in admins.items()}


def _read(admin: AdminClient, tenants: list[str]) -> ClusterState:
    found = {name: data for name in tenants if (data := admin.get(f"tenants/{name}")) is not None}
    namespaces = [name for tenant in found for name in admin.get(f"namespaces/{tenant}") or []]
    return ClusterState(
        registrations=_registrations(admin),
        tenants={
            name: TenantState(
                admin_roles=frozenset(data.get("adminRoles") or ()),
                allowed_clusters=frozenset(data.get("allowedClusters") or ()),
            )
            for name, data in found.items()
        },
        namespaces={name: read_policies(admin.get(f"namespaces/{name}")) for name in namespaces},
        topics={topic: state for name in namespaces for topic, state in _topics(admin, name).items()},
    )


def _registrations(admin: AdminClient) -> dict[str, Registration]:
    others = [name for name in admin.get("clusters") or [] if name != admin.cluster]
    read = {name: admin.get(f"clusters/{name}") or {} for name in others}
    return {
        name: Registration(
            service_url=data.get("brokerServiceUrl") or "",
            admin_url=data.get("serviceUrl") or "",
            listener=data.get("listenerName") or "",
        )
        for name, data in read.items()
    }


def read_policies(data: Mapping[str, Any]) -> NamespaceState:
    """A namespace's state from the JSON of its policies."""
    retention = data.get("retention_policies")
    quota = (data.get("backlog_quota_map") or {}).get(_QUOTA)
    return NamespaceState(
        clusters=frozenset(data.get("replication_clusters") or ()),
        retention=(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]) if retention else None,
        backlog_quota=(quota["limitSize"] // _MB, quota["policy"]) if quota else None,
        message_ttl_s=data.get("message_ttl_in_seconds") or 0,
        deduplication=bool(data.get("deduplicationEnabled")),
        compaction_threshold_bytes=data.get("compaction_threshold") or 0,
    )


def topic_names(admin: AdminClient, namespace: str) -> dict[str, int]:
    """The topics of a namespace by full name, with their number of partitions (0: not partitioned)."""
    short = len("persistent://")
    partitioned = [name[short:] for name in admin.get(f"persistent/{namespace}/partitioned") or []]
    plain = [name[short:] for name in admin.get(f"persistent/{namespace}") or []]
    parents = set(partitioned)
    found = {name: 0 for name in plain if name.rpartition("-partition-")[0] not in parents}
    for name in partitioned:
        found[name] = admin.get(f"{topic_path(name)}/partitions")["partitions"]
    # Names that begin with two underscores are the broker's own (policies, transactions).
    return {name: count for name, count in sorted(found.items()) if not name.rpartition("/")[2].startswith("__")}


def _topics(admin: AdminClient, namespace: str) -> dict[str, TopicState]:
    return {
        name: TopicState(partitions=partitions, subscriptions=_subscriptions(admin, name, partitions))
        for name, partitions in topic_names(admin, namespace).items()
    }


def _subscriptions(admin: AdminClient, topic: str, partitions: int) -> dict[str, bool]:
    """Subscriptions that exist on every partition; replicated only if they are so on every partition."""
    parts = [f"{topic}-partition-{number}" for number in range(partitions)] if partitions else [topic]
    stats = [(admin.get(f"{topic_path(part)}/stats") or {}).get("subscriptions") or {} for part in parts]
    everywhere = set(stats[0]).intersection(*stats[1:])
    return {name: all(_replicated(part[name]) for part in stats) for name in sorted(everywhere)}


def _replicated(subscription: Mapping[str, Any]) -> bool:
    return bool(subscription.get("isReplicated", subscription.get("replicated", False)))
