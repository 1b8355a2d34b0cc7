"""The topology: clusters, regions, the centre, what replicates where, and the rights of roles."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.settings import PathElsewhere, Settings

# Roles and their least rights. Pure.

Action = Literal["produce", "consume"]
TENANT, REGION, CLUSTER = "{tenant}", "{region}", "{cluster}"


class Role(Settings):
    """The rights of a token's holder. `{region}` and `{tenant}` in its name create one role for each."""

    superuser: bool = Field(
        False, description="may do everything; the brokers' own configuration names it, and plan compares"
    )
    on: Literal["everywhere", "region", "centre"] = Field(
        "everywhere",
        description="where its grants hold: on each cluster of the namespace, on the cluster of the role's region, or "
        "on the centre and its standby",
    )
    grants: Mapping[str, tuple[Action, ...]] = Field(
        {},
        description="actions by topic (tenant/namespace/topic), or by namespace for each topic that the topology names "
        "there; {tenant} is the role's operator, or each one, {region} the role's region, or each one",
    )

    @model_validator(mode="after")
    def _means_something(self) -> "Role":
        if self.superuser and self.grants:
            raise ValueError("superuser: has all rights already; set either superuser or grants")
        if empty := sorted(name for name, actions in self.grants.items() if not actions):
            raise ValueError(f"grants.{empty[0]}: names no action; leave it out, and nothing is allowed")
        return self


def expanded_roles(
    roles: Mapping[str, Role], tenants: Iterable[str], regions: Iterable[str]
) -> dict[str, tuple[Role, str | None]]:
    """Every role by its own name, with its region; `{tenant}` and `{region}` in grants are replaced.

    Raises ValueError when two entries create one role, or two grants of a role name one resource.
    """
    found: dict[str, tuple[Role, str | None]] = {}
    operators, known = list(tenants), list(regions)
    for pattern, role in roles.items():
        for own, region in product(operators if TENANT in pattern else [""], known if REGION in pattern else [None]):
            name = pattern.replace(REGION, region or "").replace(TENANT, own)
            if name in found:
                raise ValueError(f"roles: {name} is defined by more than one entry")
            filled = [
                (resource.replace(TENANT, tenant).replace(REGION, one), actions)
                for resource, actions in role.grants.items()
                for tenant in ([own] if own else operators if TENANT in resource else [""])
                for one in ([region] if region else known if REGION in resource else [""])
            ]
            names = [resource for resource, _ in filled]
            if twice := sorted({resource for resource in names if names.count(resource) > 1}):
                raise ValueError(f"roles.{name}.grants: {', '.join(twice)} is named by more than one entry")
            found[name] = role.model_copy(update={"grants": dict(filled)}), region
    return found


def namespace_of(resource: str) -> str:
    """The namespace of a grant's resource: itself, or that of a topic."""
    return "/".join(resource.split("/")[:2])


PROBE_TOPIC = "probe"
"""Every replicated namespace has one, for `verify`: a probe among batches would reach the consumers of batches."""
BROKERS = "brokers"
"""The role of all brokers where a topology has no `replication_role`."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
_ROLE = r"^([A-Za-z0-9]|\{(region|tenant)\})([A-Za-z0-9._-]|\{(region|tenant)\})*$"
_REPLICATION_ROLE = r"^[A-Za-z0-9._-]*\{cluster\}[A-Za-z0-9._-]*$"


class SeenFrom(Settings):
    """The address that one other cluster uses, when it differs from the common one."""

    service_url: ServiceUrl = Field(description="pulsar:// or pulsar+ssl://, dialled by the other cluster")
    listener: str = Field("", description="advertised listener that the broker answers look-ups with")


class ClusterAddress(Settings):
    service_url: ServiceUrl = Field(
        description="for clients and replicators: pulsar://host:port or pulsar+ssl://host:port"
    )
    admin_url: AdminUrl = Field(description="for the admin REST interface: http://host:port or https://host:port")
    trust_certs_file: PathElsewhere = Field(
        "",
        description="PEM of the authorities that signed its certificates, a path on the brokers of the other clusters; "
        "not given: left as it is",
    )
    seen_from: Mapping[str, SeenFrom] = Field(
        {}, description="other ways in, by the name of the cluster that uses them"
    )


class Cluster(Settings):
    address: ClusterAddress | None = Field(None, description="where it is; a local stack fills this in")


class Region(Settings):
    """A region of vehicles, and the cluster that receives their batches."""

    cluster: str = Field(pattern=_NAME)


class Retention(Settings):
    """How long acknowledged messages stay; -1 is without limit."""

    minutes: int = Field(ge=-1)
    size_mb: int = Field(ge=-1)


class BacklogQuota(Settings):
    """The limit of a subscription's backlog, and the policy beyond it."""

    size_mb: int = Field(ge=1)
    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"] = (
        "producer_request_hold"
    )


