"""What an admin address answered, judged before anything is made of it. Pure.

Between us and a broker stand load balancers, proxies and login pages, and each answers with a status that Pulsar uses
too. An answer counts as the cluster's only if it is of the form that Pulsar gives it:

- **value**: 200, JSON, with the fields that are used in their types; the others are passed over, and not kept;
- **not found**: 404 with Pulsar's reason in JSON: TopicMissing;
- **refused**: 401 and 403, from whomever; another 4xx with Pulsar's reason: AccessRefused;
- **all else** is no answer of the cluster: ClusterUnreachable. Busy (408, 429), 5xx, pages, truncated or foreign JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cloud_jobs.pulsar_source.errors import AccessRefused, ClusterUnreachable, PulsarSourceError, TopicMissing
from telemetry import InvalidJson, parse_json

MOST_BYTES = 64 << 20
"""The longest answer: the statistics of ten thousand partitions have about a third of it."""
_MOST_PARTITIONS = 100_000
_MOST_REASON = 200
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
    partitions: Annotated[int, Field(ge=0, le=_MOST_PARTITIONS)]


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
class Answer:
    """One HTTP answer, whole."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked: the cluster, the request in words, and the topic that it is about."""

    cluster: str
    doing: str
    topic: str | None


def judge(question: Question, answer: Answer, shape: TypeAdapter[Any] | None) -> Any:
    """The value that a cluster answered, of that shape; without a shape (a command) None for its 204.

    Raises TopicMissing, AccessRefused or ClusterUnreachable.
    """
    if shape is None and answer.status == _NO_CONTENT:
        return None
    if answer.status != _OK or shape is None:
        raise _refusal(question, answer)
    if not _is_json(answer):
        raise _foreign(question, answer, f"{answer.content_type or 'no content type'} instead of JSON")
    try:
        return shape.validate_json(answer.body, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise _foreign(question, answer, f"{place}: {problem['msg']}"[:_MOST_REASON]) from error


def judge_created(question: Question, answer: Answer) -> None:
    """What a cluster answered to a creation: it is there now, perhaps by somebody else. Raises what `judge` does."""
    if answer.status != _CONFLICT or _reason(answer) is None:
        judge(question, answer, None)


def judge_entry(question: Question, answer: Answer) -> Mapping[str, str] | None:
    """The headers with which a cluster answered for an entry; none at all for one that it cannot unpack.

    None for one that is not stored. Raises AccessRefused or ClusterUnreachable.
    """
    if answer.status == _OK and "x-pulsar-message-id" in answer.headers:
        return answer.headers
    if answer.status == _NOT_FOUND and _reason(answer) is not None:
        return None
    if answer.status == _SERVER_ERROR:
        return {}  # without a reason where the headers are too long for the broker's own server
    raise _refusal(question, answer)


def _refusal(question: Question, answer: Answer) -> PulsarSourceError:
    reason = _reason(answer)
    detail = f"{answer.status} {reason or _start(answer)}".strip()
    if answer.status == _NOT_FOUND and reason is not None and question.topic is not None:
        return TopicMissing(question.cluster, question.topic)
    if answer.status in {_UNAUTHORISED, _FORBIDDEN}:
        return AccessRefused(question.cluster, question.doing, detail)
    if _OK <= answer.status < _SERVER_ERROR and answer.status not in _BUSY and reason is not None:
        return AccessRefused(question.cluster, question.doing, detail)
    return ClusterUnreachable(question.cluster, question.doing, detail)


def _foreign(question: Question, answer: Answer, detail: str) -> ClusterUnreachable:
    return ClusterUnreachable(question.cluster, question.doing, f"{answer.status}, and no answer of Pulsar: {detail}")


def _is_json(answer: Answer) -> bool:
    return answer.content_type.split(";")[0].strip().lower() == "application/json"


def _reason(answer: Answer) -> str | None:
    """The reason that Pulsar gives; None when the answer is not Pulsar's."""
    if not _is_json(answer):
        return None
    try:
        document = parse_json(answer.body, max_bytes=MOST_BYTES)
    except InvalidJson:
        return None
    reason = document.get("reason") if isinstance(document, Mapping) else None
    return reason[:_MOST_REASON] if isinstance(reason, str) else None


def _start(answer: Answer) -> str:
    return " ".join(answer.body[:_MOST_REASON].decode(errors="replace").split())
