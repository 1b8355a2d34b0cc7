"""A client of a cluster's admin REST interface, bounded in time and size, with errors of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urljoin

import httpx
from pydantic import TypeAdapter, ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from geo.replication.errors import (
    AdminRefused,
    ClusterUnreachable,
    NoConnection,
    ReplicationError,
    UnusableAccess,
    WrongCluster,
)
from geo.replication.rest_types import CONFIGURATION, BrokerConfiguration
from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken, access_tls_context
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

MAX_BYTES = 64 << 20
"""The longest answer: the statistics of ten thousand partitions have about a third of it."""
MESSAGE_ID_HEADER = "x-pulsar-message-id"

_MAX_VALUES = 4_000_000
"""Four times as many as those statistics have: objects of nothing but a member each are then 0.6 GB and 4 s."""
_MAX_DEPTH = 32
_MAX_EXCERPT_BYTES = 300
_MAX_REDIRECTS = 4
_SHORT_BYTES = 64 << 10
_OK, _NO_CONTENT = 200, 204
_FIRST_ERROR, _UNAUTHORISED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _SERVER_ERROR = 400, 401, 403, 404, 409, 500
_BUSY = frozenset({408, 425, 429})
_WHY = {
    _UNAUTHORISED: "authentication failed: the token has expired, or another issuer signed it",
    _FORBIDDEN: "who we say that we are may not do this",
}

_Value = TypeVar("_Value")
Query = Mapping[str, str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAnswer:
    """One whole HTTP answer, with its request and cluster."""

    cluster: str
    url: str
    action: str
    status: int
    content_type: str = "application/json"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def value(self, shape: TypeAdapter[_Value] | None, passes: int) -> _Value | None:
        """The answer in this shape; None for a command (without a shape) that succeeded, and for the status `passes`.

        Raises AdminRefused for a refusal by Pulsar, ClusterUnreachable for an answer from something else: a load
        balancer in front of a cluster also answers 200 and 404.
        """
        is_empty = not self.body and not self.content_type
        if shape is None and (self.status == _NO_CONTENT or (self.status == _OK and is_empty)):
            return None
        try:
            value = self._json()
        except ValueError as error:
            if self.status in _WHY:
                raise self._refusal(self._excerpt() or _WHY[self.status]) from error
            raise self._not_from_pulsar(str(error)) from error
        if self.status == _OK and shape is not None:
            return self._of_shape(value, shape)
        if self.status == passes and self._reason() is not None:
            return None
        raise self._error()

    def entry_headers(self) -> Mapping[str, str] | None:
        """The headers of a stored entry; empty when the broker cannot unpack it, None when it is gone."""
        if self.status == _OK and MESSAGE_ID_HEADER in self.headers:
            return self.headers
        if self.status == _SERVER_ERROR:
            return {}  # without a reason where the headers are too long for the broker's own server
        if self.status == _NOT_FOUND and self._reason() is not None:
            return None
        raise self._error()

    def _json(self) -> Any:
        if self.content_type.split(";")[0].strip().lower() != "application/json":
            raise ValueError(f"{self.content_type or 'no content type'} instead of JSON")
        try:
            return parse_json(self.body, max_bytes=MAX_BYTES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
        except InvalidJson as error:
            raise ValueError(str(error)) from error

    def _of_shape(self, value: Any, shape: TypeAdapter[_Value]) -> _Value:
        try:
            return shape.validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the answer"
            raise self._not_from_pulsar(f"{place}: {problem['msg']}") from error

    def _reason(self) -> str | None:
        """Pulsar's reason for a refusal."""
        try:
            value = self._json()
        except ValueError:
            return None
        reason = value.get("reason") if isinstance(value, dict) else None
        return reason if isinstance(reason, str) else None

    def _error(self) -> ReplicationError:
        reason = self._reason()
        if self.status in _WHY:
            return self._refusal(reason or self._excerpt() or _WHY[self.status])
        if self.status < _FIRST_ERROR or self.status in _BUSY or reason is None:
            return self._not_from_pulsar(self._excerpt() or "no reason, perhaps a page for browsers")
        return self._refusal(reason)

    def _refusal(self, reason: str) -> AdminRefused:
        return AdminRefused(self.cluster, self.action, self.status, one_line(reason))

    def _not_from_pulsar(self, detail: str) -> ClusterUnreachable:
        said = f"{self.action} was answered with {self.status}, and not by Pulsar: {one_line(detail)}"
        return ClusterUnreachable(self.cluster, self.url, said)

    def _excerpt(self) -> str:
        """The text of the body; "" for nothing, or for a page for browsers."""
        if self.body.lstrip()[:1] == b"<" or "html" in self.content_type.lower():
            return ""
        return self.body[:_MAX_EXCERPT_BYTES].decode(errors="replace")


