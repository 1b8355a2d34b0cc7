"""The typed options of the format `pulsar`. An unknown option is an error that names the nearest known one."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from geo.replication.topic_naming import PERSISTENT, is_addressable, split_partition, topic_path
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import nearest

# Errors.


class PulsarSourceError(Exception):
    """Base of this package's own errors."""


class OptionError(PulsarSourceError):
    """An option is unknown, missing or contradicts another."""


class SourceClusterUnreachable(PulsarSourceError):
    """A cluster did not answer in time, or the answer does not come from Pulsar."""

    def __init__(self, cluster: str, action: str, detail: str) -> None:
        super().__init__(f"cluster {cluster!r} did not answer while {action}: {detail}")


class SourceConnectionRefused(SourceClusterUnreachable):
    """Nothing listens at a cluster's address."""


class NoClusterAnswers(SourceClusterUnreachable):
    """No cluster answered for `readTimeoutSeconds`."""


class AccessRefused(PulsarSourceError):
    """A cluster refused a call: check the token, the certificate and the role's permissions."""

    def __init__(self, cluster: str, action: str, detail: str) -> None:
        super().__init__(f"cluster {cluster!r} refused {action}: {detail}")


class TopicMissing(PulsarSourceError):
    """A topic does not exist, or no longer."""

    def __init__(self, cluster: str, topic: str) -> None:
        super().__init__(f"topic {topic} does not exist on cluster {cluster!r}; create it, or name another")


class SubscriptionBusy(PulsarSourceError):
    """Another consumer holds the durable subscription: one streaming query owns it at a time."""

    def __init__(self, cluster: str, topic: str, subscription: str, waited_s: float) -> None:
        super().__init__(
            f"subscription {subscription!r} of {topic} on cluster {cluster!r} is held by another consumer "
            f"(waited {waited_s:.0f} s); stop the other query, or give this one its own subscription"
        )


class FailoverFileError(PulsarSourceError):
    """The failover file is damaged, belongs to another query, or cannot be written."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"failover file {path}: {detail}. Give the query the file that it had; or, when that is lost, remove this "
            "one (another query's: name another path): the query then begins at the subscription's cursor of the first "
            "cluster that answers, so records come again and none is lost"
        )


class ReadStalled(PulsarSourceError):
    """A planned range did not arrive in time."""

    def __init__(self, cluster: str, topic: str, reached: str, end: str, waited_s: float) -> None:
        super().__init__(
            f"{topic} on cluster {cluster!r}: nothing arrived for {waited_s:.1f} s, at {reached}, planned up to {end}"
        )


class ReadIncomplete(PulsarSourceError):
    """A planned range did not arrive complete; the batch must not be written."""

    def __init__(self, cluster: str, topic: str, missing: str, detail: str) -> None:
        super().__init__(
            f"{topic} on cluster {cluster!r}: {missing} was planned and not delivered: {detail}. Nothing of this batch "
            "is acknowledged; start the query again, it reads what is still stored without the cursor"
        )


class EntriesUnknown(PulsarSourceError):
    """Planned entries did not arrive, and it is unknown whether they hold messages; the batch must not be written."""

    def __init__(self, cluster: str, topic: str, first: tuple[int, ...], count: int, detail: str) -> None:
        super().__init__(
            f"{topic} on cluster {cluster!r}: entry {first[0]}:{first[1]} and {count - 1} more were planned and not "
            f"delivered, and it is not known whether they hold messages: {detail}. Nothing of this batch is "
            "acknowledged; start the query again, or once with failOnDataLoss=false to go on without them"
        )


class DataLoss(PulsarSourceError):
    """Records after the checkpoint are no longer in the topic."""

    def __init__(self, cluster: str, topic: str, detail: str) -> None:
        super().__init__(
            f"records of {topic} on cluster {cluster!r} are gone before they were read: {detail}. "
            "Look at retention, TTL and backlog quota; start once with failOnDataLoss=false to continue after the gap"
        )


# Topic names. Pure.

_MAX_SHOWN = 4096


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by its three parts; `str` gives the full name."""

    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{PERSISTENT}{self.tenant}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`persistent://tenant/namespace/name`, `tenant/namespace/name` or `name` (in public/default).

        Blanks belong to the name. Raises ValueError for a text that is no topic, or a name that no REST address can
        hold.
        """
        scheme, _, path = text.rpartition("://")
        parts = path.split("/")
        if scheme not in {"", "persistent"} or not all(parts) or len(parts) not in {1, 3}:
            raise ValueError(f"{text!r} is not a topic: expected persistent://tenant/namespace/name")
        if not is_addressable(path):
            raise ValueError(f"{text[:_MAX_SHOWN]!r} cannot be read: no address of the admin REST can hold it")
        return cls("public", "default", parts[0]) if len(parts) == 1 else cls(*parts)

    @property
    def path(self) -> str:
        """The quoted part of an admin REST address for this topic."""
        return topic_path(f"{self.tenant}/{self.namespace}/{self.name}")


def origin_cluster(producer: str, known: frozenset[str], read_from: str) -> str:
    """The cluster where a message entered, derived from its producer's name.

    The Python client does not show the `replicated_from` field. A name that a broker generated is
    `cluster-instance-counter` and survives replication; for any other name the answer is `read_from`.
    """
    cluster, _, rest = producer.rpartition("-")
    cluster, _, instance = cluster.rpartition("-")
    drawn_by_broker = rest.isdigit() and instance.isdigit()
    return cluster if drawn_by_broker and cluster in known else read_from


ALL_COLUMNS = (
    "value",
    "key",
    "properties",
    "publish_time",
    "event_time",
    "topic",
    "message_id",
    "cluster",
    "malformed",
)
"""The names of the columns, in their order.

