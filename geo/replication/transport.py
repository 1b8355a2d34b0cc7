"""One request to a cluster's admin REST: a whole answer within a time and a size, or an error of ours."""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Mapping
from threading import Event, Timer
from typing import Any
from urllib.parse import urljoin

import httpx

from geo.replication.errors import ClusterUnreachable, NoConnection, UnusableAccess
from geo.replication.rest_response import MAX_BYTES, RestResponse
from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, PulsarToken
from waybill.pulsar.pulsar_tls import access_tls_context

__all__ = ["AdminTransport", "Query"]

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