class PublishRate(Settings):
    """The limit of producers on one topic partition of a namespace; beyond it the broker delays them.

    The broker measures ten times a second and keeps the average: a burst is delayed afterwards.
    """

    messages_per_s: int = Field(ge=1)
    kb_per_s: int = Field(ge=1)


class Quotas(Settings):
    """The limits of one tenant in a namespace that each operator has; none: those of the namespace."""

    backlog_quota: BacklogQuota | None = None
    publish_rate: PublishRate | None = None


class Tenant(Settings):
    """A Pulsar tenant, allowed on every cluster of the topology. `{tenant}` in a namespace stands for each operator."""

    admin_roles: tuple[str, ...] = ()
    operator: bool = Field(
        False, description="a fleet operator, whose devices send: it has each namespace {tenant}/..."
    )
    quotas: Mapping[str, Quotas] = Field(
        {}, description="for an operator's own namespaces, by their name after {tenant}/"
    )


class Subscription(Settings):
    """A durable subscription and the roles that may consume, seek, skip or delete it.

    It is created before its first consumer, so that nothing is missed; with `create = false` the consumer creates it.
    """

    replicated: bool = Field(True, description="its position travels to the other clusters")
    on: Literal["centre", "everywhere"] = Field(
        "centre", description="centre: on the centre and its standby; everywhere: on each cluster of the namespace"
    )
    create: bool = Field(True, description="false: its first consumer creates it, and apply does not")
    roles: tuple[str, ...] = Field(
        (), description="who may use it, with {tenant} and {region} as in names of roles; none: superusers only"
    )


class Topic(Settings):
    """A topic that exists in every cluster of its namespace."""

    partitions: int = Field(0, ge=0, le=1024, description="0: not partitioned")
    subscriptions: Mapping[str, Subscription] = {}


class Namespace(Settings):
    """A namespace and its policies. `{region}` in its name creates one namespace for each region.

    `{tenant}` as its tenant creates one for each operator.
    """

    clusters: tuple[str, ...] | Literal["all", "centre"] | None = Field(
        None,
        description="where it lives; centre: there and on its standby; not needed with {region}: the region's "
        "cluster, the centre and the standby",
    )
    retention: Retention = Field(
        Retention(minutes=0, size_mb=0), description="not given: acknowledged messages go at once"
    )
    backlog_quota: BacklogQuota | None = Field(None, description="none: the broker's own")
    publish_rate: PublishRate | None = Field(None, description="on each topic partition; none: no limit")
    message_ttl_s: int = Field(0, ge=0, description="0: messages wait for ever")
    deduplication: bool = Field(False, description="the broker's; correctness never rests on it")
    compaction_threshold_bytes: int = Field(0, ge=0, description="compact when this much is new; 0: never by itself")
    auto_topic_creation: bool = Field(False, description="whether a client may create a topic by using it")
    topics: Mapping[str, Topic] = {}

    @model_validator(mode="after")
    def _quota_below_retention(self) -> Self:
        # Pulsar refuses the other order: what may still be read would exceed what may be kept.
        if self.backlog_quota and 0 < self.retention.size_mb <= self.backlog_quota.size_mb:
            raise ValueError("backlog_quota.size_mb must be smaller than retention.size_mb")
        return self


