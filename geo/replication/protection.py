"""Whether brokers ask anybody for the rights that a topology names."""

from collections.abc import Iterator, Mapping

from geo.replication.actual import read_defaults
from geo.replication.admin import AdminClient
from geo.replication.model import Topology

__all__ = ["unprotected"]


def unprotected(topology: Topology, clients: Mapping[str, AdminClient]) -> Iterator[str]:
    """What brokers' own configuration says of rights, and is not as the topology says; nothing where that has none."""
    if not topology.roles:
        return
    for cluster, admin in clients.items():
        said = read_defaults(admin.configuration())
        meant = {*topology.superusers(), topology.role_of_brokers(cluster)}
        if not said.authorization:
            yield f"{cluster}: its brokers ask nobody for a right (authorizationEnabled): no grant counts there"
            continue
        if more := sorted(said.superusers - meant):
            yield f"{cluster}: {', '.join(more)} may do everything (superUserRoles), and the topology does not say so"
        if said.topic_policies:
            yield (
                f"{cluster}: its brokers apply topic policies (topicLevelPoliciesEnabled): a message in "
                "__change_events deletes topics, and no plan sees it"
            )
        if said.auto_topic_creation:
            yield f"{cluster}: its brokers create topics that a client asks for (allowAutoTopicCreation)"
        if said.open_metrics:
            yield f"{cluster}: its brokers give their metrics to anybody (authenticateMetricsEndpoint is not true)"
