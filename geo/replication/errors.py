"""What can go wrong between a topology and its clusters.

ReplicationError
├── NoAddress            the topology does not say where a cluster is
├── ClusterUnreachable   a cluster's admin interface did not answer
├── AdminRefused         a cluster answered a request with an error
├── PlanImpossible       no change leads from what is there to what is wanted
└── NotConverged         what was applied is not what is there afterwards
"""

from collections.abc import Sequence

__all__ = ["AdminRefused", "ClusterUnreachable", "NoAddress", "NotConverged", "PlanImpossible", "ReplicationError"]


class ReplicationError(Exception):
    """A topology cannot be planned, applied or verified."""


class NoAddress(ReplicationError):
    """The topology names a cluster and does not say where it is."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        super().__init__(f"cluster {cluster} has no address; add [clusters.{cluster}.address] to the topology")


class ClusterUnreachable(ReplicationError):
    """A cluster's admin interface did not answer in time."""

    def __init__(self, cluster: str, url: str, reason: str) -> None:
        self.cluster, self.url, self.reason = cluster, url, reason
        super().__init__(f"cluster {cluster} did not answer at {url}: {reason}")


class AdminRefused(ReplicationError):
    """A cluster's admin interface answered with an error."""

    def __init__(self, cluster: str, request: str, status: int, reason: str) -> None:
        self.cluster, self.request, self.status, self.reason = cluster, request, status, reason
        super().__init__(f"cluster {cluster} refused {request} with status {status}: {reason}")


class PlanImpossible(ReplicationError):
    """What is there cannot become what is wanted without making it anew."""

    def __init__(self, cluster: str, name: str, reason: str) -> None:
        self.cluster, self.name, self.reason = cluster, name, reason
        super().__init__(f"cluster {cluster}, {name}: {reason}")


class NotConverged(ReplicationError):
    """Changes were applied, and the clusters still differ from the topology."""

    def __init__(self, remaining: Sequence[str]) -> None:
        self.remaining = list(remaining)
        super().__init__("the clusters still differ after the changes: " + "; ".join(self.remaining))
