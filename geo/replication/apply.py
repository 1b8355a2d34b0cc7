"""Makes clusters what the topology says, through their admin interfaces."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from geo.replication.admin import AdminClient
from geo.replication.cluster_state import (
    ClusterState,
    Registration,
    TenantState,
    actual,
    address,
    desired,
    for_each_cluster,
    topic_names,
    unprotected,
)
from geo.replication.errors import (
    ApplyStopped,
    ClusterUnreachable,
    NotConverged,
    NothingToDelete,
    ReplicationError,
    WrongCluster,
)
from geo.replication.model import Topology
from geo.replication.plan import Change, plan
from geo.replication.rest_types import CLUSTER, STATS
from geo.replication.topic_naming import topic_path
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.settings import Settings

if TYPE_CHECKING:
    import pulsar

# A check that a service address leads to the cluster.

_OPERATION_S = 5
_CONNECT_S = 5
_AT_ONCE = 8
# Every cluster has this namespace from its start, brokers make topics in it whatever their configuration says, and a
# topic that is not persistent leaves nothing behind.
_MEETING = "non-persistent://pulsar/system/waybill-address-{}"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """One service address of a cluster, as a client or another cluster dials it."""

    service_url: str
    listener: str = ""


@dataclass(frozen=True, slots=True)
class AddressCheck:
    """Whether a service address of a cluster leads to it; `belongs` None: it could not be asked from here.

    `seen_by`: the cluster that dials it; empty for the common address.
    """

    cluster: str
    seen_by: str
    service_url: str
    belongs: bool | None
    reason: str = ""

    def concerns(self, source: str, target: str) -> bool:
        """Whether a link between these clusters uses it, or a probe on that link does."""
        if self.seen_by:
            return (self.seen_by, self.cluster) == (source, target)
        return self.cluster in (source, target)

    def __str__(self) -> str:
        seen = f", seen from {self.seen_by}" if self.seen_by else ""
        return f"{self.service_url} (cluster {self.cluster}{seen}): {self.reason}"


def connect(admin: AdminClient, way: ServiceAddress, *, operation_s: int = _OPERATION_S) -> pulsar.Client:
    """A client with the access of the cluster's admin client."""
    return open_pulsar_client(
        way.service_url,
        admin.access,
        timeout_s=operation_s,
        connect_timeout_s=_CONNECT_S,
        listener=way.listener or None,
    )


def check_addresses(topology: Topology, admins: Mapping[str, AdminClient]) -> list[AddressCheck]:
    """Every service address of these clusters, asked side by side. Raises what the admin clients raise."""
    ways = [
        (admin, seen_by, way) for name, admin in admins.items() for seen_by, way in _service_addresses(topology, name)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # Side by side: each address that does not answer costs its time-out.
        waiting = [pool.submit(_belongs, admin, way) for admin, _, way in ways]
    return [
        AddressCheck(admin.cluster, seen_by, way.service_url, *one.result())
        for (admin, seen_by, way), one in zip(ways, waiting, strict=True)
    ]


def _belongs(admin: AdminClient, way: ServiceAddress) -> tuple[bool | None, str]:
    """Meet the cluster on a topic of its own: what the service address made, the admin address must show."""
    import pulsar  # noqa: PLC0415 - `waybill status` does without it

    topic = _MEETING.format(uuid.uuid4().hex)
    client = connect(admin, way)
    try:
        client.create_producer(topic)
        return admin.get(f"{topic.replace('://', '/')}/stats", STATS) is not None, ""
    except pulsar.PulsarException as refused:
        return None, str(refused)
    finally:
        client.close()


def _service_addresses(topology: Topology, cluster: str) -> list[tuple[str, ServiceAddress]]:
    where = address(topology, cluster)
    others = [
        (seen_by, ServiceAddress(way.service_url, way.listener)) for seen_by, way in sorted(where.seen_from.items())
    ]
    return [("", ServiceAddress(where.service_url)), *others]


# The brokers create topics in each other while we do, so one look may be a moment too early.
_ROUNDS = 3
_MB = 1024 * 1024
_KB = 1024
# Pulsar's id before the first message: a new subscription misses nothing that is stored.
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class Inspection(Settings):
    """What would have to change, and what could not be seen.

    `unreachable`: clusters that did not answer, with the reason: they are left out of the plan. `unchecked`: service
    addresses that did not answer here, so that nobody knows whose they are. `unprotected`: in which clusters rights do
    not count, or somebody else may do everything: what only a broker's own configuration changes.
    """

    changes: tuple[Change, ...]
    unreachable: Mapping[str, str] = {}
    unchecked: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()


class Applied(Settings):
    """What was changed, what was held back because it would delete data, and what an Inspection says of the rest."""

    changed: tuple[Change, ...]
    held_back: tuple[Change, ...]
    unreachable: Mapping[str, str] = {}
    unchecked: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()


@contextmanager
def admins(topology: Topology, access: PulsarAccess | None = None) -> Iterator[dict[str, AdminClient]]:
    """An admin client for each cluster of a topology, closed at the end. Raises NoAddress, UnusableAccess."""
    known = access or PulsarAccess()
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(AdminClient(name, address(topology, name).admin_url, access=known))
            for name in sorted(topology.clusters)
        }


