"""The parts of Pulsar's answers that are used, as validated types. Pure.

Unused fields are ignored. A used field that is missing or of another type, at any depth, is an error. Only fields that
Pulsar leaves out are optional.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, NotRequired

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    with_config,
)
from typing_extensions import TypedDict

_MAX_PARTITIONS = 100_000
_KEPT_SHAPES = 256
_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+")
"""What Pulsar lets a cluster, tenant or namespace be called."""
_DIRECTIONS = frozenset({".", ".."})
"""What an address takes for a direction, and not for a name."""


def _written_bool(value: object) -> bool:
    if value not in ("true", "false", None, ""):
        raise ValueError("should be true or false, written as text")
    return value == "true"


def _written_names(value: object) -> frozenset[str]:
    """A set, as Java prints it."""
    if value is None:
        return frozenset()
    if not isinstance(value, str):
        raise ValueError("should be names, written as text")
    return frozenset(one for one in re.split(r"[\[\],\s]+", value) if one)


def _entities(name: str) -> str:
    """A name, or several separated by slashes."""
    for part in name.split("/"):
        if part in _DIRECTIONS or not _ENTITY.fullmatch(part):
            raise ValueError("should be the name of a cluster or namespace")
    return name


_WrittenBool = Annotated[bool, BeforeValidator(_written_bool)]
_WrittenNames = Annotated[frozenset[str], BeforeValidator(_written_names)]


class _Response(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class BrokerConfiguration(_Response):
    """The settings of a running broker that concern rights; the defaults are Pulsar's own."""

    cluster: str = Field(alias="clusterName")
    authorization: _WrittenBool = Field(False, alias="authorizationEnabled")
    superusers: _WrittenNames = Field(frozenset(), alias="superUserRoles")
    topic_policies: _WrittenBool = Field(True, alias="topicLevelPoliciesEnabled")
    auto_topic_creation: _WrittenBool = Field(True, alias="allowAutoTopicCreation")
    guarded_metrics: _WrittenBool = Field(False, alias="authenticateMetricsEndpoint")


# With all other fields, because an update sends them back.
@with_config(ConfigDict(extra="allow", strict=True))
class ClusterData(TypedDict):
    """The registration of a cluster in another one, or in itself."""

    brokerClientTlsEnabled: bool
    serviceUrl: NotRequired[str | None]
    serviceUrlTls: NotRequired[str | None]
    brokerServiceUrl: NotRequired[str | None]
    brokerServiceUrlTls: NotRequired[str | None]
    listenerName: NotRequired[str | None]
    brokerClientTrustCertsFilePath: NotRequired[str | None]


class _Tenant(_Response):
    admin_roles: list[str] = Field(alias="adminRoles")
    allowed_clusters: list[str] = Field(alias="allowedClusters")


class _Retention(_Response):
    minutes: int = Field(alias="retentionTimeInMinutes")
    size_mb: int = Field(alias="retentionSizeInMB")


class _Quota(_Response):
    limit_bytes: int = Field(alias="limitSize")
    policy: str


class _PublishRate(_Response):
    messages_per_s: int = Field(alias="publishThrottlingRateInMsg")
    bytes_per_s: int = Field(alias="publishThrottlingRateInByte")


class _AutoCreation(_Response):
    allowed: bool = Field(alias="allowAutoTopicCreation")


class _Rights(_Response):
    """Actions by role, for the namespace and for topics by full name; roles by subscription."""

    of_namespace: dict[str, list[str]] = Field({}, alias="namespace_auth")
    of_topics: dict[str, dict[str, list[str]]] = Field({}, alias="destination_auth")
    of_subscriptions: dict[str, list[str]] = Field({}, alias="subscription_auth_roles")


class NamespaceData(_Response):
    """A namespace's policies; None: not set."""

    replication_clusters: list[str]
    retention: _Retention | None = Field(None, alias="retention_policies")
    quotas: dict[str, _Quota] | None = Field(None, alias="backlog_quota_map")
    publish_rates: dict[str, _PublishRate] | None = Field(None, alias="publishMaxMessageRate")
    message_ttl_s: int | None = Field(None, alias="message_ttl_in_seconds")
    deduplication: bool | None = Field(None, alias="deduplicationEnabled")
    compaction_threshold_bytes: int | None = Field(None, alias="compaction_threshold")
    auto_topic_creation: _AutoCreation | None = Field(None, alias="autoTopicCreationOverride")
    rights: _Rights = Field(_Rights(), alias="auth_policies")


