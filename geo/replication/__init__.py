"""Geo-replication as code: a topology file, the plan to apply it, and the state of every link."""

from geo.replication.admin import AdminClient
from geo.replication.apply import Applied, admins, apply, inspect_clusters
from geo.replication.cluster_state import (
    ClusterState,
    NamespaceState,
    Registration,
    TenantState,
    TopicState,
    desired,
)
from geo.replication.errors import (
    AdminRefused,
    ApplyStopped,
    ClusterUnreachable,
    ReplicationError,
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
    "Namespace",
    "NamespaceState",
    "Region",
    "Registration",
    "ReplicationError",
    "Subscription",
    "TenantState",
    "Topic",
    "TopicState",
    "Topology",
    "WrongCluster",
    "admins",
    "apply",
    "desired",
    "inspect_clusters",
    "plan",
]
