"""A cluster's admin REST interface: bounded in time and size, and its errors are ours."""

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Timer
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from geo.replication.errors import AdminRefused, ClusterUnreachable, UnusableCa, WrongCluster
from geo.replication.rest_response import MAX_BYTES, RestRequest, RestResponse, parse_response
from geo.replication.rest_types import CONFIGURATION, BrokerConfiguration

__all__ = ["AdminClient", "is_addressable", "topic_path"]

_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
_MAX_REDIRECTS = 4
_MAX_CONNECTIONS = 32
_MAX_QUOTED = 4096  # Pulsar takes a request of 8 KiB, headers and token included
_NOT_FOUND, _CONFLICT, _SERVER_ERROR = 404, 409, 500
_RUNTIME = "brokers/configuration/runtime"
_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | list[Any])

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
    """One cluster's admin interface. Use it as a context manager, or call `close`.

    Before its first request it asks the address for its cluster's name, and raises WrongCluster when it is another's:
    nothing is read from or written to a cluster that was not meant. Raises ClusterUnreachable when there is no whole
    answer within `timeout_s`, or one that is not Pulsar's, and AdminRefused when the answer is an error.

    A question that was not answered is asked three times in all. An error of the server itself (5xx: just after a start
    a broker has no bookie yet) is asked again for `unavailable_s`; so is a command, as each of ours may be given twice.
    """

    def __init__(
        self,
        cluster: str,
        url: str,
        *,
        timeout_s: float = _TIMEOUT_S,
        unavailable_s: float = _UNAVAILABLE_S,
        token: str | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self.cluster, self.url = cluster, url
        self.token, self.ca_file = token, ca_file
        # A compressed answer could unpack to any size.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout_s, self._unavailable_s = timeout_s, unavailable_s
        self._http = httpx.Client(base_url=f"{url}/admin/v2/", timeout=timeout_s, verify=self._trusted())
        self._configuration: BrokerConfiguration | None = None
        self._connections: deque[Any] = deque(maxlen=_MAX_CONNECTIONS)

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
            if self._configuration is None:
                self._identify()
            answer = self._request(method, path, body, query)
            return answer.status, parse_response(self._rest_request(method, path), answer, shape, passes)

        found: tuple[int, Any] = self._retry(once)
        return found

    def _retry(self, once: Callable[[], Any]) -> Any:
        wait = wait_exponential_jitter(multiplier=0.1, max=1, jitter=0.1)
        return Retrying(stop=self._is_enough, wait=wait, retry=retry_if_exception(_may_pass), reraise=True)(once)

    def _is_enough(self, state: RetryCallState) -> bool:
        error = state.outcome and state.outcome.exception()
        late = (state.seconds_since_start or 0) >= self._unavailable_s
        return late or (isinstance(error, ClusterUnreachable) and state.attempt_number >= _ATTEMPTS)

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

    def _request(self, method: str, path: str, body: object, query: _Query) -> RestResponse:
        request = self._http.build_request(
            method, path, json=body, params=query, headers=self._headers, extensions={"trace": self._note_connection}
        )
        # A time-out of httpx is one for each piece of an answer; this one is for all of it.
        late = Event()
        timer = Timer(self._timeout_s, self._cut, [late])
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchange(request)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as broken:
            why = (
                f"no whole answer within {self._timeout_s:g} s"
                if late.is_set()
                else f"{type(broken).__name__}: {broken}"
            )
            raise ClusterUnreachable(self.cluster, self.url, why) from broken
        finally:
            timer.cancel()
        if late.is_set():  # what was cut may look like an end
            raise ClusterUnreachable(self.cluster, self.url, f"no whole answer within {self._timeout_s:g} s")
        return answer

    def _exchange(self, request: httpx.Request) -> RestResponse:
        for _ in range(_MAX_REDIRECTS):
            answer = self._http.send(request, stream=True)
            try:
                if not answer.has_redirect_location:
                    kind = answer.headers.get("content-type", "")
                    return RestResponse(answer.status_code, kind, self._body(answer))
            finally:
                answer.close()
            request = self._redirected(request, answer)
        raise ClusterUnreachable(self.cluster, self.url, f"it redirected {_MAX_REDIRECTS} times")

    def _body(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        for part in answer.iter_raw():
            body += part
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
        kind = request.headers.get("content-type")
        headers = self._headers | ({"content-type": kind} if kind else {})
        return httpx.Request(
            request.method, target, headers=headers, content=request.content, extensions=request.extensions
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except OSError as error:  # ssl.SSLError is one
            raise UnusableCa(self.ca_file, str(error)) from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ClusterUnreachable) or (isinstance(error, AdminRefused) and error.status >= _SERVER_ERROR)
