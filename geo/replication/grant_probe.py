"""Tries with the tokens of roles what they may and what they must not: a right that is written is not yet one that is
kept."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pulsar

from geo.replication.actual import read_defaults
from geo.replication.admin import AdminClient
from geo.replication.connection import ServiceAddress, connect
from geo.replication.desired import address
from geo.replication.errors import AdminRefused, ReplicationError
from geo.replication.model import Topology
from geo.replication.topic_naming import topic_path
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings

__all__ = ["NOBODY", "TriedRight", "try_rights", "untried_roles"]

NOBODY = "(no token)"
"""Who shows no token: may do nothing, whatever the brokers' `anonymousUserRole` is."""

_AT_ONCE = 8
_OPERATION_S = 5
_REFUSED = (401, 403)
_PAST_THE_RIGHT = (404, 409, 412)
# Who lists tenants runs the cluster.
_OPERATORS_ONLY = "tenants"
# In no topology: a topic that nobody may create, and a subscription that does not exist.
_NEW = "waybill-verify"
_SYSTEM_TOPIC = "__change_events"
# No message is as old as this, so a command that is allowed expires nothing.
_NOTHING_S = 2_147_483_647

_Found = dict[str, bool | str | None]


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

    On each topic of a namespace where the role has a right, on one where it has none, on the system topic and on a new
    topic: a producer and a reader, which are opened and closed. Over HTTP: an operator's question, backlogs of the
    namespace, and each subscription of a topic that the role consumes. Nothing is sent, read or changed. Where brokers
    ask for no right nothing is tried.
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
    right = partial(TriedRight, role=role, cluster=cluster)
    with AdminClient(cluster, operator.url, access=access, check_name=False, unavailable_s=0) as admin:
        asked = _asked(lambda: admin.get(_OPERATORS_ONLY))
        yield right(action="ask for", resource="tenants", may=is_superuser, **asked)
        way = ServiceAddress(address(topology, cluster).service_url)
        client = connect(admin, way, operation_s=_OPERATION_S)
        try:
            for topic, action, granted in _opening(topology, cluster, role, is_superuser):
                found = _opened(client, topic, action)
                # Whoever is nobody gets no answer at all, here as everywhere; from a dead address nobody does.
                is_silent = token is None and found["was"] is None
                if is_silent and asked["was"] is False and _answers(operator, way, topic, action):
                    found = {"was": False}
                yield right(action=action, resource=topic, may=granted, **found)
                if is_silent:
                    return
        finally:
            client.close()
        if not is_superuser:
            for action, resource, granted, command in _commands(topology, admin, role):
                yield right(action=action, resource=resource, may=granted, **_asked(command))


def _opening(topology: Topology, cluster: str, role: str, is_superuser: bool) -> Iterator[tuple[str, str, bool]]:
    """Each topic and action that is tried, and whether the role has the right."""
    for namespace in _namespaces(topology, cluster):
        grants = topology.grants(cluster, namespace)
        is_known = is_superuser or any(role in roles for roles in grants.values())
        named = [*grants] if is_known else [*grants][:1]
        # A superuser would create these.
        closed = [] if is_superuser else [f"{namespace}/{_SYSTEM_TOPIC}", f"{namespace}/{_NEW}"]
        for topic in [*named, *closed]:
            for action in ("produce", "consume"):
                yield topic, action, is_superuser or action in grants.get(topic, {}).get(role, ())


def _commands(
    topology: Topology, admin: AdminClient, role: str
) -> Iterator[tuple[str, str, bool, Callable[[], object]]]:
    for namespace in _namespaces(topology, admin.cluster):
        clear = partial(admin.post, f"namespaces/{namespace}/clearBacklog/{_NEW}")
        yield "clear backlogs of", namespace, False, clear
        subscriptions = topology.subscription_roles(admin.cluster, namespace)
        for topic, roles in topology.grants(admin.cluster, namespace).items():
            if "consume" in roles.get(role, ()):
                for name, users in subscriptions.items():
                    path = f"{topic_path(topic)}/subscription/{quote(name, safe='')}/expireMessages/{_NOTHING_S}"
                    yield "expire messages of", f"{topic} {name}", role in users, partial(admin.post, path)


def _namespaces(topology: Topology, cluster: str) -> list[str]:
    return [name for name, (_, clusters) in topology.placed().items() if cluster in clusters]


def _asked(command: Callable[[], object]) -> _Found:
    try:
        command()
    except AdminRefused as refused:
        if refused.status in _PAST_THE_RIGHT:
            return {"was": True}
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


def _opened(client: pulsar.Client, topic: str, action: str) -> _Found:
    name = f"persistent://{topic}"
    try:
        if action == "produce":
            client.create_producer(name).close()
        else:
            client.create_reader(name, pulsar.MessageId.latest).close()
    except (pulsar.AuthorizationError, pulsar.AuthenticationError):
        return {"was": False}
    except pulsar.TopicNotFound:
        # A broker looks at the right first.
        return {"was": True}
    except pulsar.PulsarException as error:
        return {"was": None, "reason": str(error)}
    return {"was": True}
