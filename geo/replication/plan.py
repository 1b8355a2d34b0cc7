"""The difference between what is wanted and what is there, as changes in the order in which they can be made. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from geo.replication.errors import PlanImpossible
from geo.replication.state import ClusterState, NamespaceState, Registration, TenantState, TopicState
from settings import Settings

__all__ = ["Change", "plan"]

# Made from the outside in (a topic needs its namespace), and taken away from the inside out.
_ORDER = ("cluster", "tenant", "namespace", "policy", "topic", "subscription")
_POLICIES = ("clusters", "backlog_quota", "retention", "message_ttl_s", "deduplication", "compaction_threshold_bytes")

Thing = Registration | TenantState | NamespaceState | TopicState | None


class Change(Settings):
    """One step on one cluster. `deletes_data`: messages could be gone afterwards that were there before.

    `before` and `after` hold what `kind` says: a Registration, TenantState or NamespaceState; the value of one policy;
    a topic's number of partitions; whether a subscription is replicated. None: not there.
    """

    cluster: str
    action: Literal["create", "update", "delete"]
    kind: Literal["cluster", "tenant", "namespace", "policy", "topic", "subscription"]
    name: str
    policy: str = ""
    subscription: str = ""
    before: Any = None
    after: Any = None
    deletes_data: bool = False

    def __str__(self) -> str:
        what = self.name + (f" {self.policy}" if self.policy else "")
        what += f" subscription {self.subscription}" if self.subscription else ""
        if self.action == "update":
            what += f": {_words(self.before, self.policy)} -> {_words(self.after, self.policy)}"
        return f"{self.cluster}: {self.action} {self.kind} {what}"


def plan(desired: Mapping[str, ClusterState], actual: Mapping[str, ClusterState]) -> list[Change]:
    """What leads from `actual` to `desired`, in an order that works; empty when they agree.

    Subscriptions that the topology does not name stay: consumers made them. Raises PlanImpossible for a partitioned
    topic that would have to shrink.
    """
    changes = [
        change
        for cluster, wanted in desired.items()
        for change in _cluster_changes(cluster, wanted, actual.get(cluster, ClusterState()))
    ]
    made = [change for change in changes if change.action != "delete"]
    gone = [change for change in changes if change.action == "delete"]
    # Stable: clusters are interleaved kind by kind, so that every cluster knows all others before anything replicates.
    return sorted(made, key=lambda one: _ORDER.index(one.kind)) + sorted(gone, key=lambda one: -_ORDER.index(one.kind))


def _cluster_changes(cluster: str, wanted: ClusterState, there: ClusterState) -> Iterator[Change]:
    for name, registration in wanted.registrations.items():
        yield from _whole(cluster, "cluster", name, there.registrations.get(name), registration)
    for name, tenant in wanted.tenants.items():
        yield from _whole(cluster, "tenant", name, there.tenants.get(name), tenant)
    filled = {topic.rpartition("/")[0] for topic in there.topics}
    for name, namespace in wanted.namespaces.items():
        yield from _namespace_changes(cluster, name, there.namespaces.get(name), namespace, has_topics=name in filled)
    for name, topic in wanted.topics.items():
        yield from _topic_changes(cluster, name, there.topics.get(name), topic)
    yield from _surplus(cluster, wanted, there)


def _whole(
    cluster: str, kind: Literal["cluster", "tenant"], name: str, before: Thing, after: Registration | TenantState
) -> Iterator[Change]:
    if before != after:
        action: Literal["create", "update"] = "create" if before is None else "update"
        yield Change(cluster=cluster, action=action, kind=kind, name=name, before=before, after=after)


def _namespace_changes(
    cluster: str, name: str, before: NamespaceState | None, after: NamespaceState, *, has_topics: bool
) -> Iterator[Change]:
    if before is None:
        yield Change(cluster=cluster, action="create", kind="namespace", name=name, after=after)
        before = NamespaceState(clusters=after.clusters)
    policies = list(_POLICIES)
    if _size(after.retention) > _size(before.retention):
        # Pulsar checks that a backlog fits into what is retained: grow the retention first, shrink the quota first.
        policies[1:3] = "retention", "backlog_quota"
    for policy in policies:
        old, new = getattr(before, policy), getattr(after, policy)
        if old != new:
            yield Change(
                cluster=cluster,
                action="update",
                kind="policy",
                name=name,
                policy=policy,
                before=old,
                after=new,
                deletes_data=has_topics and _loses(policy, old, new),
            )


def _topic_changes(cluster: str, name: str, before: TopicState | None, after: TopicState) -> Iterator[Change]:
    if before is None:
        yield Change(cluster=cluster, action="create", kind="topic", name=name, after=after.partitions)
        before = TopicState(partitions=after.partitions)
    elif before.partitions != after.partitions:
        if before.partitions == 0 or after.partitions < before.partitions:
            raise PlanImpossible(
                cluster,
                name,
                f"has {before.partitions} partitions and should have {after.partitions}; partitions can only be added,"
                " and only to a partitioned topic, so drain it, delete it and apply again",
            )
        yield Change(
            cluster=cluster, action="update", kind="topic", name=name, before=before.partitions, after=after.partitions
        )
    for subscription, replicated in after.subscriptions.items():
        old = before.subscriptions.get(subscription)
        if old != replicated:
            yield Change(
                cluster=cluster,
                action="create" if old is None else "update",
                kind="subscription",
                name=name,
                subscription=subscription,
                before=old,
                after=replicated,
            )


def _surplus(cluster: str, wanted: ClusterState, there: ClusterState) -> Iterator[Change]:
    gone = [
        name for name in there.namespaces if name.partition("/")[0] in wanted.tenants and name not in wanted.namespaces
    ]
    for name in gone:
        yield Change(
            cluster=cluster,
            action="delete",
            kind="namespace",
            name=name,
            before=there.namespaces[name],
            deletes_data=True,
        )
    for name, topic in there.topics.items():
        namespace = name.rpartition("/")[0]
        if namespace in wanted.namespaces and name not in wanted.topics:
            yield Change(
                cluster=cluster, action="delete", kind="topic", name=name, before=topic.partitions, deletes_data=True
            )


def _size(retention: tuple[int, int] | None) -> float:
    if retention is None:
        return 0
    return float("inf") if retention[1] == -1 else retention[1]


def _loses(policy: str, old: Any, new: Any) -> bool:
    if policy == "clusters":
        # The replicator's cursor goes with the cluster, and with it what was not sent yet.
        return bool(set(old) - set(new))
    if policy == "retention":
        return any(_shrinks(before, after) for before, after in zip(old or (0, 0), new or (0, 0), strict=True))
    if policy == "message_ttl_s":
        return bool(new) and (not old or new < old)
    return policy == "backlog_quota" and new is not None and new[1] == "consumer_backlog_eviction" and new != old


def _shrinks(before: int, after: int) -> bool:
    return after != -1 and (before == -1 or after < before)


def _words(value: Any, policy: str = "") -> str:
    if value is None:
        return "unset"
    if policy == "retention":
        return f"{value[0]} min, {value[1]} MB"
    if policy == "backlog_quota":
        return f"{value[0]} MB, {value[1]}"
    if isinstance(value, frozenset | set):
        return ", ".join(sorted(map(str, value))) or "none"
    if isinstance(value, Settings):
        return ", ".join(f"{key}={_words(getattr(value, key))}" for key in type(value).model_fields)
    return str(value)
