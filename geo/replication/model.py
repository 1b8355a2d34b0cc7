"""The topology: which clusters there are, who is the centre, and what replicates where."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from settings import Settings

__all__ = [
    "BacklogQuota",
    "Cluster",
    "ClusterAddress",
    "Namespace",
    "Region",
    "Retention",
    "SeenFrom",
    "Subscription",
    "Tenant",
    "Topic",
    "Topology",
]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
_REGION = "{region}"
_SERVICE_URL = r"^pulsar(\+ssl)?://[^\s/]+$"
_ADMIN_URL = r"^https?://[^\s/]+$"


class SeenFrom(Settings):
    """How one other cluster reaches this one, when that differs from the common address."""

    service_url: str = Field(
        pattern=_SERVICE_URL, description="pulsar:// or pulsar+ssl://, dialled by the other cluster"
    )
    listener: str = Field("", description="advertised listener that the broker answers look-ups with")


class ClusterAddress(Settings):
    """Where a cluster is."""

    service_url: str = Field(
        pattern=_SERVICE_URL, description="for clients and replicators: pulsar://host:port or pulsar+ssl://host:port"
    )
    admin_url: str = Field(
        pattern=_ADMIN_URL, description="for the admin REST interface: http://host:port or https://host:port"
    )
    seen_from: Mapping[str, SeenFrom] = Field(
        {}, description="other ways in, by the name of the cluster that uses them"
    )


class Cluster(Settings):
    """One Pulsar cluster."""

    address: ClusterAddress | None = Field(None, description="where it is; a local stack fills this in")


class Region(Settings):
    """A region of vehicles and the cluster that takes in what they send."""

    cluster: str = Field(pattern=_NAME)


class Tenant(Settings):
    """A Pulsar tenant; it is allowed on every cluster of the topology."""

    admin_roles: tuple[str, ...] = ()


class Retention(Settings):
    """How long acknowledged messages stay; -1 is without limit."""

    minutes: int = Field(ge=-1)
    size_mb: int = Field(ge=-1)


class BacklogQuota(Settings):
    """How much may wait for a subscription, and what happens then."""

    size_mb: int = Field(ge=1)
    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"] = (
        "producer_request_hold"
    )


class Subscription(Settings):
    """A durable subscription that exists before its first consumer, so that nothing is missed."""

    replicated: bool = Field(True, description="its position travels to the other clusters")
    on: Literal["centre", "everywhere"] = Field(
        "centre", description="centre: on the centre and its standby; everywhere: on each cluster of the namespace"
    )


class Topic(Settings):
    """A topic that exists in every cluster of its namespace."""

    partitions: int = Field(0, ge=0, le=1024, description="0: not partitioned")
    subscriptions: Mapping[str, Subscription] = {}


class Namespace(Settings):
    """A namespace and its policies. `{region}` in its name makes one namespace for each region."""

    clusters: tuple[str, ...] | Literal["all", "centre"] | None = Field(
        None,
        description="where it lives; centre: there and on its standby; not needed with {region}: the region's "
        "cluster, the centre and the standby",
    )
    retention: Retention = Field(
        Retention(minutes=0, size_mb=0), description="not given: acknowledged messages go at once"
    )
    backlog_quota: BacklogQuota | None = Field(None, description="none: the broker's own")
    message_ttl_s: int = Field(0, ge=0, description="0: messages wait for ever")
    deduplication: bool = Field(False, description="the broker's; correctness never rests on it")
    compaction_threshold_bytes: int = Field(0, ge=0, description="compact when this much is new; 0: never by itself")
    auto_topic_creation: bool | None = Field(
        None, description="whether a client may create a topic by using it; none: as the broker is configured"
    )
    topics: Mapping[str, Topic] = {}

    @model_validator(mode="after")
    def _quota_below_retention(self) -> Self:
        # Pulsar refuses the other order: what may still be read would exceed what may be kept.
        if self.backlog_quota and 0 < self.retention.size_mb <= self.backlog_quota.size_mb:
            raise ValueError("backlog_quota.size_mb must be smaller than retention.size_mb")
        return self


class Topology(Settings):
    """Clusters, regions, the centre and its standby, and what replicates between them."""

    centre: str = Field(pattern=_NAME, description="the cluster where all regions meet")
    standby: str | None = Field(None, description="the cluster that takes over when the centre is lost")
    clusters: Mapping[Name, Cluster] = Field(min_length=1)
    other_clusters: tuple[Name, ...] = Field((), description="registered for other purposes: left as they are")
    regions: Mapping[Name, Region] = Field(min_length=1)
    tenants: Mapping[Name, Tenant] = Field(min_length=1)
    namespaces: Mapping[str, Namespace] = {}

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        named = {self.centre: "centre"} | ({self.standby: "standby"} if self.standby else {})
        named |= {region.cluster: f"regions.{name}.cluster" for name, region in self.regions.items()}
        for namespace, spec in self.namespaces.items():
            if isinstance(spec.clusters, tuple):
                named |= dict.fromkeys(spec.clusters, f"namespaces.{namespace}.clusters")
        for cluster, where in named.items():
            if cluster not in self.clusters:
                raise ValueError(f"{where}: no cluster {cluster!r}; known are {', '.join(sorted(self.clusters))}")
        if self.standby == self.centre:
            raise ValueError("standby: must be another cluster than the centre")
        return self

    @model_validator(mode="after")
    def _namespaces_are_complete(self) -> Self:
        for name, spec in self.namespaces.items():
            tenant, slash, short = name.partition("/")
            if not slash or not short or tenant not in self.tenants:
                raise ValueError(f"namespaces.{name}: must be tenant/namespace with a tenant of this topology")
            if (_REGION in name) == (spec.clusters is not None):
                raise ValueError(
                    f"namespaces.{name}: say either {{region}} in the name or clusters, not both or neither"
                )
        return self

    @property
    def centres(self) -> tuple[str, ...]:
        """The centre and, if there is one, its standby."""
        return (self.centre, self.standby) if self.standby else (self.centre,)

    def placed(self) -> dict[str, tuple[Namespace, frozenset[str]]]:
        """Every namespace by its full name, with the clusters it lives on; `{region}` is expanded."""
        placed: dict[str, tuple[Namespace, frozenset[str]]] = {}
        for name, spec in self.namespaces.items():
            if _REGION in name:
                for region, where in self.regions.items():
                    placed[name.replace(_REGION, region)] = spec, frozenset({where.cluster, *self.centres})
            elif isinstance(spec.clusters, tuple):
                placed[name] = spec, frozenset(spec.clusters)
            elif spec.clusters == "centre":
                placed[name] = spec, frozenset(self.centres)
            else:
                placed[name] = spec, frozenset(self.clusters)
        return placed

    def links(self) -> list[tuple[str, str, str]]:
        """Every (namespace, from cluster, to cluster) that replication must keep alive, sorted."""
        return sorted(
            (name, source, target)
            for name, (_, clusters) in self.placed().items()
            for source in clusters
            for target in clusters
            if source != target
        )
