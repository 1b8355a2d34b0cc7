"""Geo-replication as code: a topology file, the plan to apply it, and the state of every link."""

from geo.replication.admin import AdminClient
from geo.replication.apply import Applied, Inspection, admins, apply, inspect_clusters
from geo.replication.cluster_state import (
    ClusterState,
    NamespaceState,
    Registration,
    TenantState,
    TopicState,
    address,
    desired,
)
from geo.replication.errors import (
    AdminRefused,
    ApplyStopped,
    ClusterUnreachable,
    NoAddress,
    NoConnection,
    NotConverged,
    ReplicationError,
    UnusableAccess,
    WrongCluster,
)
from geo.replication.model import Cluster, ClusterAddress, Namespace, Region, Subscription, Topic, Topology
from geo.replication.plan import Change, plan

__all__ = [
    "AdminClient",
    "AdminRefused",
    "Applied",
    "ApplyStopped",
    "Change",
    "Cluster",
    "ClusterAddress",
    "ClusterState",
    "ClusterUnreachable",
    "Inspection",
    "Namespace",
    "NamespaceState",
    "NoAddress",
    "NoConnection",
    "NotConverged",
    "Region",
    "Registration",
    "ReplicationError",
    "Subscription",
    "TenantState",
    "Topic",
    "TopicState",
    "Topology",
    "UnusableAccess",
    "WrongCluster",
    "address",
    "admins",
    "apply",
    "desired",
    "inspect_clusters",
    "plan",
]