def inspect_clusters(topology: Topology, clients: Mapping[str, AdminClient]) -> Inspection:
    """What would have to change now in the clusters that answer.

    Raises WrongCluster when any address, also a service address, leads to another cluster than the topology says;
    ClusterUnreachable when none answers.
    """
    alive, gone = _answering(clients)
    unchecked = _own_addresses(topology, alive)
    changes = _pending(topology, alive, gone)
    return Inspection(
        changes=tuple(changes),
        unreachable=gone,
        unchecked=tuple(unchecked),
        unprotected=tuple(unprotected(topology, alive)),
    )


def apply(
    topology: Topology,
    clients: Mapping[str, AdminClient],
    *,
    allow_delete: Collection[str] = (),
    on_change: Callable[[Change], None] | None = None,
) -> Applied:
    """Make every change that is needed in the clusters that answer; what would delete data only if `allow_delete` has
    its subject.

    Applying again changes nothing. Raises, before anything is changed, what `inspect_clusters` raises and
    NothingToDelete, for a subject that no change has while others wait to be allowed; ApplyStopped for a change that
    could not be made; NotConverged when the clusters still differ after the changes.
    """
    alive, gone = _answering(clients)
    unchecked = tuple(_own_addresses(topology, alive))
    made: list[Change] = []
    for turn in range(_ROUNDS + 1):
        pending = _pending(topology, alive, gone)
        # Once: in a later round what was allowed is gone, and would be taken for an unknown subject.
        if turn == 0:
            _check_subjects(pending, allow_delete)
        now = _allowed(pending, allow_delete)
        if not now:
            return Applied(
                changed=tuple(made),
                held_back=tuple(pending),
                unreachable=gone,
                unchecked=unchecked,
                unprotected=tuple(unprotected(topology, alive)),
            )
        if turn == _ROUNDS:
            break
        for change in now:
            _make(alive[change.cluster], change, made)
            made.append(change)
            if on_change:
                on_change(change)
    raise NotConverged([str(change) for change in now])


def _pending(topology: Topology, alive: dict[str, AdminClient], gone: dict[str, str]) -> list[Change]:
    """What has to change in those that answer all questions; those that do not are gone then."""
    states_or_errors = for_each_cluster(alive, lambda admin: _state(topology, admin))
    states = {cluster: state for cluster, state in states_or_errors.items() if isinstance(state, ClusterState)}
    for cluster, error in states_or_errors.items():
        if isinstance(error, ClusterUnreachable):
            if not states:
                raise error
            del alive[cluster]
            gone[cluster] = str(error)
    answering = {cluster: state for cluster, state in desired(topology).items() if cluster in states}
    return plan(answering, states)


def _state(topology: Topology, admin: AdminClient) -> ClusterState | ClusterUnreachable:
    try:
        return actual({admin.cluster: admin}, topology.tenants)[admin.cluster]
    except ClusterUnreachable as error:
        return error


