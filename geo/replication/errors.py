"""Errors between a topology and its clusters."""

from collections.abc import Sequence


class ReplicationError(Exception):
    """A topology cannot be planned, applied or verified."""


class NoAddress(ReplicationError):
    """The topology names a cluster and does not say where it is."""

    def __init__(self, cluster: str) -> None:
        super().__init__(f"cluster {cluster} has no address; add [clusters.{cluster}.address] to the topology")


class ClusterUnreachable(ReplicationError):
    """A cluster's admin interface did not answer in time."""

    def __init__(self, cluster: str, url: str, reason: str) -> None:
        self.cluster, self.url, self.reason = cluster, url, reason
        super().__init__(f"cluster {cluster} did not answer at {url}: {reason}")


class NoConnection(ClusterUnreachable):
    """No host of a cluster's address takes a connection."""


class AdminRefused(ReplicationError):
    """A cluster's admin interface answered with an error."""

    def __init__(self, cluster: str, request: str, status: int, reason: str) -> None:
        self.cluster, self.request, self.status, self.reason = cluster, request, status, reason
        super().__init__(f"cluster {cluster} refused {request} with status {status}: {reason}")


class WrongCluster(ReplicationError):
    """The admin address of a cluster leads to another one: nothing was changed there."""

    def __init__(self, cluster: str, url: str, found: str) -> None:
        super().__init__(
            f"{url} is the address of cluster {cluster} in the topology, but belongs to {found}: "
            f"nothing was changed; correct [clusters.{cluster}.address]"
        )


class UnusableAccess(ReplicationError):
    """The token, or the file of a certificate or key, cannot be used."""


class ApplyStopped(ReplicationError):
    """A change could not be made; the next apply makes the rest."""

    def __init__(self, action: str, done: Sequence[str], cause: ReplicationError) -> None:
        before = "\n  ".join([f"{len(done)} made before:", *done]) if done else "nothing was changed before"
        stopped = f"stopped at, and perhaps applied in part: {action}"
        super().__init__(f"{cause}\n{stopped}\n{before}\napply again to finish it")


class NotConverged(ReplicationError):
    """Changes were applied, and the clusters still differ from the topology."""

    def __init__(self, remaining: Sequence[str]) -> None:
        super().__init__("the clusters still differ after the changes: " + "; ".join(remaining))
