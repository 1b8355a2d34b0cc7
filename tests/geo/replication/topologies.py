"""Strategies: topologies as a person may write them, and clusters in any state."""

from hypothesis import strategies as st

from geo.replication import (
    Cluster,
    ClusterAddress,
    ClusterState,
    Namespace,
    NamespaceState,
    Region,
    Registration,
    Subscription,
    TenantState,
    Topic,
    TopicState,
    Topology,
)
from geo.replication.model import BacklogQuota, PublishRate, Retention, Role, Tenant

CLUSTERS = ("dr", "eu", "hq", "us")
TENANTS = ("fleet", "other")
TOPICS = ("batches", "fences", "refused")


def located(name: str) -> Cluster:
    return Cluster(address=ClusterAddress(service_url=f"pulsar://{name}:6650", admin_url=f"http://{name}:8080"))


def _actions() -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(["produce", "consume"]), min_size=1)


def _grants() -> st.SearchStrategy[dict[str, frozenset[str]]]:
    return st.dictionaries(st.sampled_from(["jobs", "gateway-eu", "stranger"]), _actions())


def _with_grants(name: str, state: NamespaceState) -> NamespaceState:
    """Grants are of the namespace, of a topic, or of the brokers' own topic in it."""
    grants = {resource.replace("*", name): roles for resource, roles in (state.grants or {}).items()}
    return state.model_copy(update={"grants": grants})


def _rates() -> st.SearchStrategy[int]:
    return st.integers(1, 3)


@st.composite
def namespaces(draw: st.DrawFn, *, everywhere: bool) -> Namespace:
    topics = draw(st.lists(st.sampled_from(TOPICS), unique=True))
    retention = draw(
        st.just(Retention(minutes=0, size_mb=0))
        | st.builds(Retention, minutes=st.integers(-1, 50), size_mb=st.integers(-1, 50))
    )
    quota_above = retention.size_mb <= 0
    quotas = st.builds(BacklogQuota, size_mb=st.integers(1, 50))
    return Namespace(
        clusters="all" if everywhere else None,
        retention=retention,
        backlog_quota=draw(st.none() | quotas) if quota_above else None,
        publish_rate=draw(st.none() | st.builds(PublishRate, messages_per_s=_rates(), kb_per_s=_rates())),
        message_ttl_s=draw(st.integers(0, 3)),
        deduplication=draw(st.booleans()),
        compaction_threshold_bytes=draw(st.integers(0, 3)),
        auto_topic_creation=draw(st.booleans()),
        topics={
            name: Topic(
                partitions=draw(st.integers(0, 3)),
                subscriptions=draw(
                    st.dictionaries(
                        st.sampled_from(["ingest", "audit"]),
                        st.builds(
                            Subscription,
                            replicated=st.booleans(),
                            on=st.sampled_from(["centre", "everywhere"]),
                            create=st.booleans(),
                        ),
                    )
                ),
            )
            for name in topics
        },
    )


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    made: dict[str, Namespace] = {}
    for tenant in TENANTS:
        if draw(st.booleans()):
            made[f"{tenant}/telemetry-{{region}}"] = draw(namespaces(everywhere=False))
        if draw(st.booleans()):
            made[f"{tenant}/reference"] = draw(namespaces(everywhere=True))
    operators = draw(st.frozensets(st.sampled_from(TENANTS)))
    if draw(st.booleans()) and operators:
        made["{tenant}/trips-{region}"] = draw(namespaces(everywhere=False))
    standby = draw(st.sampled_from([None, "dr"]))
    resources = st.sampled_from([*made, *(f"{name}/{topic}" for name, spec in made.items() for topic in spec.topics)])
    roles = st.dictionaries(
        st.sampled_from(["jobs", "gateway-{region}"]),
        st.builds(
            Role,
            on=st.sampled_from(["everywhere", "centre"]),
            grants=st.dictionaries(resources, _actions().map(lambda actions: tuple(sorted(actions)))),
        ),
    )
    return Topology(
        roles=draw(roles) if made else {},
        replication_role=draw(st.sampled_from([None, "replication-{cluster}"])),
        centre="hq",
        standby=standby,
        clusters={name: located(name) for name in CLUSTERS},
        regions={"eu": Region(cluster="eu"), "us": Region(cluster="us")},
        tenants={name: Tenant(operator=(name in operators)) for name in TENANTS},
        namespaces=made,
    )


def _states() -> st.SearchStrategy[ClusterState]:
    some = st.frozensets(st.sampled_from(CLUSTERS), min_size=1)
    names = st.sampled_from([f"{tenant}/{name}" for tenant in TENANTS for name in ("telemetry-eu", "reference", "old")])
    policies = st.builds(
        NamespaceState,
        clusters=some,
        retention=st.none() | st.tuples(st.integers(-1, 50), st.integers(-1, 50)),
        publish_rate=st.none() | st.tuples(_rates(), _rates()),
        message_ttl_s=st.none() | st.integers(0, 3),
        deduplication=st.none() | st.booleans(),
        auto_topic_creation=st.none() | st.booleans(),
        grants=st.dictionaries(st.sampled_from(["*", "*/batches", "*/__change_events"]), _grants()),
        subscription_roles=st.dictionaries(
            st.sampled_from(["ingest", "pulsar.repl.hq"]), st.frozensets(st.sampled_from(["jobs", "operator"]))
        ),
    )
    subscriptions = st.dictionaries(st.just("ingest"), st.booleans())
    topics = st.integers(0, 3).flatmap(
        lambda partitions: st.builds(
            TopicState,
            partitions=st.just(partitions),
            subscriptions=subscriptions,
            missing=st.sets(st.sampled_from(range(partitions))).map(tuple) if partitions else st.just(()),
        )
    )
    return st.builds(
        _consistent,
        st.dictionaries(
            st.sampled_from(CLUSTERS), st.builds(Registration, service_url=st.just("x"), admin_url=st.just("y"))
        ),
        st.dictionaries(st.sampled_from(TENANTS), st.builds(TenantState, allowed_clusters=some)),
        st.dictionaries(names, policies),
        st.dictionaries(st.tuples(names, st.sampled_from((*TOPICS, "stray"))), topics),
        st.booleans(),
    )


def _consistent(
    registrations: dict[str, Registration],
    tenants: dict[str, TenantState],
    namespaces: dict[str, NamespaceState],
    topics: dict[tuple[str, str], TopicState],
    enforces_rights: bool,
) -> ClusterState:
    kept = {name: _with_grants(name, state) for name, state in namespaces.items() if name.partition("/")[0] in tenants}
    return ClusterState(
        enforces_rights=enforces_rights,
        registrations=registrations,
        tenants=tenants,
        namespaces=kept,
        topics={f"{space}/{name}": topic for (space, name), topic in topics.items() if space in kept},
    )


def cluster_states() -> st.SearchStrategy[dict[str, ClusterState]]:
    return st.dictionaries(st.sampled_from(CLUSTERS), _states())