class Topology(Settings):
    """Clusters, regions, the centre and its standby, what replicates between them, and who may do what."""

    centre: str = Field(pattern=_NAME, description="the cluster where all regions meet")
    standby: str | None = Field(None, description="the cluster that takes over when the centre is lost")
    clusters: Mapping[Name, Cluster] = Field(min_length=1)
    other_clusters: tuple[Name, ...] = Field((), description="registered for other purposes: left as they are")
    regions: Mapping[Name, Region] = Field(min_length=1)
    tenants: Mapping[Name, Tenant] = Field(min_length=1)
    namespaces: Mapping[str, Namespace] = {}
    roles: Mapping[Annotated[str, Field(pattern=_ROLE)], Role] = Field(
        {}, description="who may do what; none: rights are left as they are"
    )
    replication_role: str | None = Field(
        None,
        pattern=_REPLICATION_ROLE,
        description="role of a cluster's brokers, with {cluster}: may produce where that cluster replicates to",
    )

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
            if not slash or not short or not (tenant in self.tenants or tenant == TENANT) or TENANT in short:
                raise ValueError(
                    f"namespaces.{name}: must be tenant/namespace with a tenant of this topology, or {{tenant}} for "
                    "each that is an operator"
                )
            if (REGION in name) == (spec.clusters is not None):
                raise ValueError(
                    f"namespaces.{name}: set either {{region}} in the name or clusters, not both or neither"
                )
        return self

    @model_validator(mode="after")
    def _operators_are_served(self) -> Self:
        own = {name.partition("/")[2]: spec for name, spec in self.namespaces.items() if name.startswith(f"{TENANT}/")}
        if own and not self.operators:
            raise ValueError("tenants: namespaces with {tenant} need a tenant with operator = true")
        for name, tenant in self.tenants.items():
            for short, quotas in tenant.quotas.items():
                where = f"tenants.{name}.quotas.{short}"
                if not tenant.operator or short not in own:
                    known = ", ".join(sorted(own)) or "none"
                    raise ValueError(f"{where}: for namespaces {{tenant}}/... of an operator only; known are {known}")
                try:
                    _with_quotas(own[short], quotas)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from error
        names = [name for spec in self.namespaces for name in self._names(spec)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"namespaces: {', '.join(twice)} is defined by more than one entry")
        return self

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        placed = self.placed()
        for name, (role, region) in expanded_roles(self.roles, self.operators, self.regions).items():
            if role.on == "region" and region is None:
                raise ValueError(f"roles.{name}.on: only a role with {{region}} in its name has a region")
            for resource in role.grants:
                known = placed.get(namespace_of(resource))
                topic = resource.removeprefix(namespace_of(resource)).removeprefix("/")
                if known is None or (topic and topic not in known[0].topics):
                    raise ValueError(f"roles.{name}.grants.{resource}: no such namespace or topic in this topology")
        roles = self.roles_by_name()
        for namespace, (spec, _) in placed.items():
            for topic, made in spec.topics.items():
                for name, subscription in made.subscriptions.items():
                    if unknown := [role for role in subscription.roles if role not in roles]:
                        where = f"namespaces.{namespace}.topics.{topic}.subscriptions.{name}.roles"
                        raise ValueError(f"{where}: no role {unknown[0]!r} in this topology")
        return self

    def roles_by_name(self) -> dict[str, Role]:
        """Every role by its own name; `{region}` and `{tenant}` are expanded."""
        return {name: role for name, (role, _) in expanded_roles(self.roles, self.operators, self.regions).items()}

    def superusers(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, role in self.roles_by_name().items() if role.superuser))

    def role_of_brokers(self, cluster: str) -> str | None:
        """The role of a cluster's brokers in other clusters; None: the topology does not say."""
        return self.replication_role.replace(CLUSTER, cluster) if self.replication_role else None

    def superusers_of(self, cluster: str) -> tuple[str, ...]:
        """The roles that may do everything in a cluster: superusers, and the cluster's own brokers.

        Where the topology gives brokers no rights in other clusters, they may do everything there.
        """
        return tuple(sorted({*self.superusers(), self.role_of_brokers(cluster) or BROKERS}))

    def grants(self, cluster: str, namespace: str) -> dict[str, dict[str, frozenset[str]]]:
        """The actions of each role in a cluster, by topic of the namespace, `probe` included.

        A grant of a namespace becomes one of each topic that the topology names. Pulsar would apply it to its own
        topics, too: a writer of `__change_events` controls all others.
        """
        spec, clusters = self.placed()[namespace]
        topics = [f"{namespace}/{topic}" for topic in spec.topics]
        given: dict[str, dict[str, frozenset[str]]] = {topic: {} for topic in topics}
        for name, (role, region) in expanded_roles(self.roles, self.operators, self.regions).items():
            here = {"region": () if region is None else (self.regions[region].cluster,), "centre": self.centres}
            if role.on == "everywhere" or cluster in here[role.on]:
                for topic in topics:
                    if actions := {*role.grants.get(topic, ()), *role.grants.get(namespace, ())}:
                        given[topic][name] = frozenset(actions)
        if len(clusters) > 1:
            given.setdefault(f"{namespace}/{PROBE_TOPIC}", {})
        for brokers in filter(None, map(self.role_of_brokers, clusters - {cluster})):
            for roles in given.values():
                roles[brokers] = roles.get(brokers, frozenset()) | {"produce"}
        return given

    def subscription_roles(self, cluster: str, namespace: str) -> dict[str, frozenset[str]]:
        """The roles that may use each subscription of a namespace in a cluster; the brokers' own are for superusers
        only.

        Pulsar keeps these by namespace: subscriptions with one name share their roles.
        """
        spec, clusters = self.placed()[namespace]
        superusers = frozenset(self.superusers_of(cluster))
        own = ["__compaction", "pulsar.dedup", *(f"pulsar.repl.{other}" for other in sorted(clusters - {cluster}))]
        found: dict[str, frozenset[str]] = {}
        for topic in spec.topics.values():
            for name, subscription in topic.subscriptions.items():
                found[name] = found.get(name, frozenset()) | frozenset(subscription.roles)
        return {name: roles or superusers for name, roles in found.items()} | dict.fromkeys(own, superusers)

    @property
    def operators(self) -> tuple[str, ...]:
        """The tenants with devices, sorted."""
        return tuple(sorted(name for name, tenant in self.tenants.items() if tenant.operator))

    @property
    def centres(self) -> tuple[str, ...]:
        """The centre and, if there is one, its standby."""
        return (self.centre, self.standby) if self.standby else (self.centre,)

    def placed(self) -> dict[str, tuple[Namespace, frozenset[str]]]:
        """Every namespace by its full name, with its clusters; `{tenant}` and `{region}` are expanded."""
        placed: dict[str, tuple[Namespace, frozenset[str]]] = {}
        for template, spec in self.namespaces.items():
            for name, (tenant, region) in self._names(template).items():
                quotas = self.tenants[tenant].quotas.get(template.partition("/")[2]) if tenant else None
                filled = _with_roles(spec, tenant, (region,) if region else tuple(self.regions))
                placed[name] = (_with_quotas(filled, quotas) if quotas else filled), self._clusters(spec, region)
        return placed

    def _names(self, template: str) -> dict[str, tuple[str, str]]:
        """The namespaces of a template, each with its tenant and region, if any."""
        tenants = self.operators if template.startswith(f"{TENANT}/") else ("",)
        regions = tuple(self.regions) if REGION in template else ("",)
        return {
            template.replace(TENANT, tenant).replace(REGION, region): (tenant, region)
            for tenant in tenants
            for region in regions
        }

    def _clusters(self, spec: Namespace, region: str) -> frozenset[str]:
        if region:
            return frozenset({self.regions[region].cluster, *self.centres})
        if isinstance(spec.clusters, tuple):
            return frozenset(spec.clusters)
        return frozenset(self.centres if spec.clusters == "centre" else self.clusters)

    def links(self) -> list[tuple[str, str, str]]:
        """Every (namespace, source cluster, target cluster) of replication, sorted."""
        return sorted(
            (name, source, target)
            for name, (_, clusters) in self.placed().items()
            for source in clusters
            for target in clusters
            if source != target
        )


def _with_roles(spec: Namespace, tenant: str, regions: tuple[str, ...]) -> Namespace:

    def filled(topic: Topic) -> Topic:
        subscriptions = {}
        for name, one in topic.subscriptions.items():
            roles = dict.fromkeys(
                role.replace(TENANT, tenant).replace(REGION, at) for role in one.roles for at in regions
            )
            subscriptions[name] = one.model_copy(update={"roles": tuple(roles)})
        return topic.model_copy(update={"subscriptions": subscriptions})

    return spec.model_copy(update={"topics": {name: filled(topic) for name, topic in spec.topics.items()}})


def _with_quotas(spec: Namespace, quotas: Quotas) -> Namespace:
    """The namespace with one tenant's quotas. Raises ValueError for values that do not fit together."""
    given = {name: value for name in Quotas.model_fields if (value := getattr(quotas, name)) is not None}
    return Namespace.model_validate({**dict(spec), **given})
