"""What an admin address answered, judged before anything is made of it. Pure.

Between us and a broker stand load balancers, proxies and login pages, and each answers with a status that Pulsar uses
too. An answer counts as the cluster's only if it has the form that Pulsar gives it:

- **done**: 2xx with JSON or without a body;
- **not there** (404 where something is read or deleted) and **so already** (409 where it is made): with Pulsar's reason
  in JSON;
- **refused**: 401 and 403, from whomever; any other status with Pulsar's reason: AdminRefused;
- **all else** is no answer of the cluster: ClusterUnreachable. Busy (408, 425, 429), pages, truncated or foreign JSON.
"""

import json
from dataclasses import dataclass
from typing import Any

from geo.replication.errors import AdminRefused, ClusterUnreachable

__all__ = ["Answer", "Question", "judge"]

_MOST_REASON = 300
_UNAUTHORISED, _FORBIDDEN = 401, 403
_BUSY = frozenset({408, 425, 429})


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
        """The value; None without a body. Raises ValueError for what is not JSON."""
        if not self.body:
            return None
        if self.content_type.split(";")[0].strip().lower() != "application/json":
            raise ValueError(f"{self.content_type or 'no content type'} instead of JSON")
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("JSON of more levels than can be read") from error


def judge(question: Question, answer: Answer, passes: int) -> Any:
    """The value of an answer that is the cluster's; None for one without a body, and for the status that `passes`.

    Raises AdminRefused and ClusterUnreachable.
    """
    try:
        value = answer.json()
    except ValueError as error:
        if answer.status in (_UNAUTHORISED, _FORBIDDEN):
            raise _refused(question, answer, _start(answer)) from error
        raise _foreign(question, answer, str(error)) from error
    if 200 <= answer.status < 300:
        return value
    reason = value.get("reason") if isinstance(value, dict) else None
    if answer.status in (_UNAUTHORISED, _FORBIDDEN):
        raise _refused(question, answer, reason if isinstance(reason, str) else _start(answer))
    if not isinstance(reason, str) or answer.status in _BUSY:
        raise _foreign(question, answer, _start(answer) or "no reason")
    if answer.status == passes:
        return None
    raise _refused(question, answer, reason)


def _refused(question: Question, answer: Answer, reason: str) -> AdminRefused:
    return AdminRefused(question.cluster, question.doing, answer.status, reason[:_MOST_REASON])


def _foreign(question: Question, answer: Answer, detail: str) -> ClusterUnreachable:
    said = f"{question.doing} was answered with {answer.status}, and not by Pulsar: {detail}"
    return ClusterUnreachable(question.cluster, question.url, said)


def _start(answer: Answer) -> str:
    return " ".join(answer.body[:_MOST_REASON].decode(errors="replace").split())