_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
_RUNTIME = "brokers/configuration/runtime"
_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | list[Any])

_ANYBODY = PulsarAccess()


class AdminClient:
    """One cluster's admin interface, also for several threads. Use it as a context manager, or call `close`.

    Before its first request it asks for the cluster's name, and raises WrongCluster when it is another's, so that no
    other cluster is read or changed. Only administrators may ask that; others set `check_name` to False. Raises
    ClusterUnreachable without a whole answer within `timeout_s`, or for an answer that is not Pulsar's (NoConnection
    where no host listens), and AdminRefused for an error.

    An unanswered request is sent three times in all. After an error of the server itself (5xx: just after its start a
    broker has no bookie yet) questions and commands are repeated for `unavailable_s`; every command may be given twice.
    With 0 nothing is repeated, except a question whose kept-alive connection broke.
    """

    def __init__(
        self,
        cluster: str,
        url: str,
        *,
        access: PulsarAccess = _ANYBODY,
        timeout_s: float = _TIMEOUT_S,
        unavailable_s: float = _UNAVAILABLE_S,
        check_name: bool = True,
    ) -> None:
        """Raises UnusableAccess."""
        self.cluster, self.url, self.access = cluster, url, access
        self._unavailable_s = unavailable_s
        self._check_name = check_name
        self._configuration: BrokerConfiguration | None = None
        self._hosts = each_host(url)
        self._timeout_s = timeout_s
        # one missing host must leave time for the others
        connecting = httpx.Timeout(timeout_s, connect=timeout_s / len(self._hosts))
        try:
            access.check_token(time.time())
            self._token = PulsarToken(access)
            self._http = httpx.Client(timeout=connecting, verify=access_tls_context(access), trust_env=False)
        except PulsarAccessError as error:
            raise UnusableAccess(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, shape: TypeAdapter[_Value] = _ANY, **query: str | bool) -> _Value | None:
        """The JSON answer in this shape; None when Pulsar says that the thing does not exist."""
        value: _Value | None = self._ask("GET", path, None, query, passes=_NOT_FOUND, shape=shape)[1]
        return value

    def configuration(self) -> BrokerConfiguration:
        """The configuration of the running broker. Raises WrongCluster when it belongs to another cluster."""
        found: BrokerConfiguration = self._configuration or self._retry(self._identify)
        return found

    def entry_headers(self, topic_path: str, ledger: int, entry: int) -> Mapping[str, str] | None:
        """The headers of a stored entry, without reading long content; empty when the broker cannot unpack it.

        None when the entry is gone.
        """
        path = f"{topic_path}/ledger/{ledger}/entry/{entry}"

        def once() -> Mapping[str, str] | None:
            self._check_whose_it_is()
            return self._request("GET", path, None, {}, unread_with=MESSAGE_ID_HEADER).entry_headers()

        found: Mapping[str, str] | None = self._retry(once)
        return found

    def put(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Create something; False when it existed."""
        return self._write("PUT", path, body, query)

    def post(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Change something; False when it was so already."""
        return self._write("POST", path, body, query)

    def delete(self, path: str, **query: str | bool) -> bool:
        """Delete something; False when it did not exist."""
        return self._ask("DELETE", path, None, query, passes=_NOT_FOUND)[0] != _NOT_FOUND

    def _write(self, method: str, path: str, body: object, query: Query) -> bool:
        return self._ask(method, path, body, query, passes=_CONFLICT)[0] != _CONFLICT

    def _ask(
        self, method: str, path: str, body: object, query: Query, *, passes: int, shape: TypeAdapter[Any] | None = None
    ) -> tuple[int, Any]:
        def once() -> tuple[int, Any]:
            self._check_whose_it_is()
            answer = self._request(method, path, body, query)
            return answer.status, answer.value(shape, passes)

        found: tuple[int, Any] = self._retry(once)
        return found

    def _retry(self, once: Callable[[], Any]) -> Any:
        if not self._unavailable_s:
            return once()
        wait = wait_exponential_jitter(multiplier=0.1, max=1, jitter=0.1)
        return Retrying(stop=self._is_enough, wait=wait, retry=retry_if_exception(_may_pass), reraise=True)(once)

    def _is_enough(self, state: RetryCallState) -> bool:
        error = state.outcome and state.outcome.exception()
        late = (state.seconds_since_start or 0) >= self._unavailable_s
        return late or (isinstance(error, ClusterUnreachable) and state.attempt_number >= _ATTEMPTS)

    def _check_whose_it_is(self) -> None:
        if self._check_name and self._configuration is None:
            self._identify()

    def _identify(self) -> BrokerConfiguration:
        configuration = self._request("GET", _RUNTIME, None, {}).value(CONFIGURATION, 0)
        assert configuration is not None  # no status passes
        if configuration.cluster != self.cluster:
            raise WrongCluster(self.cluster, self.url, f"cluster {configuration.cluster}")
        self._configuration = configuration
        return configuration

    def _request(
        self, method: str, path: str, body: object, query: Query, *, unread_with: str | None = None
    ) -> RestAnswer:
        """The whole answer of the first host that accepts a connection; failed hosts move to the end of the list.

        `unread_with`: the body of an answer with this header is not read if it is long.
        """
        # The bound counts bytes as they come in: a packed answer could grow far beyond it.
        headers = {"Accept-Encoding": "identity"} | (
            {"Authorization": f"Bearer {self._token()}"} if self._token else {}
        )
        action, hosts = f"{method} {path}", self._hosts
        for number, host in enumerate(hosts, start=1):
            try:
                address = urljoin(f"{host}/admin/v2/", path)
                request = self._http.build_request(method, address, json=body, params=query or None, headers=headers)
                answer = self._exchange(action, request, unread_with)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as broken:
                if isinstance(broken, httpx.ConnectError | httpx.ConnectTimeout):
                    self._hosts = hosts[number:] + hosts[:number]
                    if number < len(hosts):
                        continue
                kind = NoConnection if isinstance(broken, httpx.ConnectError) else ClusterUnreachable
                raise kind(self.cluster, self.url, f"{action}: {broken!r}") from broken
            # The token may have ended since the client was opened; the answer does not say so.
            if answer.status == _UNAUTHORISED and (problem := self.access.token_problem(time.time())):
                raise AdminRefused(self.cluster, action, answer.status, problem)
            return answer
        raise AssertionError("an address has a host")

    def _exchange(self, action: str, request: httpx.Request, unread_with: str | None) -> RestAnswer:
        deadline_s = time.monotonic() + self._timeout_s
        is_last = request.method != "GET"
        for _ in range(_MAX_REDIRECTS):
            try:
                with closing(self._http.send(request, stream=True)) as answer:
                    if not answer.has_redirect_location:
                        is_short = unread_with is not None and unread_with in answer.headers
                        return RestAnswer(
                            cluster=self.cluster,
                            url=self.url,
                            action=action,
                            status=answer.status_code,
                            content_type=answer.headers.get("content-type", ""),
                            body=self._body(answer, deadline_s, is_short=is_short),
                            headers=dict(answer.headers),
                        )
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if is_last:
                    raise
                is_last = True  # a connection that was kept may have been closed meanwhile: a second try shows it
                continue
            request = self._redirected(request, answer)
        raise ClusterUnreachable(self.cluster, self.url, f"it redirected {_MAX_REDIRECTS} times")

    def _body(self, answer: httpx.Response, deadline_s: float, *, is_short: bool) -> bytes:
        """`is_short`: the beginning is enough. An unread body costs the connection, so short ones are read."""
        body = bytearray()
        for part in answer.iter_raw():
            body += part
            if is_short and len(body) > _SHORT_BYTES:
                break
            if len(body) > MAX_BYTES:
                raise ClusterUnreachable(self.cluster, self.url, f"an answer of more than {MAX_BYTES} bytes")
            # A time-out of httpx is one for each piece of an answer; this one is for all of it.
            if time.monotonic() > deadline_s:
                raise ClusterUnreachable(self.cluster, self.url, f"no whole answer within {self._timeout_s:g} s")
        return bytes(body)

    def _redirected(self, request: httpx.Request, answer: httpx.Response) -> httpx.Request:
        # A broker redirects to the one that owns the topic. By hand, because httpx does not send it our token.
        target = request.url.join(answer.headers["location"])
        if request.url.scheme == "https" and target.scheme != "https":
            raise ClusterUnreachable(self.cluster, self.url, "it redirected to an address without TLS")
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return httpx.Request(
            request.method, target, headers=headers, content=request.content, extensions=request.extensions
        )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ClusterUnreachable) or (isinstance(error, AdminRefused) and error.status >= _SERVER_ERROR)
