"""A cluster's admin REST interface: bounded in time and size, and its errors are ours."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from geo.replication.errors import AdminRefused, ClusterUnreachable, WrongCluster
from geo.replication.rest_response import (
    MESSAGE_ID_HEADER,
    RestRequest,
    RestResponse,
    parse_entry_response,
    parse_response,
)
from geo.replication.rest_types import BROKER, CONFIGURATION, BrokerConfiguration, BrokerLookup
from geo.replication.transport import AdminTransport, Query
from waybill.pulsar.pulsar_client import PulsarAccess

__all__ = ["AdminClient"]

_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_UNAVAILABLE_S = 15.0
_UNAUTHORISED, _NOT_FOUND, _CONFLICT, _SERVER_ERROR = 401, 404, 409, 500
_RUNTIME = "brokers/configuration/runtime"
_LOOKUP = "../../lookup/v2/topic"
_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any] | list[Any])

_ANYBODY = PulsarAccess()

_Value = TypeVar("_Value")


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
