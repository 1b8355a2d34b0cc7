"""Rights that roles of the topology hold in namespaces of tenants that it does not name.

`plan` and `apply` never touch another tenant. So a tenant that was taken out of the file keeps its namespaces, and its
region's gateways and the centre's jobs their rights there: that is named, and removed by an explicit word alone.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from geo.replication.actual import for_each_cluster, rights
from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from geo.replication.model import Topology
from geo.replication.rest_types import NAMESPACE, NAMESPACES, TENANTS

__all__ = ["left_over"]

MAX_NAMED: Final = 20
"""So many namespaces of a cluster are named."""
_WAY_OUT: Final = (
    "[tenants.{tenant}] without `operator` in the file lets `plan` show that namespace, and `apply --allow-delete "
    "NAMESPACE` take it away; for a tenant that stays, name it in the file as it was"
)


def left_over(topology: Topology, clients: Mapping[str, AdminClient]) -> tuple[str, ...]:
    """A line for each namespace of another tenant in which a role of the topology has a right, by cluster.

    What a cluster does not say is a line, too: nobody knows then.
    """
    if not topology.roles:
        return ()
    found = for_each_cluster(clients, lambda admin: _of_cluster(topology, admin))
    return tuple(line for lines in found.values() for line in lines)


def _of_cluster(topology: Topology, admin: AdminClient) -> list[str]:
    roles = {*topology.roles_by_name(), *filter(None, map(topology.role_of_brokers, topology.clusters))}
    try:
        lines = [*_lines(topology, admin, roles)]
    except ReplicationError as error:
        return [f"{admin.cluster}: unknown, what roles may do in namespaces of other tenants: {error}"]
    rest = [f"{admin.cluster}: and {len(lines) - MAX_NAMED} more such namespaces"] if len(lines) > MAX_NAMED else []
    return [*lines[:MAX_NAMED], *rest]


def _lines(topology: Topology, admin: AdminClient, roles: set[str]) -> Iterator[str]:
    for tenant in sorted({*(admin.get("tenants", TENANTS) or ())} - topology.tenants.keys()):
        for name in admin.get(f"namespaces/{tenant}", NAMESPACES) or []:
            if given := _rights(admin, name, roles):
                may = "; ".join(f"{role} {', '.join(sorted(actions))}" for role, actions in sorted(given.items()))
                yield (
                    f"{admin.cluster}: {name} is of a tenant that the topology does not name, and gives its roles "
                    f"rights: {may}; {_WAY_OUT.format(tenant=tenant)}"
                )


def _rights(admin: AdminClient, namespace: str, roles: set[str]) -> dict[str, frozenset[str]]:
    """What roles may do with a namespace, or with a topic in it."""
    data = admin.get(f"namespaces/{namespace}", NAMESPACE)
    if data is None:
        return {}
    given: dict[str, frozenset[str]] = {}
    for may in rights(namespace, data).values():
        for role, actions in may.items():
            given[role] = given.get(role, frozenset()) | actions
    return {role: actions for role, actions in given.items() if role in roles}
