"""What an admin address answered, judged before anything is made of it. Pure.

Between us and a broker stand load balancers, proxies and login pages, and each answers with a status that Pulsar uses
too. An answer counts as the cluster's only if it is of the form that Pulsar gives it:

- **value**: 200, JSON, with the fields that are used in their types; the others are passed over, and not kept;
- **not found**: 404 with Pulsar's reason in JSON: TopicMissing;
- **refused**: 401 and 403, from whomever; another 4xx with Pulsar's reason: AccessRefused;
- **all else** is no answer of the cluster: SourceClusterUnreachable. Busy (408, 429), 5xx, pages, truncated or foreign
JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cloud_jobs.pulsar_source.errors import AccessRefused, PulsarSourceError, SourceClusterUnreachable, TopicMissing
from telemetry import InvalidJson, parse_json

MAX_BYTES = 64 << 20
"""The longest answer: the statistics of ten thousand partitions have about a third of it."""
_MAX_PARTITIONS = 100_000
_MAX_REASON = 200
_OK, _NO_CONTENT = 200, 204
_UNAUTHORISED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _SERVER_ERROR = 401, 403, 404, 409, 500
_BUSY = frozenset({408, 425, 429})


_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Ledger(TypedDict):
    ledgerId: _Integer
    entries: _Integer
    size: _Integer


class _Cursor(TypedDict):
    markDeletePosition: str
    lastLedgerSwitchTimestamp: NotRequired[str]
    readPosition: NotRequired[str]
    properties: NotRequired[dict[str, Any]]


class _Stats(TypedDict):
    lastConfirmedEntry: str
    lastLedgerCreatedTimestamp: NotRequired[str]
    currentLedgerSize: _Integer
    ledgers: list[_Ledger]
    cursors: dict[str, _Cursor]


class _Broker(TypedDict):
    brokerUrl: NotRequired[str | None]
    brokerUrlTls: NotRequired[str | None]


class _Partitions(TypedDict):
    partitions: Annotated[int, Field(ge=0, le=_MAX_PARTITIONS)]


class _PartitionedStats(TypedDict):
    metadata: _Partitions
    partitions: dict[str, _Stats]


class _NoStats(TypedDict):
    """What Pulsar 4.0.8 says, with 200, where it got no partition's statistics: the exception itself."""

    stackTrace: list[Any]


BROKER: TypeAdapter[Any] = TypeAdapter(_Broker)
NAMES: TypeAdapter[Any] = TypeAdapter(list[str])
PARTITIONS: TypeAdapter[Any] = TypeAdapter(_Partitions)
PROPERTIES: TypeAdapter[Any] = TypeAdapter(dict[str, str])
STATS: TypeAdapter[Any] = TypeAdapter(_Stats)
PARTITIONED_STATS: TypeAdapter[Any] = TypeAdapter(_PartitionedStats | _NoStats)


@dataclass(frozen=True, slots=True)
class AdminResponse:
    """One HTTP answer, whole."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """What was asked: the cluster, the request in words, and the topic that it is about."""

    cluster: str
    action: str
    topic: str | None


def parse_response(request: AdminRequest, response: AdminResponse, shape: TypeAdapter[Any] | None) -> Any:
    """The value that a cluster answered, of that shape; without a shape (a command) None for its 204.

    Raises TopicMissing, AccessRefused or SourceClusterUnreachable.
    """
    if shape is None and response.status == _NO_CONTENT:
        return None
    if response.status != _OK or shape is None:
        raise _response_error(request, response)
    if not _is_json(response):
        raise _not_from_pulsar(request, response, f"{response.content_type or 'no content type'} instead of JSON")
    try:
        return shape.validate_json(response.body, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise _not_from_pulsar(request, response, f"{place}: {problem['msg']}"[:_MAX_REASON]) from error


def judge_created(request: AdminRequest, response: AdminResponse) -> None:
    """What a cluster answered to a creation: it is there now, perhaps by somebody else. Raises what `parse_response`
    does."""
    if response.status != _CONFLICT or _reason(response) is None:
        parse_response(request, response, None)


def parse_entry_response(request: AdminRequest, response: AdminResponse) -> Mapping[str, str] | None:
    """The headers with which a cluster answered for an entry; none at all for one that it cannot unpack.

    None for one that is not stored. Raises AccessRefused or SourceClusterUnreachable.
    """
    if response.status == _OK and "x-pulsar-message-id" in response.headers:
        return response.headers
    if response.status == _NOT_FOUND and _reason(response) is not None:
        return None
    if response.status == _SERVER_ERROR:
        return {}  # without a reason where the headers are too long for the broker's own server
    raise _response_error(request, response)


def _response_error(request: AdminRequest, response: AdminResponse) -> PulsarSourceError:
    reason = _reason(response)
    detail = f"{response.status} {reason or _body_excerpt(response)}".strip()
    if response.status == _NOT_FOUND and reason is not None and request.topic is not None:
        return TopicMissing(request.cluster, request.topic)
    if response.status in {_UNAUTHORISED, _FORBIDDEN}:
        return AccessRefused(request.cluster, request.action, detail)
    if _OK <= response.status < _SERVER_ERROR and response.status not in _BUSY and reason is not None:
        return AccessRefused(request.cluster, request.action, detail)
    return SourceClusterUnreachable(request.cluster, request.action, detail)


def _not_from_pulsar(request: AdminRequest, response: AdminResponse, detail: str) -> SourceClusterUnreachable:
    return SourceClusterUnreachable(
        request.cluster, request.action, f"{response.status}, and no answer of Pulsar: {detail}"
    )


def _is_json(response: AdminResponse) -> bool:
    return response.content_type.split(";")[0].strip().lower() == "application/json"


def _reason(response: AdminResponse) -> str | None:
    """The reason that Pulsar gives; None when the answer is not Pulsar's."""
    if not _is_json(response):
        return None
    try:
        document = parse_json(response.body, max_bytes=MAX_BYTES)
    except InvalidJson:
        return None
    reason = document.get("reason") if isinstance(document, Mapping) else None
    return reason[:_MAX_REASON] if isinstance(reason, str) else None


def _body_excerpt(response: AdminResponse) -> str:
    return " ".join(response.body[:_MAX_REASON].decode(errors="replace").split())