class TopicPartitions(_Response):
    """The number of a topic's partitions; 0: it is not partitioned."""

    partitions: Annotated[int, Field(ge=0, le=_MAX_PARTITIONS)]


class SubscriptionStats(_Response):
    """A subscription. `moved_ms`: when its position last moved, since 1970 (0: never).

    `earliest_ms`: when the oldest message of its backlog was published; 0 or less: not asked for, or not known.
    """

    backlog: int = Field(alias="msgBacklog")
    replicated: bool = Field(False, validation_alias=AliasChoices("isReplicated", "replicated"))
    durable: bool = Field(True, validation_alias=AliasChoices("isDurable", "durable"))
    moved_ms: int = Field(0, alias="lastMarkDeleteAdvancedTimestamp", ge=0)
    earliest_ms: int = Field(0, alias="earliestMsgPublishTimeInBacklog")


class ReplicatorStats(_Response):
    """The replication of a topic to another cluster. `inbound`: the address from which that cluster sends its own
    messages; None: it sends none now.
    """

    connected: bool
    inbound: str | None = Field(None, alias="inboundConnection")
    backlog: int = Field(alias="replicationBacklog")
    delay_s: int = Field(alias="replicationDelayInSeconds")


class TopicStats(_Response):
    """A topic's subscriptions by name, and its replicators by target cluster."""

    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, ReplicatorStats]


_STRICT = with_config(ConfigDict(strict=True))
_POSITION = re.compile(r"-?[0-9]{1,19}:-?[0-9]{1,19}")


def _position(text: str) -> str:
    if not _POSITION.fullmatch(text):
        raise ValueError("should be ledger:entry")
    return text


_Position = Annotated[str, AfterValidator(_position)]


def _position_if_any(value: object) -> object:
    """A cursor that is being opened, such as a reader's, has no position; Pulsar writes that in several ways."""
    return None if isinstance(value, str) and not _POSITION.fullmatch(value) else value


_ReadPosition = Annotated[str | None, BeforeValidator(_position_if_any)]


# Plain dicts, for speed: they are read many times a second for many partitions.
@_STRICT
class _Ledger(TypedDict):
    ledgerId: int
    entries: int
    size: int


@_STRICT
class _Cursor(TypedDict):
    markDeletePosition: _Position
    readPosition: NotRequired[_ReadPosition]
    lastLedgerSwitchTimestamp: NotRequired[str]


@_STRICT
class InternalStats(TypedDict):
    """The managed ledger of a topic partition, and its cursors by name."""

    lastConfirmedEntry: _Position
    lastLedgerCreatedTimestamp: NotRequired[str]
    currentLedgerSize: int
    ledgers: list[_Ledger]
    cursors: dict[str, _Cursor]


@_STRICT
class PartitionedInternalStats(TypedDict):
    """The internal statistics of each partition that answered, by its full name.

    When no partition answered, Pulsar 4.0.8 returns the exception with status 200; then this is empty.
    """

    metadata: TopicPartitions
    partitions: dict[str, InternalStats]


def _none_for_an_exception(said: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(said, dict) and "partitions" not in said and isinstance(said.get("stackTrace"), list):
        said = {"metadata": {"partitions": 0}, "partitions": {}}
    return validate(said)


INTERNAL_STATS = TypeAdapter(InternalStats)
PARTITIONED_INTERNAL_STATS = TypeAdapter(Annotated[PartitionedInternalStats, WrapValidator(_none_for_an_exception)])
PROPERTIES = TypeAdapter(dict[str, str])
CONFIGURATION = TypeAdapter(BrokerConfiguration)
CLUSTERS = TypeAdapter(list[Annotated[str, AfterValidator(_entities)]])
NAMESPACES = CLUSTERS
CLUSTER = TypeAdapter(ClusterData)
TENANT = TypeAdapter(_Tenant)
NAMESPACE = TypeAdapter(NamespaceData)
PARTITIONS = TypeAdapter(TopicPartitions)
STATS = TypeAdapter(TopicStats)


@lru_cache(_KEPT_SHAPES)
def topics_of(namespace: str) -> TypeAdapter[list[str]]:
    """The shape of a list of full topic names, all in this namespace."""

    def in_namespace(name: str) -> str:
        domain, _, rest = name.partition("://")
        if domain not in ("persistent", "non-persistent") or not rest.startswith(f"{namespace}/"):
            raise ValueError(f"should be the name of a topic of {namespace}")
        return name

    return TypeAdapter(list[Annotated[str, AfterValidator(in_namespace)]])
