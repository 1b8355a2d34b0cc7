"""What an admin address answered, checked before anything is made of it. Pure.

Between us and a broker stand load balancers, proxies and login pages, and each answers with a status that Pulsar uses
too. An answer counts as the cluster's only if it has the form that Pulsar gives it:

- **value**: to a question, 200 and JSON of the form that was asked for, with all that is used of it in its type,
  however deep inside; never nothing at all;
- **done**: to a command, 204, or 200 with neither a body nor a type of one (Pulsar's for clusters and the like);
- **not there** (404 where something is read or deleted) and **so already** (409 where it is made): with Pulsar's reason
  in JSON;
- **refused**: 401 (it does not take who we say that we are) and 403, from whomever; any other status with Pulsar's
  reason: AdminRefused;
- **all else** is no answer of the cluster: ClusterUnreachable. Busy (408, 425, 429), pages, truncated or foreign JSON.

An entry is answered with headers, and one that the broker cannot unpack with an error of the server (500).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from geo.replication.errors import AdminRefused, ClusterUnreachable, ReplicationError
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

__all__ = ["MAX_BYTES", "MESSAGE_ID_HEADER", "RestRequest", "RestResponse", "parse_entry_response", "parse_response"]

MAX_BYTES = 64 << 20
"""The longest answer: the statistics of ten thousand partitions have about a third of it."""
MESSAGE_ID_HEADER = "x-pulsar-message-id"
_MAX_VALUES = 4_000_000
"""Four times as many as those statistics have: objects of nothing but a member each are then 0.6 GB and 4 s."""
_MAX_DEPTH = 32
_MAX_EXCERPT_BYTES = 300
_OK, _NO_CONTENT = 200, 204
_FIRST_ERROR, _UNAUTHORISED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 400, 401, 403, 404, 500
_BUSY = frozenset({408, 425, 429})
_WHY = {
    _UNAUTHORISED: "it does not take who we say that we are: the token has ended, or another issuer signed it",
    _FORBIDDEN: "who we say that we are may not do this",
}

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RestRequest:
    """What was asked of which cluster, where."""

    cluster: str
    url: str
    action: str


@dataclass(frozen=True, slots=True)
class RestResponse:
    """One HTTP answer, whole."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """The value. Raises ValueError for what is not JSON."""
        if self.content_type.split(";")[0].strip().lower() != "application/json":
            raise ValueError(f"{self.content_type or 'no content type'} instead of JSON")
        try:
            return parse_json(self.body, max_bytes=MAX_BYTES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
        except InvalidJson as error:
            raise ValueError(str(error)) from error


def parse_response(
    request: RestRequest, response: RestResponse, shape: TypeAdapter[_Value] | None, passes: int
) -> _Value | None:
    """The value of the shape that a question was answered with; None for a command (without a shape) that was done,
    and for the status that `passes`.

    Raises AdminRefused and ClusterUnreachable.
    """
    if shape is None and _is_done(response):
        return None
    try:
        value = response.json()
    except ValueError as error:
        if response.status in (_UNAUTHORISED, _FORBIDDEN):
            raise _refusal_error(request, response, _body_excerpt(response) or _WHY[response.status]) from error
        raise _not_from_pulsar(request, response, str(error)) from error
    if response.status == _OK and shape is not None:
        return _of_shape(request, response, value, shape)
    reason = _reason_of(response)
    if response.status == passes and reason is not None:
        return None
    raise _no(request, response, reason)


def parse_entry_response(request: RestRequest, response: RestResponse) -> Mapping[str, str] | None:
    """The headers with which a cluster answered for an entry; none at all for one that it cannot unpack.

    None for one that is not stored. Raises AdminRefused and ClusterUnreachable.
    """
    if response.status == _OK and MESSAGE_ID_HEADER in response.headers:
        return response.headers
    if response.status == _SERVER_ERROR:
        return {}  # without a reason where the headers are too long for the broker's own server
    reason = _reason_of(response)
    if response.status == _NOT_FOUND and reason is not None:
        return None
    raise _no(request, response, reason)


def _reason_of(response: RestResponse) -> str | None:
    try:
        value = response.json()
    except ValueError:
        return None
    reason = value.get("reason") if isinstance(value, dict) else None
    return reason if isinstance(reason, str) else None


def _is_done(response: RestResponse) -> bool:
    return response.status == _NO_CONTENT or (
        response.status == _OK and not response.body and not response.content_type
    )


def _of_shape(request: RestRequest, response: RestResponse, value: Any, shape: TypeAdapter[_Value]) -> _Value:
    try:
        return shape.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"]) or "the answer"
        raise _not_from_pulsar(request, response, f"{place}: {problem['msg']}") from error


def _no(request: RestRequest, response: RestResponse, reason: str | None) -> ReplicationError:
    if response.status in (_UNAUTHORISED, _FORBIDDEN):
        return _refusal_error(request, response, reason or _body_excerpt(response) or _WHY[response.status])
    if response.status < _FIRST_ERROR or response.status in _BUSY or reason is None:
        return _not_from_pulsar(request, response, _body_excerpt(response) or "no reason, perhaps a page for browsers")
    return _refusal_error(request, response, reason)


def _refusal_error(request: RestRequest, response: RestResponse, reason: str) -> AdminRefused:
    return AdminRefused(request.cluster, request.action, response.status, one_line(reason))


def _not_from_pulsar(request: RestRequest, response: RestResponse, detail: str) -> ClusterUnreachable:
    said = f"{request.action} was answered with {response.status}, and not by Pulsar: {one_line(detail)}"
    return ClusterUnreachable(request.cluster, request.url, said)


def _body_excerpt(response: RestResponse) -> str:
    """What it says in words; "": nothing, or a page, which is for browsers."""
    if response.body.lstrip()[:1] == b"<" or "html" in response.content_type.lower():
        return ""
    return response.body[:_MAX_EXCERPT_BYTES].decode(errors="replace")
