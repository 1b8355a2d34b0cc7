"""A cluster's admin REST interface: bounded in time and size, and its errors are ours."""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event, Timer
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
from geo.replication.rest_types import BROKER, CONFIGURATION, BrokerConfiguration, BrokerLookup
from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken, access_tls_context
from waybill.record import InvalidJson, parse_json
from waybill.settings import one_line

# What an admin address answered, checked before anything is made of it. Pure.

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


# One request to a cluster's admin REST: a whole answer within a time and a size, or an error of ours.

_MAX_REDIRECTS = 4
_MAX_CONNECTIONS = 32
_SHORT_BYTES = 64 << 10

Query = Mapping[str, str | bool]


class AdminTransport:
    """Kept-alive connections to one cluster, with our token and our certificate; also for several threads."""

    def __init__(self, cluster: str, url: str, access: PulsarAccess, timeout_s: float) -> None:
        """Raises UnusableAccess."""
        self._cluster, self._url = cluster, url
        self._hosts = each_host(url)
        self._timeout_s = timeout_s
        self._connections: deque[Any] = deque(maxlen=_MAX_CONNECTIONS)
        # of several hosts one that is gone leaves time for the others
        connecting = httpx.Timeout(timeout_s, connect=timeout_s / len(self._hosts))
        try:
            access.check_token(time.time())
            self._token = PulsarToken(access)
            self._http = httpx.Client(timeout=connecting, verify=access_tls_context(access))
        except PulsarAccessError as error:
            raise UnusableAccess(str(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(
        self, method: str, path: str, body: object, query: Query, *, unread_with: str | None = None
    ) -> RestResponse:
        """The whole answer; `unread_with`: the body of one with this header is not read if it is long.

        Raises ClusterUnreachable without a whole answer in time; NoConnection where nobody listens.
        """
        # The bound counts bytes as they come in: a packed answer could grow far beyond it.
        headers = {"Accept-Encoding": "identity"} | (
            {"Authorization": f"Bearer {self._token()}"} if self._token else {}
        )
        hosts = self._hosts
        requests = [
            self._http.build_request(
                method,
                urljoin(f"{host}/admin/v2/", path),
                json=body,
                params=query or None,
                headers=headers,
                extensions={"trace": self._note_connection},
            )
            for host in hosts
        ]
        # A time-out of httpx is one for each piece of an answer; this one is for all of it.
        late = Event()
        timer = Timer(self._timeout_s, self._cut, [late])
        timer.daemon = True
        timer.start()
        try:
            answer = self._first_answer(dict(zip(hosts, requests, strict=True)), late, unread_with)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as broken:
            kind = NoConnection if isinstance(broken, httpx.ConnectError) else ClusterUnreachable
            raise kind(self._cluster, self._url, self._why(method, path, late, broken)) from broken
        finally:
            timer.cancel()
        if late.is_set():  # what was cut may look like an end
            raise ClusterUnreachable(self._cluster, self._url, self._why(method, path, late))
        return answer

    def _why(self, method: str, path: str, late: Event, broken: Exception | None = None) -> str:
        ended = f"no whole answer within {self._timeout_s:g} s" if late.is_set() else repr(broken)
        return f"{method} {path}: {ended}"

    def _first_answer(
        self, requests: Mapping[str, httpx.Request], late: Event, unread_with: str | None
    ) -> RestResponse:
        """Of the first host that can be connected to: nothing was sent to those before it, which come last from now."""
        hosts = tuple(requests)
        for number, host in enumerate(hosts, start=1):
            try:
                return self._exchange(requests[host], late, unread_with)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                self._hosts = hosts[number:] + hosts[:number]
                if late.is_set() or number == len(hosts):
                    raise
        raise AssertionError("an address has a host")

    def _exchange(self, request: httpx.Request, late: Event, unread_with: str | None) -> RestResponse:
        try:
            return self._follow(request, unread_with)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if request.method != "GET" or late.is_set():
                raise
            # Whether it was this answer that broke off, or nobody is there any more, a second try shows at once.
            return self._follow(request, unread_with)

    def _follow(self, request: httpx.Request, unread_with: str | None) -> RestResponse:
        for _ in range(_MAX_REDIRECTS):
            answer = self._http.send(request, stream=True)
            try:
                if not answer.has_redirect_location:
                    short = unread_with is not None and unread_with in answer.headers
                    kind, body = answer.headers.get("content-type", ""), self._body(answer, short=short)
                    return RestResponse(answer.status_code, kind, body, dict(answer.headers))
            finally:
                answer.close()
            request = self._redirected(request, answer)
        raise ClusterUnreachable(self._cluster, self._url, f"it redirected {_MAX_REDIRECTS} times")

    def _body(self, answer: httpx.Response, *, short: bool) -> bytes:
        """`short`: its beginning is enough. To leave a body unread costs a connection, so what is short is read."""
        body = bytearray()
        for part in answer.iter_raw():
            body += part
            if short and len(body) > _SHORT_BYTES:
                break
            if len(body) > MAX_BYTES:
                raise ClusterUnreachable(self._cluster, self._url, f"an answer of more than {MAX_BYTES} bytes")
        return bytes(body)

    def _note_connection(self, event: str, event_data: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._connections.append(event_data["return_value"])

    def _cut(self, late: Event) -> None:
        # First: the thread that the cut wakes looks here to know why its answer ended.
        late.set()
        # Of a copy: other threads open connections meanwhile.
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                # A close() would not wake the thread that reads from it.
                connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _redirected(self, request: httpx.Request, answer: httpx.Response) -> httpx.Request:
        # A broker that does not own a topic names the one that does. By hand, because httpx keeps our token from it.
        target = request.url.join(answer.headers["location"])
        if request.url.scheme == "https" and target.scheme != "https":
            raise ClusterUnreachable(self._cluster, self._url, "it redirected to an address without TLS")
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return httpx.Request(
            request.method, target, headers=headers, content=request.content, extensions=request.extensions
        )


_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
_CONFLICT = 409
_RUNTIME = "brokers/configuration/runtime"
_LOOKUP = "../../lookup/v2/topic"
_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | list[Any])

_ANYBODY = PulsarAccess()


class AdminClient:
    """One cluster's admin interface, also for several threads. Use it as a context manager, or call `close`.

    Before its first request it asks the address for its cluster's name, and raises WrongCluster when it is another's:
    nothing is read from or written to a cluster that was not meant. Only an administrator may ask that; who is none
    takes `check_name` away. Raises ClusterUnreachable when there is no whole answer within `timeout_s`, or one that is
    not Pulsar's (NoConnection where nobody listens), and AdminRefused when the answer is an error.

    A question that was not answered is asked three times in all. An error of the server itself (5xx: just after a start
    a broker has no bookie yet) is asked again for `unavailable_s`; so is a command, as each of ours may be given twice.
    With 0 nothing is asked again, but for a question of which the kept-alive connection broke.
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
        self._transport = AdminTransport(cluster, url, access, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def get(self, path: str, shape: TypeAdapter[_Value] = _ANY, **query: str | bool) -> _Value | None:
        """The JSON answer, of that shape; None when Pulsar says that the thing does not exist."""
        value: _Value | None = self._ask("GET", path, None, query, passes=_NOT_FOUND, shape=shape)[1]
        return value

    def configuration(self) -> BrokerConfiguration:
        """The broker's configuration as it runs. Raises WrongCluster when it is another cluster's."""
        found: BrokerConfiguration = self._configuration or self._retry(self._identify)
        return found

    def broker_of(self, topic_path: str, *, secure: bool) -> str:
        """The address of the broker that serves a topic, with TLS or not. Raises AdminRefused where there is none."""
        found = self.get(f"{_LOOKUP}/{topic_path}", BROKER) or BrokerLookup()
        address = found.get("brokerUrlTls") if secure else found.get("brokerUrl")
        if not address:
            raise AdminRefused(self.cluster, f"GET {_LOOKUP}/{topic_path}", _NOT_FOUND, "no broker has such an address")
        return address

    def entry_headers(self, topic_path: str, ledger: int, entry: int) -> Mapping[str, str] | None:
        """The headers of a stored entry, long content left where it is; none at all where the broker cannot unpack it.

        None when it is not stored any more.
        """
        path = f"{topic_path}/ledger/{ledger}/entry/{entry}"

        def once() -> Mapping[str, str] | None:
            self._check_whose_it_is()
            answer = self._request("GET", path, None, {}, unread_with=MESSAGE_ID_HEADER)
            return parse_entry_response(self._rest_request("GET", path), answer)

        found: Mapping[str, str] | None = self._retry(once)
        return found

    def put(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Create something; False when it was there already."""
        return self._write("PUT", path, body, query)

    def post(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Change something; False when it was so already."""
        return self._write("POST", path, body, query)

    def delete(self, path: str, **query: str | bool) -> bool:
        """Delete something; False when it was not there."""
        return self._ask("DELETE", path, None, query, passes=_NOT_FOUND)[0] != _NOT_FOUND

    def _write(self, method: str, path: str, body: object, query: Query) -> bool:
        return self._ask(method, path, body, query, passes=_CONFLICT)[0] != _CONFLICT

    def _ask(
        self, method: str, path: str, body: object, query: Query, *, passes: int, shape: TypeAdapter[Any] | None = None
    ) -> tuple[int, Any]:
        def once() -> tuple[int, Any]:
            self._check_whose_it_is()
            answer = self._request(method, path, body, query)
            return answer.status, parse_response(self._rest_request(method, path), answer, shape, passes)

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
        answer = self._request("GET", _RUNTIME, None, {})
        configuration = parse_response(self._rest_request("GET", _RUNTIME), answer, CONFIGURATION, 0)
        assert configuration is not None  # no status passes
        if configuration.cluster != self.cluster:
            raise WrongCluster(self.cluster, self.url, f"cluster {configuration.cluster}")
        self._configuration = configuration
        return configuration

    def _rest_request(self, method: str, path: str) -> RestRequest:
        return RestRequest(self.cluster, self.url, f"{method} {path}")

    def _request(
        self, method: str, path: str, body: object, query: Query, *, unread_with: str | None = None
    ) -> RestResponse:
        answer = self._transport.request(method, path, body, query, unread_with=unread_with)
        # Since it was opened the token may have ended, and its answer does not say which.
        if answer.status == _UNAUTHORISED and (problem := self.access.token_problem(time.time())):
            raise AdminRefused(self.cluster, f"{method} {path}", answer.status, problem)
        return answer


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ClusterUnreachable) or (isinstance(error, AdminRefused) and error.status >= _SERVER_ERROR)
