"""Makes clusters what the topology says, through their admin interfaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
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
from geo.replication.errors import ApplyStopped, ClusterUnreachable, NotConverged, ReplicationError
from geo.replication.model import Topology
from geo.replication.plan import Change, plan
from geo.replication.rest_types import CLUSTER
from geo.replication.topic_naming import topic_path
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings

# The brokers create topics in each other while we do, so the first look may be a moment too early.
_ROUNDS = 3
_MB = 1024 * 1024
_KB = 1024
# Pulsar's id before the first message: a new subscription misses nothing that is stored.
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class Inspection(Settings):
    """The changes that are needed, and what could not be seen.

    `unreachable`: clusters that did not answer, with the reason: they are left out of the plan. `unprotected`: settings
    of brokers by which the topology's rights do not count, or which let others do everything.
    """

    changes: tuple[Change, ...]
    unreachable: Mapping[str, str] = {}
    unprotected: tuple[str, ...] = ()


class Applied(Settings):
    """What was changed, what was held back because it would delete data, and what could not be seen."""

    changed: tuple[Change, ...]
    held_back: tuple[Change, ...]
    unreachable: Mapping[str, str] = {}
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
    """The changes that are needed now in the clusters that answer.

    Raises WrongCluster when an address leads to another cluster than the topology says; ClusterUnreachable when none
    answers.
    """
    changes, unreachable = _pending(topology, clients)
    alive = {name: admin for name, admin in clients.items() if name not in unreachable}
    return Inspection(changes=tuple(changes), unreachable=unreachable, unprotected=tuple(unprotected(topology, alive)))


def apply(
    topology: Topology,
    clients: Mapping[str, AdminClient],
    *,
    allow_delete: Collection[str] = (),
    on_change: Callable[[Change], None] | None = None,
) -> Applied:
    """Make every needed change in the clusters that answer; one that would delete data only if `allow_delete` has its
    subject.

    Applying again changes nothing. Raises, before anything is changed, what `inspect_clusters` raises; ApplyStopped for
    a change that could not be made; NotConverged when the clusters still differ after the changes.
    """
    made: list[Change] = []
    for turn in range(_ROUNDS + 1):
        pending, unreachable = _pending(topology, clients)
        now = _allowed(pending, allow_delete)
        if not now:
            alive = {name: admin for name, admin in clients.items() if name not in unreachable}
            return Applied(
                changed=tuple(made),
                held_back=tuple(pending),
                unreachable=unreachable,
                unprotected=tuple(unprotected(topology, alive)),
            )
        if turn == _ROUNDS:
            break
        for change in now:
            _make(clients[change.cluster], change, made)
            made.append(change)
            if on_change:
                on_change(change)
    raise NotConverged([str(change) for change in now])


def _allowed(changes: Sequence[Change], allow_delete: Collection[str]) -> list[Change]:
    return [change for change in changes if not change.deletes_data or change.subject in allow_delete]


def _pending(topology: Topology, clients: Mapping[str, AdminClient]) -> tuple[list[Change], dict[str, str]]:
    """The needed changes of the clusters that answer all questions, and why the others did not."""

    def ask(admin: AdminClient) -> ClusterState | ClusterUnreachable:
        try:
            return actual({admin.cluster: admin}, topology.tenants)[admin.cluster]
        except ClusterUnreachable as error:
            return error

    answers = for_each_cluster(clients, ask)
    states = {name: state for name, state in answers.items() if isinstance(state, ClusterState)}
    errors = {name: error for name, error in answers.items() if isinstance(error, ClusterUnreachable)}
    if not states:
        raise next(iter(errors.values()))
    wanted = {name: state for name, state in desired(topology).items() if name in states}
    return plan(wanted, states), {name: str(error) for name, error in errors.items()}


def cluster_data(wanted: Registration) -> dict[str, str | bool | None]:
    """Pulsar's fields for a cluster's addresses; None: the field is removed, and other fields stay."""
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
        # The scheme of the service address decides which admin address is used, so the other one is removed.
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
    # An update replaces all of Pulsar's data of a cluster, so fields that we do not set are sent back unchanged.
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
        # In this cluster alone: its brokers may not do it in the others, where we do it ourselves.
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
