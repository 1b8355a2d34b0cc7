"""What an admin address answered, judged before anything is made of it. Pure.

Between us and a broker stand load balancers, proxies and login pages, and each answers with a status that Pulsar uses
too. An answer counts as the cluster's only if it has the form that Pulsar gives it:

- **value**: to a question, 200 and JSON of the form that was asked for, with all that is used of it in its type,
  however deep inside; never nothing at all;
- **done**: to a command, 204, or 200 with neither a body nor a type of one (Pulsar's for clusters and the like);
- **not there** (404 where something is read or deleted) and **so already** (409 where it is made): with Pulsar's reason
  in JSON;
- **refused**: 401 and 403, from whomever; any other status with Pulsar's reason: AdminRefused;
- **all else** is no answer of the cluster: ClusterUnreachable. Busy (408, 425, 429), pages, truncated or foreign JSON.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from geo.replication.errors import AdminRefused, ClusterUnreachable, ReplicationError
from telemetry import InvalidJson, parse_json

__all__ = ["MOST_BYTES", "Answer", "Question", "judge"]

MOST_BYTES = 64 << 20
_MOST_VALUES = 10_000_000
_MOST_DEPTH = 32
_MOST_REASON = 300
_OK, _NO_CONTENT = 200, 204
_FIRST_ERROR, _UNAUTHORISED, _FORBIDDEN = 400, 401, 403
_BUSY = frozenset({408, 425, 429})

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of which cluster, where."""

    cluster: str
    url: str
    doing: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, whole."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The value. Raises ValueError for what is not JSON."""
        if self.content_type.split(";")[0].strip().lower() != "application/json":
            raise ValueError(f"{self.content_type or 'no content type'} instead of JSON")
        try:
            return parse_json(self.body, max_bytes=MOST_BYTES, max_depth=_MOST_DEPTH, max_values=_MOST_VALUES)
        except InvalidJson as error:
            raise ValueError(str(error)) from error


def judge(question: Question, answer: Answer, shape: TypeAdapter[_Value] | None, passes: int) -> _Value | None:
    """The value of the shape that a question was answered with; None for a command (without a shape) that was done,
    and for the status that `passes`.

    Raises AdminRefused and ClusterUnreachable.
    """
    if shape is None and _is_done(answer):
        return None
    try:
        value = answer.json()
    except ValueError as error:
        if answer.status in (_UNAUTHORISED, _FORBIDDEN):
            raise _refused(question, answer, _start(answer)) from error
        raise _foreign(question, answer, str(error)) from error
    if answer.status == _OK and shape is not None:
        return _of_shape(question, answer, value, shape)
    reason = value.get("reason") if isinstance(value, dict) else None
    if answer.status == passes and isinstance(reason, str):
        return None
    raise _no(question, answer, reason)


def _is_done(answer: Answer) -> bool:
    return answer.status == _NO_CONTENT or (answer.status == _OK and not answer.body and not answer.content_type)


def _of_shape(question: Question, answer: Answer, value: Any, shape: TypeAdapter[_Value]) -> _Value:
    try:
        return shape.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"]) or "the answer"
        raise _foreign(question, answer, f"{place}: {problem['msg']}"[:_MOST_REASON]) from error


def _no(question: Question, answer: Answer, reason: object) -> ReplicationError:
    if answer.status in (_UNAUTHORISED, _FORBIDDEN):
        return _refused(question, answer, reason if isinstance(reason, str) else _start(answer))
    if answer.status < _FIRST_ERROR or answer.status in _BUSY or not isinstance(reason, str):
        return _foreign(question, answer, _start(answer) or "no reason")
    return _refused(question, answer, reason)


def _refused(question: Question, answer: Answer, reason: str) -> AdminRefused:
    return AdminRefused(question.cluster, question.doing, answer.status, reason[:_MOST_REASON])


def _foreign(question: Question, answer: Answer, detail: str) -> ClusterUnreachable:
    said = f"{question.doing} was answered with {answer.status}, and not by Pulsar: {detail}"
    return ClusterUnreachable(question.cluster, question.url, said)


def _start(answer: Answer) -> str:
    return " ".join(answer.body[:_MOST_REASON].decode(errors="replace").split())