`key`, `event_time` and `value` are null where the producer set none; `topic` is the topic's full name without its
partition; `message_id` is `ledger:entry:partition` (-1: not partitioned), with `:batch-index` for a message that was
sent in a batch; `cluster` is where it entered (see `topics.origin_cluster`). `malformed` says what of the message its
columns cannot hold, which is null there; null when all is well. Only the columns that are wanted are looked at.
"""

_MAX_WAIT_S = 86_400
_CLUSTER_BEGINS = re.compile(r",(?=[^,=|]*=)")
_MAX_MESSAGES = 10_000_000


class SourceCluster(BaseModel):
    """The addresses of one Pulsar cluster's brokers and admin REST."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    service_url: ServiceUrl
    admin_url: AdminUrl

    @classmethod
    def parse(cls, text: str) -> Self:
        """`name=serviceUrl|adminUrl` -> cluster."""
        name, _, urls = text.strip().partition("=")
        service, _, admin = urls.partition("|")
        if not (name and service and admin):
            raise ValueError(f"{text!r} is not a cluster: expected name=pulsar://host:6650|http://host:8080")
        try:
            return cls(name=name.strip(), service_url=service, admin_url=admin)
        except ValidationError as error:
            raise ValueError(f"{text!r} is not a cluster: {_sentence(error.errors()[0])}") from error


