"""What each role may do on real clusters: tried with its token, without sending, reading or changing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pulsar

from geo.replication import AdminClient, AdminRefused, Topology
from geo.replication.cluster_state import address
from geo.replication.topic_naming import topic_path
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client

# In no topology: a topic that nobody may create, and a subscription that does not exist.
NEW = "waybill-verify"
# No message is as old as this, so a command that is allowed expires nothing.
NOTHING_S = 2_147_483_647


class TriedRight(NamedTuple):
    cluster: str
    role: str
    action: str
    resource: str
    was_allowed: bool

    def __str__(self) -> str:
        return f"{self.cluster}: {self.role} {'may' if self.was_allowed else 'may not'} {self.action} {self.resource}"


def try_rights(topology: Topology, clients: Mapping[str, AdminClient], tokens: Path) -> list[TriedRight]:
    """Every role on every topic where it has a right, on one where it has none, on a broker's own and on a new one."""
    pairs = [(admin, role) for admin in clients.values() for role in topology.roles_by_name()]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda pair: list(_tried(topology, pair[0], pair[1], tokens)), pairs)
        return [right for rights in found for right in rights]


def _tried(topology: Topology, operator: AdminClient, role: str, tokens: Path) -> Iterator[TriedRight]:
    cluster = operator.cluster
    access = PulsarAccess(token_file=tokens / f"{role}.token", tls_ca=operator.access.tls_ca)
    is_superuser = role in topology.superusers()
    client = open_pulsar_client(address(topology, cluster).service_url, access, timeout_s=5)
    with AdminClient(cluster, operator.url, access=access, check_name=False, unavailable_s=0) as admin:
        try:
            for topic in _topics(topology, cluster, role, is_superuser):
                for action in ("produce", "consume"):
                    yield TriedRight(cluster, role, action, topic, _opens(client, topic, action))
        finally:
            client.close()
        for action, resource, path in () if is_superuser else _commands(topology, cluster, role):
            yield TriedRight(cluster, role, action, resource, _takes(admin, path))


def _topics(topology: Topology, cluster: str, role: str, is_superuser: bool) -> Iterator[str]:
    for namespace, (_, clusters) in topology.placed().items():
        if cluster in clusters:
            grants = topology.grants(cluster, namespace)
            is_known = is_superuser or any(role in roles for roles in grants.values())
            yield from [*grants] if is_known else [*grants][:1]
            if not is_superuser:
                yield from (f"{namespace}/__change_events", f"{namespace}/{NEW}")


def _commands(topology: Topology, cluster: str, role: str) -> Iterator[tuple[str, str, str]]:
    for namespace, (_, clusters) in topology.placed().items():
        if cluster not in clusters:
            continue
        yield "clear backlogs of", namespace, f"namespaces/{namespace}/clearBacklog/{NEW}"
        for topic, roles in topology.grants(cluster, namespace).items():
            if "consume" in roles.get(role, ()):
                for name in topology.subscription_roles(cluster, namespace):
                    path = f"{topic_path(topic)}/subscription/{quote(name, safe='')}/expireMessages/{NOTHING_S}"
                    yield "expire messages of", f"{topic} {name}", path


def _takes(admin: AdminClient, path: str) -> bool:
    try:
        admin.post(path)
    except AdminRefused as refused:
        if refused.status in (401, 403):
            return False
        # the right is checked first
        if refused.status not in (404, 409, 412):
            raise
    return True


def _opens(client: Any, topic: str, action: str) -> bool:
    name = f"persistent://{topic}"
    try:
        if action == "produce":
            client.create_producer(name).close()
        else:
            client.create_reader(name, pulsar.MessageId.latest).close()
    except (pulsar.AuthorizationError, pulsar.AuthenticationError):
        return False
    except pulsar.TopicNotFound:
        pass  # the right is checked first
    return True
