"""The few questions that the source asks a cluster's admin REST, each bounded in time and size."""

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any
from urllib.parse import quote, urljoin
from uuid import uuid4

import httpx
from pydantic import TypeAdapter

from cloud_jobs.pulsar_source.cluster.admin_response import (
    BROKER,
    MAX_BYTES,
    NAMES,
    PARTITIONED_STATS,
    PARTITIONS,
    PROPERTIES,
    STATS,
    AdminRequest,
    AdminResponse,
    judge_created,
    parse_entry_response,
    parse_response,
)
from cloud_jobs.pulsar_source.cluster.credentials import Token
from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, SubscriptionProperties
from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    NamespaceMissing,
    OptionError,
    SourceClusterUnreachable,
    SourceConnectionRefused,
    TopicMissing,
)
from cloud_jobs.pulsar_source.options import Access, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.topics import TopicListing, TopicName
from runtime import load_key_pair

_MAX_REDIRECTS = 3
_SHORT_BYTES = 64 << 10
_MESSAGE_ID_HEADER = "x-pulsar-message-id"
_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class PulsarAdmin:
    """One cluster's admin REST over kept-alive connections. Its calls raise what `admin_response` names."""

    def __init__(
        self, cluster: SourceCluster, access: Access, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster = cluster
        self._token = Token(access)
        self._timeout_s = timeout_s
        self._clock = clock
        self._partitioned: dict[TopicName, bool] = {}
        self._base = f"{cluster.admin_url}/admin/v2/"
        # A compressed answer could unpack to any size.
        self._http = httpx.Client(
            headers={"Accept-Encoding": "identity"}, timeout=timeout_s, verify=tls_context(access)
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def partition_states(self, topic: TopicName, subscription: str) -> dict[str, PartitionState]:
        """Each partition's full name -> its state; a topic that is not partitioned is its only partition.

        Left out is only a partition of which Pulsar says that it does not exist.
        """
        if topic not in self._partitioned:
            self._partitioned[topic] = self._count(topic) > 0
        try:
            if self._partitioned[topic]:
                return self._partition_states(topic, subscription)
            stats = self._get(f"{topic.path}/internalStats", topic, STATS)
        except TopicMissing:
            self._partitioned.pop(topic, None)  # it may come back in the other form
            raise
        return {str(topic): self._state(str(topic), stats, subscription)}

    def partitions(self, topic: TopicName) -> list[str]:
        """The full names of a topic's partitions; none where it is not partitioned."""
        count = self._count(topic)
        self._partitioned[topic] = count > 0
        return [f"{topic}-partition-{number}" for number in range(count)]

    def _partition_states(self, topic: TopicName, subscription: str) -> dict[str, PartitionState]:
        response = self._get(f"{topic.path}/partitioned-internalStats", topic, PARTITIONED_STATS)
        found = response.get("partitions", {})
        states = {name: self._state(name, stats, subscription) for name, stats in found.items()}
        # Pulsar answers 200 without the partitions that did not answer it, and without their number where none did.
        count = response["metadata"]["partitions"] if found else self._count(topic)
        for name in {f"{topic}-partition-{number}" for number in range(count)} - states.keys():
            with suppress(TopicMissing):
                states[name] = self.partition_state(name, subscription)
        return dict(sorted(states.items()))

    def _count(self, topic: TopicName) -> int:
        found: int = self._get(f"{topic.path}/partitions", topic, PARTITIONS)["partitions"]
        return found

    def partition_state(self, partition: str, subscription: str) -> PartitionState:
        """One topic partition as it stands now."""
        name = TopicName.parse(partition)
        return self._state(partition, self._get(f"{name.path}/internalStats", name, STATS), subscription)

    def read_positions(self, partition: str) -> dict[str, LedgerPosition]:
        """Each cursor of a topic partition, those of readers too -> the next entry that the broker reads for it."""
        name = TopicName.parse(partition)
        cursors = self._get(f"{name.path}/internalStats", name, STATS)["cursors"]
        try:
            return {cursor: LedgerPosition.parse(row["readPosition"]) for cursor, row in cursors.items()}
        except (KeyError, ValueError) as error:
            detail = f"no statistics of Pulsar: {error!r}"
            raise SourceClusterUnreachable(self.cluster.name, f"telling how far {name} was read", detail) from error

    def entry_headers(self, partition: str, position: LedgerPosition) -> Mapping[str, str] | None:
        """The headers of a stored entry, long content left where it is; none at all where the broker cannot unpack it.

        None when it is not stored any more.
        """
        name = TopicName.parse(partition)
        path = f"{name.path}/ledger/{position.ledger}/entry/{position.entry}"
        request = AdminRequest(self.cluster.name, f"GET {self._base}{path}", str(name))
        return parse_entry_response(request, self._send(request, "GET", path, None, only_headers_of=_MESSAGE_ID_HEADER))

    def broker_of(self, partition: str) -> str:
        """The address of the broker that serves a topic partition, with TLS where the cluster's address has it."""
        found = self._get(f"../../lookup/v2/topic/{TopicName.parse(partition).path}", None, BROKER)
        secure = self.cluster.service_url.startswith("pulsar+ssl:")
        return str(found["brokerUrlTls"] if secure else found["brokerUrl"])

    def _state(self, name: str, stats: Mapping[str, Any], subscription: str) -> PartitionState:
        try:
            return PartitionState.from_stats(stats, subscription)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"no statistics of Pulsar: {error!r}"
            raise SourceClusterUnreachable(self.cluster.name, f"telling how {name} stands", detail) from error

    def update_subscription_properties(
        self,
        partition: str,
        subscription: str,
        change: Callable[[SubscriptionProperties], SubscriptionProperties] = lambda notes: notes,
    ) -> SubscriptionProperties:
        """What is kept with the subscription, changed; begun now where there is nothing."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}/properties"
        properties = self._get(path, name, PROPERTIES)
        kept = SubscriptionProperties.from_properties(properties)
        notes = change(kept or SubscriptionProperties(uuid4().hex[:12]))
        if notes != kept:
            self._request("PUT", path, name, None, {**properties, **notes.to_properties()})
        return notes

    def subscribe(self, partition: str, subscription: str, properties: Mapping[str, str], *, replicated: bool) -> None:
        """Creates a durable subscription at the latest entry, with its properties; leaves one that is there alone."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}?replicated={str(replicated).lower()}"
        request = AdminRequest(self.cluster.name, f"PUT {self._base}{path}", str(name))
        judge_created(request, self._send(request, "PUT", path, {**_LATEST, "properties": dict(properties)}))

    def set_cursor(self, partition: str, subscription: str, since_ms: int | None) -> None:
        """Moves the cursor before the first message published at that time or later; None: before the earliest."""
        name = TopicName.parse(partition)
        path = f"{_subscription_path(name, subscription)}/resetcursor"
        if since_ms is None:
            self._request("POST", path, name, None, _EARLIEST)
        else:
            self._request("POST", f"{path}/{since_ms}", name, None)

    def list_topics(self, namespace: TopicName) -> TopicListing:
        """The topics of a namespace. Raises NamespaceMissing."""
        path = namespace.namespace_path
        try:
            plain = self._get(path, namespace, NAMES)
        except TopicMissing:
            raise NamespaceMissing(self.cluster.name, f"{namespace.tenant}/{namespace.namespace}") from None
        # Asked last: what became partitioned meanwhile is.
        return TopicListing.of(plain, frozenset(self._get(f"{path}/partitioned", namespace, NAMES)))

    def cluster_names(self) -> frozenset[str]:
        """The names of the clusters that this one knows, itself included; empty when we may not ask."""
        try:
            return frozenset(self._get("clusters", None, NAMES))
        except AccessRefused:
            return frozenset()

    def _get(self, path: str, topic: TopicName | None, shape: TypeAdapter[Any]) -> Any:
        return self._request("GET", path, topic, shape)

    def _request(
        self, method: str, path: str, topic: TopicName | None, shape: TypeAdapter[Any] | None, sent: Any = None
    ) -> Any:
        request = AdminRequest(self.cluster.name, f"{method} {self._base}{path}", str(topic) if topic else None)
        return parse_response(request, self._send(request, method, path, sent), shape)

    def _send(
        self, request: AdminRequest, method: str, path: str, sent: Any, *, only_headers_of: str | None = None
    ) -> AdminResponse:
        exchange = partial(self._exchange, request, method, urljoin(self._base, path), sent, only_headers_of)
        try:
            try:
                return exchange()
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if method != "GET":
                    raise
                # Whether it was this answer that broke off, or nobody is there any more, a second try tells at once.
                return exchange()
        except httpx.ConnectError as error:
            raise SourceConnectionRefused(self.cluster.name, request.action, repr(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceClusterUnreachable(self.cluster.name, request.action, repr(error)) from error

    def _exchange(
        self, request: AdminRequest, method: str, url: str, sent: Any, only_headers_of: str | None
    ) -> AdminResponse:
        """`only_headers_of`: the body of an answer with this header is not read if it is long."""
        deadline_s = self._clock() + self._timeout_s
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {"Authorization": f"Bearer {self._token()}"} if self._token else {}
            with self._http.stream(method, url, headers=headers, json=sent) as response:
                unread = only_headers_of is not None and only_headers_of in response.headers
                body = _short_body(response) if unread else self._read_body(response, request, deadline_s)
                if not response.has_redirect_location:
                    kind = response.headers.get("content-type", "")
                    return AdminResponse(response.status_code, kind, body, dict(response.headers))
            # A broker that does not own the topic names the one that does. Followed by hand: httpx would not show our
            # token to the other broker.
            url = self._redirect_target(url, response.headers["location"], request)
        raise SourceClusterUnreachable(self.cluster.name, request.action, f"more than {_MAX_REDIRECTS} redirects")

    def _redirect_target(self, url: str, location: str, request: AdminRequest) -> str:
        target = urljoin(url, location)
        if url.startswith("https:") and not target.startswith("https:"):
            detail = "a redirect to an address without TLS would show our token"
            raise SourceClusterUnreachable(self.cluster.name, request.action, detail)
        return target

    def _read_body(self, response: httpx.Response, request: AdminRequest, deadline_s: float) -> bytes:
        body = bytearray()
        for part in response.iter_raw():
            body += part
            if len(body) > MAX_BYTES:
                raise SourceClusterUnreachable(
                    self.cluster.name, request.action, f"an answer of more than {MAX_BYTES} bytes"
                )
            if self._clock() > deadline_s:
                detail = f"an answer that was not whole after {self._timeout_s:g} s"
                raise SourceClusterUnreachable(self.cluster.name, request.action, detail)
        return bytes(body)


def _subscription_path(topic: TopicName, subscription: str) -> str:
    return f"{topic.path}/subscription/{quote(subscription, safe='')}"


def _short_body(response: httpx.Response) -> bytes:
    """The content, or the beginning of it: to leave it unread costs another connection, so what is short is read."""
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > _SHORT_BYTES:
            break
    return bytes(body)


@cache
def _usual_context() -> ssl.SSLContext:
    """Building one takes 20 ms: it reads every certificate of the machine."""
    return httpx.create_ssl_context()


def tls_context(access: Access) -> ssl.SSLContext:
    """How to know who they are, and how to show who we are, on a connection with TLS."""
    certificate = (str(access.tls_certificate_file), str(access.tls_key_file)) if access.tls_key_file else None
    if access.tls_trust_certs_file is None and certificate is None and access.tls_validate_hostname:
        return _usual_context()
    context = httpx.create_ssl_context()
    try:
        if access.tls_trust_certs_file:
            context.load_verify_locations(cafile=str(access.tls_trust_certs_file))
        if certificate:
            load_key_pair(context, *certificate)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(file) for file in (access.tls_trust_certs_file, *(certificate or ())) if file)
        raise OptionError(f"the TLS files cannot be used ({files}): {error}") from error
    context.check_hostname = access.tls_validate_hostname
    return context
