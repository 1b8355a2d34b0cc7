"""What can go wrong in the Pulsar source.

PulsarSourceError
├── OptionError          an option is unknown, missing or does not fit another
├── SourceClusterUnreachable   a cluster did not answer within its time, or what answered is no cluster
│   ├── SourceConnectionRefused    nothing takes a connection there any more: no answer is worth waiting for
│   └── NoClusterAnswers none of the clusters did, for as long as is waited at most
├── AccessRefused        a cluster answered, and said no
├── TopicMissing         a topic does not exist (or does not any more)
├── NamespaceMissing     the namespace of a pattern does not exist
├── SubscriptionBusy     somebody else holds the durable subscription
├── FailoverFileError    the failover file is damaged, another query's, or cannot be written
├── ReadStalled          a range that was planned did not arrive in time
├── ReadIncomplete       a range that was planned did not arrive whole
├── EntriesUnknown       of some entries of a range nobody says whether they had to arrive
└── DataLoss             records between the checkpoint and the topic are gone
"""

from pathlib import Path


class PulsarSourceError(Exception):
    """Base of everything that this package raises on purpose."""


class OptionError(PulsarSourceError):
    """An option is unknown, missing or does not fit another."""


class SourceClusterUnreachable(PulsarSourceError):
    """A cluster did not answer within its time, or what answered in its place is no cluster."""

    def __init__(self, cluster: str, action: str, detail: str) -> None:
        self.cluster = cluster
        super().__init__(f"cluster {cluster!r} did not answer while {action}: {detail}")


class SourceConnectionRefused(SourceClusterUnreachable):
    """Nothing takes a connection at a cluster's address: known at once, and of all its answers."""


class NoClusterAnswers(SourceClusterUnreachable):
    """None of the clusters answered for `readTimeoutSeconds`: nobody need wait once more."""


class AccessRefused(PulsarSourceError):
    """A cluster answered, and said no: look at the token, the certificate and the role's permissions."""

    def __init__(self, cluster: str, action: str, detail: str) -> None:
        self.cluster = cluster
        super().__init__(f"cluster {cluster!r} refused {action}: {detail}")


class TopicMissing(PulsarSourceError):
    """A topic does not exist (or does not any more)."""

    def __init__(self, cluster: str, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        super().__init__(f"topic {topic} does not exist on cluster {cluster!r}; create it, or name another")


class NamespaceMissing(PulsarSourceError):
    """The namespace of a pattern does not exist."""

    def __init__(self, cluster: str, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        super().__init__(f"namespace {namespace} does not exist on cluster {cluster!r}; create it, or name another")


class SubscriptionBusy(PulsarSourceError):
    """Somebody else holds the durable subscription: one streaming query owns it at a time."""

    def __init__(self, cluster: str, topic: str, subscription: str, waited_s: float) -> None:
        super().__init__(
            f"subscription {subscription!r} of {topic} on cluster {cluster!r} is held by another consumer "
            f"(waited {waited_s:.0f} s); stop the other query, or give this one its own subscription"
        )


class FailoverFileError(PulsarSourceError):
    """The failover file is damaged, another query's, or cannot be written."""

    def __init__(self, path: Path, detail: str) -> None:
        self.path = path
        super().__init__(
            f"failover file {path}: {detail}. Give the query the file that it had; or, when that is lost, remove this "
            "one (another query's: name another path): the query then begins at the subscription's cursor of the first "
            "cluster that answers, so records come again and none is lost"
        )


class ReadStalled(PulsarSourceError):
    """A range that was planned did not arrive in time."""

    def __init__(self, cluster: str, topic: str, reached: str, end: str, waited_s: float) -> None:
        self.cluster = cluster
        super().__init__(
            f"{topic} on cluster {cluster!r}: nothing arrived for {waited_s:.1f} s, at {reached}, planned up to {end}"
        )


class ReadIncomplete(PulsarSourceError):
    """A range that was planned did not arrive whole; the batch must not be written."""

    def __init__(self, cluster: str, topic: str, missing: str, detail: str) -> None:
        self.cluster = cluster
        self.topic = topic
        super().__init__(
            f"{topic} on cluster {cluster!r}: {missing} was planned and not delivered: {detail}. Nothing of this batch "
            "is acknowledged; start the query again, it reads what is still stored without the cursor"
        )


class EntriesUnknown(PulsarSourceError):
    """Entries that were planned did not arrive, and nobody says whether they had to; the batch must not be written."""

    def __init__(self, cluster: str, topic: str, first: tuple[int, ...], count: int, detail: str) -> None:
        self.cluster = cluster
        self.topic = topic
        super().__init__(
            f"{topic} on cluster {cluster!r}: entry {first[0]}:{first[1]} and {count - 1} more were planned and not "
            f"delivered, and it is not known whether they hold messages: {detail}. Nothing of this batch is "
            "acknowledged; start the query again, or once with failOnDataLoss=false to go on without them"
        )


class DataLoss(PulsarSourceError):
    """Records between the checkpoint and what the topic still holds are gone."""

    def __init__(self, cluster: str, topic: str, detail: str) -> None:
        self.topic = topic
        super().__init__(
            f"records of {topic} on cluster {cluster!r} are gone before they were read: {detail}. "
            "Look at retention, TTL and backlog quota; start once with failOnDataLoss=false to continue after the gap"
        )
