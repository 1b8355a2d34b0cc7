"""What can go wrong between a topology and its clusters.

ReplicationError
├── NoAddress            the topology does not say where a cluster is
├── ClusterUnreachable   a cluster's admin interface did not answer
│   └── NoConnection     nobody listens at its address
├── AdminRefused         a cluster answered a request with an error
├── WrongCluster         an address belongs to another cluster than the topology says
├── UnusableAccess       the token, or a certificate's file, cannot be used
├── NothingToDelete      what may be deleted was named, and no change deletes it
├── ApplyStopped         a change could not be made; says what was made before
└── NotConverged         what was applied is not what is there afterwards
"""

from collections.abc import Sequence

__all__ = [
    "AdminRefused",
    "ApplyStopped",
    "ClusterUnreachable",
    "NoAddress",
    "NoConnection",
    "NotConverged",
    "NothingToDelete",
    "ReplicationError",
    "UnusableAccess",
    "WrongCluster",
]


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


class NoConnection(ClusterUnreachable):
    """Nothing takes a connection at a cluster's address: known at once, and of all its answers."""


class AdminRefused(ReplicationError):
    """A cluster's admin interface answered with an error."""

    def __init__(self, cluster: str, request: str, status: int, reason: str) -> None:
        self.cluster, self.request, self.status, self.reason = cluster, request, status, reason
        super().__init__(f"cluster {cluster} refused {request} with status {status}: {reason}")


class WrongCluster(ReplicationError):
    """An address of a cluster leads to another one: nothing was changed there."""

    def __init__(self, cluster: str, url: str, found: str) -> None:
        self.cluster, self.url, self.found = cluster, url, found
        super().__init__(
            f"{url} is an address of cluster {cluster} in the topology, but belongs to {found}: "
            f"nothing was changed; correct [clusters.{cluster}.address]"
        )


class UnusableAccess(ReplicationError):
    """The token, or the file of a certificate or key, cannot be used."""


class NothingToDelete(ReplicationError):
    """Deletion was allowed for names that no change would delete."""

    def __init__(self, names: Sequence[str], known: Sequence[str]) -> None:
        self.names, self.known = list(names), list(known)
        there = f"what would: {', '.join(self.known)}" if known else "no change does"
        super().__init__(f"no change would delete data of {', '.join(self.names)}; {there}; nothing was changed")


class ApplyStopped(ReplicationError):
    """A change could not be made; `done` were made before it, and the next apply makes the rest."""

    def __init__(self, action: str, done: Sequence[str], cause: ReplicationError) -> None:
        self.doing, self.done, self.cause = action, list(done), cause
        before = "\n  ".join([f"{len(done)} made before:", *done]) if done else "nothing was changed before"
        super().__init__(f"{cause}\nstopped at, and perhaps made in part: {action}\n{before}\napply again to finish it")


class NotConverged(ReplicationError):
    """Changes were applied, and the clusters still differ from the topology."""

    def __init__(self, remaining: Sequence[str]) -> None:
        self.remaining = list(remaining)
        super().__init__("the clusters still differ after the changes: " + "; ".join(self.remaining))
