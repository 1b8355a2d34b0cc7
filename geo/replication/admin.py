"""A cluster's admin REST interface: bounded in time, and its errors are ours."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
)

from geo.replication.errors import AdminRefused, ClusterUnreachable, WrongCluster

__all__ = ["AdminClient", "topic_path"]

_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
"""For how long a request is repeated that a cluster answers with a 5xx: just after its start it has no bookie yet."""
_MOST_REDIRECTS = 4
_MOST_REASON = 300


def topic_path(topic: str) -> str:
    """The path of tenant/namespace/topic below /admin/v2."""
    tenant, namespace, name = topic.split("/", 2)
    return f"persistent/{tenant}/{namespace}/{quote(name, safe='')}"


class AdminClient:
    """One cluster's admin interface. Use it as a context manager, or call `close`.

    Before its first request it asks the address for its cluster's name, and raises WrongCluster when it is another's:
    nothing is read from or written to a cluster that was not meant. Raises ClusterUnreachable when there is no answer
    in time, or one that is not Pulsar's, and AdminRefused when the answer is an error. A 5xx is an error only once it
    has been the answer for `unavailable_s`: each request says how things are to be, so it can be made again.
    """

    def __init__(
        self,
        cluster: str,
        url: str,
        *,
        timeout_s: float = _TIMEOUT_S,
        unavailable_s: float = _UNAVAILABLE_S,
        token: str | None = None,
    ) -> None:
        self.cluster, self.url = cluster, url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=f"{url}/admin/v2/", timeout=timeout_s)
        self._configuration: Mapping[str, str] = {}
        self._available = Retrying(
            stop=stop_after_delay(unavailable_s),
            wait=wait_exponential_jitter(multiplier=0.1, max=1, jitter=0.1),
            retry=retry_if_result(lambda answer: answer.is_server_error),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, **query: str | bool) -> Any:
        """The JSON answer; None when the thing does not exist."""
        answer: httpx.Response = self._retrying()(self._send, "GET", path, None, query)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        self._accept(answer)
        return self._json(answer) if answer.content else None

    def configuration(self) -> Mapping[str, str]:
        """The broker's configuration as it runs. Raises WrongCluster when it is another cluster's."""
        if not self._configuration:
            self._retrying()(self._identify)
        return self._configuration

    def put(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Create something; False when it was there already."""
        return self._write("PUT", path, body, query)

    def post(self, path: str, body: object = None, **query: str | bool) -> bool:
        """Change something; False when it was so already."""
        return self._write("POST", path, body, query)

    def delete(self, path: str, **query: str | bool) -> bool:
        """Delete something; False when it was not there."""
        answer = self._send("DELETE", path, None, query)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        self._accept(answer)
        return True

    def _write(self, method: str, path: str, body: object, query: dict[str, str | bool]) -> bool:
        answer = self._send(method, path, body, query)
        if answer.status_code == httpx.codes.CONFLICT:
            return False
        self._accept(answer)
        return True

    def _retrying(self) -> Retrying:
        # Reading again is harmless, so a dropped connection is tried again; a write is the caller's to repeat.
        return Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential_jitter(multiplier=0.1, max=1, jitter=0.1),
            retry=retry_if_exception_type(ClusterUnreachable),
            reraise=True,
        )

    def _identify(self) -> None:
        answer = self._request("GET", "brokers/configuration/runtime", None, {})
        self._accept(answer)
        configuration = self._json(answer)
        found = configuration.get("clusterName") if isinstance(configuration, dict) else None
        if not isinstance(found, str):
            raise ClusterUnreachable(self.cluster, self.url, "its answer does not name a Pulsar cluster")
        if found != self.cluster:
            raise WrongCluster(self.cluster, self.url, found)
        self._configuration = configuration

    def _send(self, method: str, path: str, body: object, query: dict[str, str | bool]) -> httpx.Response:
        if not self._configuration:
            self._identify()
        return self._request(method, path, body, query)

    def _request(self, method: str, path: str, body: object, query: dict[str, str | bool]) -> httpx.Response:
        answer: httpx.Response = self._available(self._exchange, method, path, body, query)
        return answer

    def _exchange(self, method: str, path: str, body: object, query: dict[str, str | bool]) -> httpx.Response:
        try:
            request = self._http.build_request(method, path, json=body, params=query, headers=self._headers)
            for _ in range(_MOST_REDIRECTS):
                answer = self._http.send(request)
                if not answer.has_redirect_location:
                    return answer
                request = self._redirected(request, answer)
        except (httpx.HTTPError, httpx.InvalidURL) as broken:
            raise ClusterUnreachable(self.cluster, self.url, f"{type(broken).__name__}: {broken}") from broken
        raise ClusterUnreachable(self.cluster, self.url, f"it redirected {_MOST_REDIRECTS} times")

    def _redirected(self, request: httpx.Request, answer: httpx.Response) -> httpx.Request:
        # A broker that does not own a topic names the one that does. By hand, because httpx keeps our token from it.
        target = request.url.join(answer.headers["location"])
        if request.url.scheme == "https" and target.scheme != "https":
            raise ClusterUnreachable(self.cluster, self.url, "it redirected to an address without TLS")
        return httpx.Request(
            request.method,
            target,
            headers=self._body_headers(request),
            content=request.content,
            extensions=request.extensions,
        )

    def _body_headers(self, request: httpx.Request) -> dict[str, str]:
        kind = request.headers.get("content-type")
        return self._headers | ({"content-type": kind} if kind else {})

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            reason = f"it answered {answer.request.url.path} with status {answer.status_code} and no JSON"
            raise ClusterUnreachable(self.cluster, self.url, reason) from error

    def _accept(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        try:
            reason = str(answer.json().get("reason", ""))[:_MOST_REASON]
        except (ValueError, AttributeError, RecursionError):
            reason = answer.text[:_MOST_REASON]
        request = f"{answer.request.method} {answer.request.url.path}"
        raise AdminRefused(self.cluster, request, answer.status_code, reason)
