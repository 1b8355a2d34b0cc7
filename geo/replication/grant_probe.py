"""Tries with the tokens of roles what they may and what they must not: a right that is written is not yet one that is
kept."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar

from geo.replication.actual import read_defaults
from geo.replication.admin import AdminClient
from geo.replication.connection import ServiceAddress, connect
from geo.replication.desired import PROBE_TOPIC, address
from geo.replication.errors import AdminRefused, ReplicationError
from geo.replication.model import Topology
from geo.replication.roles import namespace_of
from runtime.pulsar_client import PulsarAccess
from settings import Settings

__all__ = ["NOBODY", "TriedRight", "try_rights", "untried_roles"]

NOBODY = "(no token)"
"""Who shows no token: may do nothing, whatever the brokers' `anonymousUserRole` is."""

_AT_ONCE = 8
_OPERATION_S = 5
_REFUSED = (401, 403)
# Who lists tenants runs the cluster.
_OPERATORS_ONLY = "tenants"


class TriedRight(Settings):
    """One thing that one role tried in one cluster; `was` None: it could be seen neither refused nor allowed."""

    role: str
    cluster: str
    action: str
    resource: str
    may: bool
    was: bool | None
    reason: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was as the topology says."""
        return self.was == self.may

    def __str__(self) -> str:
        found = {True: "was allowed", False: "was refused", None: f"unknown: {self.reason}"}[self.was]
        must = "may" if self.may else "must not"
        return f"{self.cluster}: {self.role} {must} {self.action} {self.resource}: {found}"


def try_rights(topology: Topology, clients: Mapping[str, AdminClient], tokens: Path | None) -> list[TriedRight]:
    """What each role that has a file `ROLE.token` in the folder may do in these clusters, tried; and who has no token.

    In each namespace on one topic, on each topic with rights of its own, and one question for operators. A producer or
    reader is opened and closed: nothing is sent, nothing is read. Where brokers ask for no right nothing is tried.
    """
    roles: list[tuple[str, Path | None]] = [(NOBODY, None)]
    roles += [
        (role, file) for role in topology.roles_by_name() if tokens and (file := _token_of(role, tokens)).exists()
    ]
    asked = [admin for admin in clients.values() if read_defaults(admin.configuration()).authorization]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tried = pool.map(
            lambda one: list(_tried(topology, *one)), [(admin, *role) for admin in asked for role in roles]
        )
        return [right for rights in tried for right in rights]


def untried_roles(topology: Topology, tokens: Path | None) -> tuple[str, ...]:
    """The roles of which no token is at hand: what they may do is not known."""
    return tuple(role for role in topology.roles_by_name() if tokens is None or not _token_of(role, tokens).exists())


def _token_of(role: str, tokens: Path) -> Path:
    return tokens / f"{role}.token"


def _tried(topology: Topology, operator: AdminClient, role: str, token: Path | None) -> Iterator[TriedRight]:
    cluster = operator.cluster
    is_superuser = role in topology.superusers()
    access = PulsarAccess(
        token_file=token, tls_ca=operator.access.tls_ca, tls_validate_hostname=operator.access.tls_validate_hostname
    )
    with AdminClient(cluster, operator.url, access=access, check_name=False, unavailable_s=0) as admin:
        asked = _asked(admin)
        yield TriedRight(role=role, cluster=cluster, action="ask for", resource="tenants", may=is_superuser, **asked)
        way = ServiceAddress(address(topology, cluster).service_url)
        client = connect(admin, way, operation_s=_OPERATION_S)
        try:
            for topic in _topics(topology, cluster):
                given = {
                    action
                    for resource in (topic, namespace_of(topic))
                    for action in topology.grants(cluster, resource).get(role, ())
                }
                for action in ("produce", "consume"):
                    may = is_superuser or action in given
                    found = _opened(client, topic, action)
                    # Whoever is nobody gets no answer at all, here as everywhere; from a dead address nobody does.
                    is_silent = token is None and found["was"] is None
                    if is_silent and asked["was"] is False and _answers(operator, way, topic, action):
                        found = {"was": False}
                    yield TriedRight(role=role, cluster=cluster, action=action, resource=topic, may=may, **found)
                    if is_silent:
                        return
        finally:
            client.close()


def _topics(topology: Topology, cluster: str) -> Iterator[str]:
    for name, (spec, clusters) in topology.placed().items():
        if cluster in clusters:
            named = [f"{name}/{topic}" for topic in spec.topics]
            own = [topic for topic in named if topology.grants(cluster, topic)]
            common = [f"{name}/{PROBE_TOPIC}"] if len(clusters) > 1 else [topic for topic in named if topic not in own]
            yield from [*common[:1], *own]


def _asked(admin: AdminClient) -> dict[str, bool | str | None]:
    try:
        admin.get(_OPERATORS_ONLY)
    except AdminRefused as refused:
        return {"was": False} if refused.status in _REFUSED else {"was": None, "reason": str(refused)}
    except ReplicationError as error:
        return {"was": None, "reason": str(error)}
    return {"was": True}


def _answers(operator: AdminClient, way: ServiceAddress, topic: str, action: str) -> bool:
    """Whether this address answers the operator what it may do."""
    client = connect(operator, way, operation_s=_OPERATION_S)
    try:
        return _opened(client, topic, action)["was"] is not None
    finally:
        client.close()


def _opened(client: pulsar.Client, topic: str, action: str) -> dict[str, bool | str | None]:
    name = f"persistent://{topic}"
    try:
        if action == "produce":
            client.create_producer(name).close()
        else:
            client.create_reader(name, pulsar.MessageId.latest).close()
    except (pulsar.AuthorizationError, pulsar.AuthenticationError):
        return {"was": False}
    except pulsar.PulsarException as error:
        return {"was": None, "reason": str(error)}
    return {"was": True}
