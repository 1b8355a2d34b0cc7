"""Makes clusters what the topology says, through their admin interfaces."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

from geo.replication.actual import actual
from geo.replication.admin import AdminClient, topic_path
from geo.replication.desired import address, desired
from geo.replication.errors import NotConverged, NothingToDelete
from geo.replication.model import Topology
from geo.replication.plan import Change, plan
from geo.replication.state import Registration, TenantState
from settings import Settings

__all__ = ["Applied", "admins", "apply", "cluster_data", "read_plan"]

# The brokers create topics in each other while we do, so one look may be a moment too early.
_ROUNDS = 3
_MB = 1024 * 1024
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class Applied(Settings):
    """What was changed, and what was held back because it would delete data."""

    changed: tuple[Change, ...]
    held_back: tuple[Change, ...]


@contextmanager
def admins(topology: Topology, token: str | None = None) -> Iterator[dict[str, AdminClient]]:
    """An admin client for each cluster of a topology, closed at the end. Raises NoAddress."""
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(AdminClient(name, address(topology, name).admin_url, token=token))
            for name in sorted(topology.clusters)
        }


def read_plan(topology: Topology, clients: Mapping[str, AdminClient]) -> list[Change]:
    """What would have to change now."""
    return plan(desired(topology), actual(clients, topology.tenants))


def apply(
    topology: Topology,
    clients: Mapping[str, AdminClient],
    *,
    allow_delete: Collection[str] = (),
    on_change: Callable[[Change], None] | None = None,
) -> Applied:
    """Make every change that is needed; those that would delete data only if `allow_delete` has their subject.

    Applying again changes nothing. Raises NothingToDelete, before anything is changed, for a subject that no change
    has; NotConverged when the clusters still differ after the changes.
    """
    made: list[Change] = []
    for turn in range(_ROUNDS):
        pending = read_plan(topology, clients)
        if turn == 0:
            _check_subjects(pending, allow_delete)
        now = _allowed(pending, allow_delete)
        if not now:
            return Applied(changed=tuple(made), held_back=tuple(pending))
        for change in now:
            _make(clients[change.cluster], change)
            made.append(change)
            if on_change:
                on_change(change)
    pending = read_plan(topology, clients)
    if left := _allowed(pending, allow_delete):
        raise NotConverged([str(change) for change in left])
    return Applied(changed=tuple(made), held_back=tuple(pending))


def _allowed(changes: Sequence[Change], allow_delete: Collection[str]) -> list[Change]:
    return [change for change in changes if not change.deletes_data or change.subject in allow_delete]


def _check_subjects(changes: Sequence[Change], allow_delete: Collection[str]) -> None:
    known = {change.subject for change in changes if change.deletes_data}
    if unknown := sorted(set(allow_delete) - known):
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
    if service_tls != admin_tls:
        # The kind of the service address says which admin address counts, so the other one must not be there.
        data["serviceUrlTls" if service_tls else "serviceUrl"] = None
    return data


def _make(admin: AdminClient, change: Change) -> None:
    _MAKERS[change.kind](admin, change)


def _cluster(admin: AdminClient, change: Change) -> None:
    # An update replaces the whole of what Pulsar knows of a cluster, so what we do not speak of is sent back as it is.
    there = admin.get(f"clusters/{change.name}") or {}
    body = there | cluster_data(Registration.model_validate(change.after))
    body = {key: value for key, value in body.items() if value is not None}
    (admin.put if change.action == "create" else admin.post)(f"clusters/{change.name}", body)


def _tenant(admin: AdminClient, change: Change) -> None:
    wanted = TenantState.model_validate(change.after)
    body = {"adminRoles": sorted(wanted.admin_roles), "allowedClusters": sorted(wanted.allowed_clusters)}
    (admin.put if change.action == "create" else admin.post)(f"tenants/{change.name}", body)


def _namespace(admin: AdminClient, change: Change) -> None:
    if change.action == "delete":
        # A namespace that still replicates cannot be deleted, not even by force.
        admin.post(f"namespaces/{change.name}/replication", [admin.cluster])
        admin.delete(f"namespaces/{change.name}", force=True)
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
    elif change.policy == "auto_topic_creation" and value is None:
        admin.delete(f"{base}/autoTopicCreation")
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
    if policy == "auto_topic_creation":
        kind = {"topicType": "non-partitioned"} if value else {}
        return "autoTopicCreation", {"allowAutoTopicCreation": value, **kind}
    return {"message_ttl_s": "messageTTL", "deduplication": "deduplication"}[policy], value


def _topic(admin: AdminClient, change: Change) -> None:
    path = topic_path(change.name)
    if change.action in ("delete", "replace"):
        partitioned = f"{path}/partitions" if change.before else path
        admin.delete(partitioned, force=True)
    if change.action == "delete":
        return
    if change.action == "update":
        admin.post(f"{path}/partitions", change.after)
    elif change.after:
        admin.put(f"{path}/partitions", change.after)
    else:
        admin.put(path)


def _subscription(admin: AdminClient, change: Change) -> None:
    path = f"{topic_path(change.name)}/subscription/{quote(change.subscription, safe='')}"
    if change.action == "create":
        admin.put(path, _EARLIEST, replicated=bool(change.after))
    # 4.0.8 forgets `replicated` when it creates the subscription on the partitions of a partitioned topic.
    admin.post(f"{path}/replicatedSubscriptionStatus", bool(change.after))


_MAKERS: dict[str, Callable[[AdminClient, Change], None]] = {
    "cluster": _cluster,
    "tenant": _tenant,
    "namespace": _namespace,
    "policy": _policy,
    "topic": _topic,
    "subscription": _subscription,
}
