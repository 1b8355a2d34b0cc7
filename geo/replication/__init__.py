"""Geo-replication as code: a topology file, the plan that leads to it, and the state of every link."""

from geo.replication.admin import AdminClient
from geo.replication.apply import Applied, admins, apply, read_plan
from geo.replication.desired import address, desired
from geo.replication.errors import (
    AdminRefused,
    ClusterUnreachable,
    NoAddress,
    NotConverged,
    NothingToDelete,
    ReplicationError,
    WrongCluster,
)
from geo.replication.model import Address, Cluster, Namespace, Region, Subscription, Topic, Topology
from geo.replication.plan import Change, plan
from geo.replication.state import ClusterState, NamespaceState, Registration, TenantState, TopicState

__all__ = [
    "Address",
    "AdminClient",
    "AdminRefused",
    "Applied",
    "Change",
    "Cluster",
    "ClusterState",
    "ClusterUnreachable",
    "Namespace",
    "NamespaceState",
    "NoAddress",
    "NotConverged",
    "NothingToDelete",
    "Region",
    "Registration",
    "ReplicationError",
    "Subscription",
    "TenantState",
    "Topic",
    "TopicState",
    "Topology",
    "WrongCluster",
    "address",
    "admins",
    "apply",
    "desired",
    "plan",
    "read_plan",
]
