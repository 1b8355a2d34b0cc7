"""What a cluster holds of a topology: the same form for the desired and for the actual state."""

from collections.abc import Mapping

from waybill.settings import Settings

__all__ = ["BrokerDefaults", "ClusterState", "NamespaceState", "Registration", "TenantState", "TopicState"]


class Registration(Settings):
    """What one cluster knows about another, or about itself. The schemes say whether TLS is used."""

    service_url: str
    admin_url: str
    listener: str = ""
    trust_certs_file: str = ""  # desired: "" leaves it as it is


class TenantState(Settings):
    """A tenant as one cluster knows it."""

    admin_roles: frozenset[str] = frozenset()
    allowed_clusters: frozenset[str]


class BrokerDefaults(Settings):
    """What a broker does where a namespace has no policy of its own; as written here: Pulsar's own defaults."""

    retention: tuple[int, int] = (0, 0)  # minutes, MB
    backlog_quota: tuple[int, str] = (-1, "producer_request_hold")  # MB (-1: no limit), policy
    message_ttl_s: int = 0  # 0: for ever
    authorization: bool = False  # whether rights count
    topic_policies: bool = True  # whether a message in __change_events changes policies
    auto_topic_creation: bool = True
    open_metrics: bool = True  # whether /metrics answers without a token
    superusers: frozenset[str] = frozenset()


class NamespaceState(Settings):
    """A namespace's policies in one cluster; None: not set, so the broker's own."""

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
    """A topic in one cluster and its durable subscriptions: name to whether their position travels.

    `missing`: the numbers of the partitions that do not exist; only of the actual state.
    """

    partitions: int
    subscriptions: Mapping[str, bool] = {}
    missing: tuple[int, ...] = ()


class ClusterState(Settings):
    """Everything of a topology that one cluster holds. Namespaces are tenant/name, topics tenant/name/topic.

    `others`: clusters that may be registered for other purposes; only of the desired state.
    """

    others: frozenset[str] = frozenset()
    defaults: BrokerDefaults = BrokerDefaults()
    registrations: Mapping[str, Registration] = {}
    tenants: Mapping[str, TenantState] = {}
    namespaces: Mapping[str, NamespaceState] = {}
    topics: Mapping[str, TopicState] = {}
