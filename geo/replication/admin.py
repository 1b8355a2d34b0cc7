"""A cluster's admin REST interface: bounded in time and size, and its errors are ours."""

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from threading import Event, Timer
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urljoin

import httpx
from pydantic import TypeAdapter
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from geo.replication.errors import AdminRefused, ClusterUnreachable, NoConnection, UnusableAccess, WrongCluster
from geo.replication.rest_response import (
    MAX_BYTES,
    MESSAGE_ID_HEADER,
    RestRequest,
    RestResponse,
    parse_entry_response,
    parse_response,
)
from geo.replication.rest_types import BROKER, CONFIGURATION, BrokerConfiguration, BrokerLookup
from runtime import load_key_pair
from runtime.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken

__all__ = ["AdminClient", "is_addressable", "tls_context", "topic_path"]

_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
_MAX_REDIRECTS = 4
_MAX_CONNECTIONS = 32
_SHORT_BYTES = 64 << 10
_MAX_QUOTED = 4096  # Pulsar takes a request of 8 KiB, headers and token included
_NOT_FOUND, _CONFLICT, _SERVER_ERROR = 404, 409, 500
_RUNTIME = "brokers/configuration/runtime"
_LOOKUP = "../../lookup/v2/topic"
_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | list[Any])

_ANYBODY = PulsarAccess()

_Value = TypeVar("_Value")
_Query = Mapping[str, str | bool]


def topic_path(topic: str) -> str:
    """The path of tenant/namespace/topic below /admin/v2."""
    tenant, namespace, name = topic.split("/", 2)
    return f"persistent/{tenant}/{namespace}/{quote(name, safe='')}"


def is_addressable(topic: str) -> bool:
    """Whether the admin interface can be asked about a topic that exists: any producer can make one of such a name."""
    name = topic.rpartition("/")[2]
    return name not in ("", ".", "..") and "\0" not in name and len(quote(topic)) <= _MAX_QUOTED


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
        self._base = f"{url}/admin/v2/"
        self._timeout_s, self._unavailable_s = timeout_s, unavailable_s
        self._check_name = check_name
        self._configuration: BrokerConfiguration | None = None
        self._connections: deque[Any] = deque(maxlen=_MAX_CONNECTIONS)
        try:
            self._token = PulsarToken(access)
            self._http = httpx.Client(timeout=timeout_s, verify=tls_context(access))
        except PulsarAccessError as error:
            raise UnusableAccess(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

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

    def _write(self, method: str, path: str, body: object, query: _Query) -> bool:
        return self._ask(method, path, body, query, passes=_CONFLICT)[0] != _CONFLICT

    def _ask(
        self, method: str, path: str, body: object, query: _Query, *, passes: int, shape: TypeAdapter[Any] | None = None
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
        found = parse_response(self._rest_request("GET", _RUNTIME), answer, CONFIGURATION, 0)
        assert found is not None  # no status passes
        if found.cluster != self.cluster:
            raise WrongCluster(self.cluster, self.url, f"cluster {found.cluster}")
        self._configuration = found
        return found

    def _rest_request(self, method: str, path: str) -> RestRequest:
        return RestRequest(self.cluster, self.url, f"{method} {path}")

    def _request(
        self, method: str, path: str, body: object, query: _Query, *, unread_with: str | None = None
    ) -> RestResponse:
        """`unread_with`: the body of an answer with this header is not read if it is long."""
        # A compressed answer could unpack to any size.
        headers = {"Accept-Encoding": "identity"} | (
            {"Authorization": f"Bearer {self._token()}"} if self._token else {}
        )
        request = self._http.build_request(
            method,
            urljoin(self._base, path),
            json=body,
            params=query or None,
            headers=headers,
            extensions={"trace": self._note_connection},
        )
        # A time-out of httpx is one for each piece of an answer; this one is for all of it.
        late = Event()
        timer = Timer(self._timeout_s, self._cut, [late])
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchange(request, late, unread_with)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as broken:
            kind = NoConnection if isinstance(broken, httpx.ConnectError) else ClusterUnreachable
            raise kind(self.cluster, self.url, self._why(method, path, late, broken)) from broken
        finally:
            timer.cancel()
        if late.is_set():  # what was cut may look like an end
            raise ClusterUnreachable(self.cluster, self.url, self._why(method, path, late))
        return answer

    def _why(self, method: str, path: str, late: Event, broken: Exception | None = None) -> str:
        ended = f"no whole answer within {self._timeout_s:g} s" if late.is_set() else repr(broken)
        return f"{method} {path}: {ended}"

    def _exchange(self, request: httpx.Request, late: Event, unread_with: str | None) -> RestResponse:
        try:
            return self._follow(request, unread_with)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if request.method != "GET" or late.is_set():
                raise
            # Whether it was this answer that broke off, or nobody is there any more, a second try tells at once.
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
        raise ClusterUnreachable(self.cluster, self.url, f"it redirected {_MAX_REDIRECTS} times")

    def _body(self, answer: httpx.Response, *, short: bool) -> bytes:
        """`short`: its beginning is enough. To leave a body unread costs a connection, so what is short is read."""
        body = bytearray()
        for part in answer.iter_raw():
            body += part
            if short and len(body) > _SHORT_BYTES:
                break
            if len(body) > MAX_BYTES:
                raise ClusterUnreachable(self.cluster, self.url, f"an answer of more than {MAX_BYTES} bytes")
        return bytes(body)

    def _note_connection(self, event: str, found: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._connections.append(found["return_value"])

    def _cut(self, late: Event) -> None:
        late.set()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _redirected(self, request: httpx.Request, answer: httpx.Response) -> httpx.Request:
        # A broker that does not own a topic names the one that does. By hand, because httpx keeps our token from it.
        target = request.url.join(answer.headers["location"])
        if request.url.scheme == "https" and target.scheme != "https":
            raise ClusterUnreachable(self.cluster, self.url, "it redirected to an address without TLS")
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return httpx.Request(
            request.method, target, headers=headers, content=request.content, extensions=request.extensions
        )


def tls_context(access: PulsarAccess) -> ssl.SSLContext:
    """How to know who they are, and how to show who we are, on a connection with TLS. Raises PulsarAccessError."""
    pair = access.key_pair()
    if access.tls_trust_certs_file is None and pair is None and access.tls_validate_hostname:
        return _usual_context()
    try:
        trusted = access.tls_trust_certs_file
        context = ssl.create_default_context(cafile=str(trusted)) if trusted else httpx.create_ssl_context()
        if pair:
            load_key_pair(context, *pair)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(file) for file in (access.tls_trust_certs_file, *(pair or ())) if file)
        raise PulsarAccessError(f"the TLS files cannot be used ({files}): {error}") from error
    context.check_hostname = access.tls_validate_hostname
    return context


@cache
def _usual_context() -> ssl.SSLContext:
    """Building one takes 20 ms: it reads every certificate of the machine."""
    return httpx.create_ssl_context()


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ClusterUnreachable) or (isinstance(error, AdminRefused) and error.status >= _SERVER_ERROR)