class PulsarOptions(PulsarAccess):
    """Every option of the format `pulsar`; Spark uses the camelCase form of the name (`maxMessagesPerTrigger`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    clusters: tuple[SourceCluster, ...] = Field(
        min_length=1, description="`name=serviceUrl|adminUrl`, comma-separated, in the order of preference"
    )
    topics: tuple[TopicName, ...] = Field(min_length=1, description="topics, comma-separated, partitioned or not")
    subscription: str | None = Field(None, description="the durable subscription (streaming: required)")
    columns: tuple[str, ...] = Field(
        ALL_COLUMNS, description="the columns wanted, comma-separated; fewer are read faster"
    )
    read_compacted: bool = Field(False, description="read the compacted form of a topic: the newest of each key")
    fail_on_data_loss: bool = Field(True, description="stop when unread records or topics are gone, or go on")

    max_messages_per_trigger: int | None = Field(
        None, ge=1, le=_MAX_MESSAGES, description="most messages of one micro-batch"
    )
    prefetch_bytes: int = Field(
        16 << 20, ge=1, le=1 << 30, description="about how many stored bytes a reader holds ahead"
    )

    operation_timeout_seconds: int = Field(5, ge=1, le=_MAX_WAIT_S, description="bound of one call to a cluster")
    read_timeout_seconds: float = Field(
        60, gt=0, le=_MAX_WAIT_S, description="bound of the silence of a range that was planned"
    )

    cluster_lost_after_seconds: float = Field(
        3, gt=0, le=_MAX_WAIT_S, description="silence after which a cluster counts as gone"
    )
    failover_file: Path | None = Field(
        None, description="where the source keeps which cluster it reads (a stream with several clusters)"
    )

    left_out_file: Path | None = Field(
        None, description="a topic that cannot be read is left out, noted there and tried again, and stops no other"
    )

    @field_validator("clusters", mode="before")
    @classmethod
    def _split_clusters(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        # a comma within an address parts its hosts
        return tuple(SourceCluster.parse(text) for text in _CLUSTER_BEGINS.split(value) if text.strip())

    @field_validator("topics", mode="before")
    @classmethod
    def _split_topics(cls, value: Any) -> Any:
        return tuple(TopicName.parse(text) for text in _split(value)) if isinstance(value, str) else value

    @field_validator("columns", mode="before")
    @classmethod
    def _split_columns(cls, value: Any) -> Any:
        names = tuple(_split(value)) if isinstance(value, str) else value
        unknown = [name for name in names if name not in ALL_COLUMNS]
        if unknown or not names or len(set(names)) != len(names):
            raise ValueError(f"takes some of {', '.join(ALL_COLUMNS)}, each once")
        return names

    @field_validator("failover_file", "left_out_file", mode="before")
    @classmethod
    def _local(cls, value: Any) -> Any:
        if isinstance(value, str) and "://" in value:
            raise ValueError(f"{value!r} is an address: use a path on a disk of the driver")
        return value

    @field_validator("clusters")
    @classmethod
    def _named_once(cls, clusters: tuple[SourceCluster, ...]) -> tuple[SourceCluster, ...]:
        names = [cluster.name for cluster in clusters]
        if len(set(names)) != len(names):
            raise ValueError(f"a cluster is named twice: {', '.join(names)}")
        return clusters

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options (keys in any case). Raises OptionError."""
        names = {(field.alias or name).lower(): (field.alias or name) for name, field in cls.model_fields.items()}
        known = {}
        for key, value in options.items():
            if key.lower() not in names:
                raise OptionError(_unknown(key, names))
            known[names[key.lower()]] = value
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            raise OptionError("; ".join(_sentence(problem) for problem in error.errors())) from None

    @property
    def leaves_out(self) -> bool:
        """Whether a topic that cannot be read is left out; otherwise it stops the query."""
        return self.left_out_file is not None

    def access(self) -> PulsarAccess:
        """The credentials and trust settings only."""
        return PulsarAccess.model_validate(self.model_dump(include=set(PulsarAccess.model_fields)))

    def call_timeout_s(self) -> int:
        """Time-out of one call; with several clusters at most the silence after which a cluster counts as gone."""
        if len(self.clusters) == 1:
            return self.operation_timeout_seconds
        return min(self.operation_timeout_seconds, math.ceil(self.cluster_lost_after_seconds))

    def cluster_named(self, name: str) -> SourceCluster:
        """The cluster of that name; OptionError when the options lack it (a checkpoint may name it)."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        known = ", ".join(cluster.name for cluster in self.clusters)
        raise OptionError(f"the checkpoint names cluster {name!r}; the options know only {known}")

    def asks_for(self, partition: str) -> bool:
        """Whether the options name the topic of a partition (or the partition itself); a checkpoint may have others."""
        return not {split_partition(partition)[0], partition}.isdisjoint(map(str, self.topics))

    def check_stream(self) -> None:
        """Raises OptionError for options that a stream lacks or would not use."""
        self.subscription_name()
        if len(self.clusters) > 1 and self.failover_file is None:
            raise OptionError("a stream with several clusters needs failoverFile, a path next to the checkpoint")
        if self.left_out_file and self.failover_file is None:
            raise OptionError("option leftOutFile: it needs failoverFile")

    def subscription_name(self) -> str:
        if not self.subscription:
            raise OptionError(
                "a stream needs the option subscription: the durable subscription that holds its position"
            )
        return self.subscription


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _unknown(key: str, names: Mapping[str, str]) -> str:
    near = nearest(key, names.values())
    hint = f"did you mean {near}?" if near else f"the options are {', '.join(sorted(names.values()))}"
    return f"unknown option {key!r}: {hint}"


def _sentence(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    what = str(problem["msg"]).removeprefix("Value error, ")
    return f"option {where}: {what}" if where else what
