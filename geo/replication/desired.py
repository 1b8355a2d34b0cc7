"""From a topology to the state that each cluster should be in. Pure."""

from geo.replication.cluster_state import ClusterState, NamespaceState, Registration, TenantState, TopicState
from geo.replication.errors import NoAddress
from geo.replication.model import PROBE_TOPIC, ClusterAddress, Namespace, Topic, Topology

__all__ = ["address", "desired"]


def address(topology: Topology, cluster: str) -> ClusterAddress:
    """Where a cluster is; raises NoAddress when the topology does not say."""
    known = topology.clusters[cluster].address
    if known is None:
        raise NoAddress(cluster)
    return known


def desired(topology: Topology) -> dict[str, ClusterState]:
    """The desired state of each cluster, by its name.

    Every policy but the quotas (backlog and publish rate) is said, so that no broker's own default decides.
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
