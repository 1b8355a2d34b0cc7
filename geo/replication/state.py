"""What a cluster holds of a topology: the same form for what is wanted and for what is there."""

from collections.abc import Mapping

from settings import Settings

__all__ = ["ClusterState", "NamespaceState", "Registration", "TenantState", "TopicState"]


class Registration(Settings):
    """What one cluster knows about another."""

    service_url: str
    admin_url: str
    listener: str = ""


class TenantState(Settings):
    """A tenant as one cluster knows it."""

    admin_roles: frozenset[str] = frozenset()
    allowed_clusters: frozenset[str]


class NamespaceState(Settings):
    """A namespace's policies in one cluster; None: not set, so the broker's own."""

    clusters: frozenset[str]
    retention: tuple[int, int] | None = None  # minutes, MB
    backlog_quota: tuple[int, str] | None = None  # MB, policy
    message_ttl_s: int = 0
    deduplication: bool = False
    compaction_threshold_bytes: int = 0


class TopicState(Settings):
    """A topic in one cluster and its durable subscriptions: name to whether their position travels."""

    partitions: int
    subscriptions: Mapping[str, bool] = {}


class ClusterState(Settings):
    """Everything of a topology that one cluster holds. Namespaces are tenant/name, topics tenant/name/topic."""

    registrations: Mapping[str, Registration] = {}
    tenants: Mapping[str, TenantState] = {}
    namespaces: Mapping[str, NamespaceState] = {}
    topics: Mapping[str, TopicState] = {}
