"""Makes clusters what the topology says, through their admin interfaces."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from geo.replication.actual import actual
from geo.replication.admin import AdminClient, topic_path
from geo.replication.desired import address, desired
from geo.replication.errors import NotConverged
from geo.replication.model import Topology
from geo.replication.plan import Change, plan
from geo.replication.state import Registration, TenantState
from settings import Settings

__all__ = ["Applied", "admins", "apply", "read_plan"]

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
    allow_delete: bool = False,
    on_change: Callable[[Change], None] | None = None,
) -> Applied:
    """Make every change that is needed; without `allow_delete` those that would delete data are held back.

    Applying again changes nothing. Raises NotConverged when the clusters still differ after the changes.
    """
    made: list[Change] = []
    for _ in range(_ROUNDS):
        pending = read_plan(topology, clients)
        now = [change for change in pending if allow_delete or not change.deletes_data]
        if not now:
            return Applied(changed=tuple(made), held_back=tuple(pending))
        for change in now:
            _make(clients[change.cluster], change)
            made.append(change)
            if on_change:
                on_change(change)
    left = [change for change in read_plan(topology, clients) if allow_delete or not change.deletes_data]
    if left:
        raise NotConverged([str(change) for change in left])
    return Applied(changed=tuple(made), held_back=tuple(read_plan(topology, clients)))


def _make(admin: AdminClient, change: Change) -> None:
    _MAKERS[change.kind](admin, change)


def _cluster(admin: AdminClient, change: Change) -> None:
    wanted = Registration.model_validate(change.after)
    body = {"serviceUrl": wanted.admin_url, "brokerServiceUrl": wanted.service_url}
    body |= {"listenerName": wanted.listener} if wanted.listener else {}
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
        admin.put(f"namespaces/{change.name}", {"replication_clusters": sorted(change.after.clusters)})


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
    return {"message_ttl_s": "messageTTL", "deduplication": "deduplication"}[policy], value


def _topic(admin: AdminClient, change: Change) -> None:
    path = topic_path(change.name)
    if change.action == "delete":
        partitioned = f"{path}/partitions" if change.before else path
        admin.delete(partitioned, force=True)
    elif change.action == "update":
        admin.post(f"{path}/partitions", change.after)
    elif change.after:
        admin.put(f"{path}/partitions", change.after)
    else:
        admin.put(path)


def _subscription(admin: AdminClient, change: Change) -> None:
    path = f"{topic_path(change.name)}/subscription/{change.subscription}"
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
