"""The few questions that the source asks a cluster's admin REST, each bounded in time."""

from collections.abc import Mapping
from typing import Any

import httpx

from cloud_jobs.pulsar_source.errors import AccessRefused, ClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import Access, Cluster
from cloud_jobs.pulsar_source.topics import TopicName, split_partition

_MOST_REDIRECTS = 3


class Admin:
    """One cluster's admin REST over kept-alive connections."""

    def __init__(self, cluster: Cluster, access: Access, timeout_s: float) -> None:
        token = access.bearer()
        certificate = (str(access.tls_certificate_file), str(access.tls_key_file)) if access.tls_key_file else None
        self.cluster = cluster
        self._partitioned: dict[TopicName, bool] = {}
        self._http = httpx.Client(
            base_url=f"{cluster.admin_url}/admin/v2/",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            verify=_verify(access, certificate),
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def states(self, topic: TopicName, subscription: str) -> dict[str, TopicState]:
        """Each partition's full name -> its state; a topic that is not partitioned is its only partition."""
        if topic not in self._partitioned:
            self._partitioned[topic] = self._get(f"{topic.path}/partitions", topic)["partitions"] > 0
        kind = "partitioned-internalStats" if self._partitioned[topic] else "internalStats"
        try:
            stats = self._get(f"{topic.path}/{kind}", topic)
        except TopicMissing:
            del self._partitioned[topic]  # it may come back in the other form
            raise
        parts = stats["partitions"] if self._partitioned[topic] else {str(topic): stats}
        return {name: TopicState.from_stats(rows, subscription) for name, rows in sorted(parts.items())}

    def topics(self, namespace: TopicName) -> list[TopicName]:
        """The topics of a namespace, a partitioned one once."""
        path = f"persistent/{namespace.tenant}/{namespace.namespace}"
        plain = {split_partition(name)[0] for name in self._get(path, namespace)}
        return sorted(TopicName.parse(name) for name in plain | set(self._get(f"{path}/partitioned", namespace)))

    def clusters(self) -> frozenset[str]:
        """The names of the clusters that this one knows, itself included; empty when we may not ask."""
        try:
            return frozenset(self._get("clusters", None))
        except AccessRefused:
            return frozenset()

    def _get(self, path: str, topic: TopicName | None) -> Any:
        doing = f"GET {path}"
        try:
            response = self._http.get(path)
            for _ in range(_MOST_REDIRECTS):
                if not response.has_redirect_location:
                    break
                # A broker that does not own the topic names the one that does. Followed by hand: httpx would not show
                # our token to the other broker.
                response = self._http.get(response.headers["location"])
        except httpx.HTTPError as error:
            raise ClusterUnreachable(self.cluster.name, doing, repr(error)) from error
        if response.status_code == httpx.codes.NOT_FOUND and topic is not None:
            raise TopicMissing(self.cluster.name, str(topic))
        if response.is_client_error:
            raise AccessRefused(self.cluster.name, doing, _reason(response))
        if not response.is_success:
            raise ClusterUnreachable(self.cluster.name, doing, _reason(response))
        return response.json()


def _verify(access: Access, certificate: tuple[str, str] | None) -> Any:
    if access.tls_trust_certs_file is None and certificate is None and access.tls_validate_hostname:
        return True
    context = httpx.create_ssl_context()
    if access.tls_trust_certs_file:
        context.load_verify_locations(cafile=str(access.tls_trust_certs_file))
    if certificate:
        context.load_cert_chain(*certificate)
    context.check_hostname = access.tls_validate_hostname
    return context


def _reason(response: httpx.Response) -> str:
    body: Any = None
    if response.headers.get("content-type", "").startswith("application/json"):
        body = response.json()
    detail = body.get("reason") if isinstance(body, Mapping) else response.text[:200]
    return f"{response.status_code} {detail}"