def _answering(clients: Mapping[str, AdminClient]) -> tuple[dict[str, AdminClient], dict[str, str]]:
    errors = for_each_cluster(clients, _error_of)
    alive = {cluster: admin for cluster, admin in clients.items() if errors[cluster] is None}
    gone = {cluster: error for cluster, error in errors.items() if error is not None}
    if not alive:
        raise next(iter(gone.values()))
    return alive, {cluster: str(error) for cluster, error in gone.items()}


def _error_of(admin: AdminClient) -> ClusterUnreachable | None:
    try:
        admin.configuration()
    except ClusterUnreachable as error:
        return error
    return None


def _own_addresses(topology: Topology, alive: Mapping[str, AdminClient]) -> list[str]:
    # Late: Pulsar's library is for those who look at clusters, not for all who import this package.

    checked = check_addresses(topology, alive)
    for found_address in checked:
        if found_address.belongs is False:
            raise WrongCluster(found_address.cluster, found_address.service_url, "another cluster")
    return [str(found_address) for found_address in checked if found_address.belongs is None]


def _allowed(changes: Sequence[Change], allow_delete: Collection[str]) -> list[Change]:
    return [change for change in changes if not change.deletes_data or change.subject in allow_delete]


def _check_subjects(changes: Sequence[Change], allow_delete: Collection[str]) -> None:
    # Where nothing waits to be allowed, the one that was named is gone already: an apply may be repeated.
    known = {change.subject for change in changes if change.deletes_data}
    unknown = sorted(set(allow_delete) - known)
    if unknown and known - set(allow_delete):
        raise NothingToDelete(unknown, sorted(known))


def cluster_data(wanted: Registration) -> dict[str, str | bool | None]:
    """What Pulsar is to know of a cluster's addresses (None: nothing); what is not here is to stay as it is."""
    service_tls, admin_tls = wanted.service_url.startswith("pulsar+ssl:"), wanted.admin_url.startswith("https:")
    data: dict[str, str | bool | None] = {
        "brokerServiceUrlTls" if service_tls else "brokerServiceUrl": wanted.service_url,
        "serviceUrlTls" if admin_tls else "serviceUrl": wanted.admin_url,
        "brokerClientTlsEnabled": service_tls,
        "listenerName": wanted.listener or None,
    }
    if wanted.trust_certs_file:
        data["brokerClientTrustCertsFilePath"] = wanted.trust_certs_file
    if service_tls != admin_tls:
        # The kind of the service address says which admin address counts, so the other one must not be there.
        data["serviceUrlTls" if service_tls else "serviceUrl"] = None
    return data


def _make(admin: AdminClient, change: Change, made: Sequence[Change]) -> None:
    try:
        _MAKERS[change.kind](admin, change)
    except ReplicationError as cause:
        raise ApplyStopped(str(change), [str(one) for one in made], cause) from cause


def _cluster(admin: AdminClient, change: Change) -> None:
    if change.action == "delete":
        admin.delete(f"clusters/{change.name}")
        return
    # An update replaces the whole of what Pulsar knows of a cluster, so what we do not speak of is sent back as it is.
    there = admin.get(f"clusters/{change.name}", CLUSTER)
    data = {**(there or {}), **cluster_data(Registration.model_validate(change.after))}
    body = {key: value for key, value in data.items() if value is not None}
    (admin.put if change.action == "create" else admin.post)(f"clusters/{change.name}", body)


def _tenant(admin: AdminClient, change: Change) -> None:
    wanted = TenantState.model_validate(change.after)
    body = {"adminRoles": sorted(wanted.admin_roles), "allowedClusters": sorted(wanted.allowed_clusters)}
    (admin.put if change.action == "create" else admin.post)(f"tenants/{change.name}", body)


def _namespace(admin: AdminClient, change: Change) -> None:
    if change.action == "update":
        # A namespace that still replicates cannot be deleted, not even by force.
        admin.post(f"namespaces/{change.name}/replication", sorted(change.after))
    elif change.action == "delete":
        # Topic by topic: Pulsar's default refuses to delete a namespace by force.
        for topic, partitions in topic_names(admin, change.name).items():
            _delete_topic(admin, topic, partitions)
        admin.delete(f"namespaces/{change.name}")
    else:
        policies = {
            "replication_clusters": sorted(change.after.clusters),
            "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
        }
        admin.put(f"namespaces/{change.name}", policies)


