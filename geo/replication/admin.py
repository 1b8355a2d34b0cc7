"""A cluster's admin REST interface: bounded in time, and its errors are ours."""

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from geo.replication.errors import AdminRefused, ClusterUnreachable

__all__ = ["AdminClient", "topic_path"]

_TIMEOUT_S = 15.0
_ATTEMPTS = 3


def topic_path(topic: str) -> str:
    """The path of tenant/namespace/topic below /admin/v2."""
    tenant, namespace, name = topic.split("/", 2)
    return f"persistent/{tenant}/{namespace}/{quote(name, safe='')}"


class AdminClient:
    """One cluster's admin interface. Use it as a context manager, or call `close`.

    Raises ClusterUnreachable when there is no answer in time and AdminRefused when the answer is an error.
    """

    def __init__(self, cluster: str, url: str, *, timeout_s: float = _TIMEOUT_S, token: str | None = None) -> None:
        self.cluster, self.url = cluster, url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=f"{url}/admin/v2/", timeout=timeout_s, follow_redirects=True, headers=headers
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
        # Reading again is harmless, so a dropped connection is tried again; a write is the caller's to repeat.
        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential_jitter(multiplier=0.1, max=1),
            retry=retry_if_exception_type(ClusterUnreachable),
            reraise=True,
        )
        answer: httpx.Response = retrying(self._send, "GET", path, None, query)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        self._accept(answer)
        return answer.json() if answer.content else None

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

    def _send(self, method: str, path: str, body: object, query: dict[str, str | bool]) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body, params=query)
        except httpx.HTTPError as broken:
            raise ClusterUnreachable(self.cluster, self.url, f"{type(broken).__name__}: {broken}") from broken

    def _accept(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        try:
            reason = str(answer.json().get("reason", answer.text))
        except ValueError:
            reason = answer.text[:300]
        request = f"{answer.request.method} {answer.request.url.path}"
        raise AdminRefused(self.cluster, request, answer.status_code, reason)