def _policy(admin: AdminClient, change: Change) -> None:
    base, value = f"namespaces/{change.name}", change.after
    if change.policy == "retention" and value is None:
        admin.delete(f"{base}/retention")
    elif change.policy == "backlog_quota" and value is None:
        admin.delete(f"{base}/backlogQuota", backlogQuotaType="destination_storage")
    elif change.policy == "backlog_quota":
        size_mb, policy = value
        quota = {"limitSize": size_mb * _MB, "limitTime": -1, "policy": policy}
        admin.post(f"{base}/backlogQuota", quota, backlogQuotaType="destination_storage")
    elif change.policy == "publish_rate" and value is None:
        admin.delete(f"{base}/publishRate")
    elif change.policy == "compaction_threshold_bytes":
        admin.put(f"{base}/compactionThreshold", value)
    else:
        path, body = _policy_body(change.policy, value)
        admin.post(f"{base}/{path}", body)


def _policy_body(policy: str, value: Any) -> tuple[str, object]:
    if policy == "clusters":
        return "replication", sorted(value)
    if policy == "retention":
        return "retention", {"retentionTimeInMinutes": value[0], "retentionSizeInMB": value[1]}
    if policy == "publish_rate":
        return "publishRate", {"publishThrottlingRateInMsg": value[0], "publishThrottlingRateInByte": value[1] * _KB}
    if policy == "auto_topic_creation":
        kind = {"topicType": "non-partitioned"} if value else {}
        return "autoTopicCreation", {"allowAutoTopicCreation": value, **kind}
    return {"message_ttl_s": "messageTTL", "deduplication": "deduplication"}[policy], value


def _topic(admin: AdminClient, change: Change) -> None:
    path = topic_path(change.name)
    if change.action in ("delete", "replace"):
        _delete_topic(admin, change.name, change.before)
    if change.action == "delete":
        return
    if change.action == "update":
        # In this cluster alone: its brokers have no right to do it in the others, and we do it in each.
        admin.post(f"{path}/partitions", change.after, updateLocalTopicOnly=True)
    elif change.after:
        admin.put(f"{path}/partitions", change.after, createLocalTopicOnly=True)
    else:
        admin.put(path)


def _partition(admin: AdminClient, change: Change) -> None:
    admin.put(topic_path(change.name))


def _delete_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.delete(f"{topic_path(topic)}/partitions" if partitions else topic_path(topic), force=True)


def _subscription(admin: AdminClient, change: Change) -> None:
    path = f"{topic_path(change.name)}/subscription/{quote(change.subscription, safe='')}"
    if change.action == "create":
        admin.put(path, _EARLIEST, replicated=bool(change.after))
    # 4.0.8 forgets `replicated` when it creates the subscription on the partitions of a partitioned topic.
    admin.post(f"{path}/replicatedSubscriptionStatus", bool(change.after))


def _grant(admin: AdminClient, change: Change) -> None:
    resource = topic_path(change.name) if change.name.count("/") > 1 else f"namespaces/{change.name}"
    path = f"{resource}/permissions/{quote(change.role, safe='')}"
    if change.action == "delete":
        admin.delete(path)
    else:
        admin.post(path, sorted(change.after))


def _subscription_grant(admin: AdminClient, change: Change) -> None:
    subscription = quote(change.subscription, safe="")
    admin.post(f"namespaces/{change.name}/permissions/subscription/{subscription}", sorted(change.after))


_MAKERS: dict[str, Callable[[AdminClient, Change], None]] = {
    "cluster": _cluster,
    "tenant": _tenant,
    "namespace": _namespace,
    "policy": _policy,
    "topic": _topic,
    "partition": _partition,
    "subscription": _subscription,
    "grant": _grant,
    "subscription_grant": _subscription_grant,
}
