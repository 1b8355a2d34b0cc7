"""The changes from the actual to the desired state, in an order in which they can be made. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from geo.replication.cluster_state import (
    ClusterState,
    NamespaceState,
    Registration,
    TenantState,
    TopicState,
)
from geo.replication.topic_naming import partition_name
from waybill.settings import Settings

__all__ = ["Change", "new_namespace_state", "plan"]

# Created from the outside in (a topic needs its namespace), and deleted from the inside out.
_ORDER = (
    "cluster",
    "tenant",
    "namespace",
    # Before a role may consume.
    "subscription_grant",
    "policy",
    "topic",
    "partition",
    "subscription",
    # Pulsar takes a grant only of a topic that exists.
    "grant",
    "auto_topic_creation",
)
_POLICIES = (
    "clusters",
    "backlog_quota",
    "retention",
    "publish_rate",
    "message_ttl_s",
    "deduplication",
    "compaction_threshold_bytes",
    "auto_topic_creation",
)
# Pulsar's clients create these next to a topic, for messages that a subscription could not handle.
_COMPANIONS = ("-DLQ", "-RETRY")
_UNITS = {
    "retention": "{} min, {} MB",
    "backlog_quota": "{} MB, {}",
    "publish_rate": "{} messages/s, {} KB/s",
}
_EVICTS = "consumer_backlog_eviction"

_ResourceState = Registration | TenantState | NamespaceState | TopicState | None


class Change(Settings):
    """One step on one cluster. `deletes_data`: it may delete messages.

    `replace` deletes a topic and creates it again, where its partitions cannot be changed.

    `before` and `after` depend on `kind`: a Registration, TenantState or NamespaceState; the value of one policy; a
    topic's number of partitions; the number of a partition; whether a subscription is replicated; the actions of a
    role; the roles of a subscription. None: not there.
    """

    cluster: str
    action: Literal["create", "update", "replace", "delete"]
    kind: Literal[
        "cluster", "tenant", "namespace", "policy", "topic", "partition", "subscription", "grant", "subscription_grant"
    ]
    name: str
    policy: str = ""
    subscription: str = ""
    role: str = ""
    before: Any = None
    after: Any = None
    deletes_data: bool = False

    @property
    def subject(self) -> str:
        """The name with which an operator allows a change that deletes data; the same on each cluster.

        `tenant:clusters`, `tenant/namespace:policy`, or the name of a cluster, namespace or topic.
        """
        aspect = "clusters" if self.kind == "tenant" else self.policy
        return f"{self.name}:{aspect}" if aspect else self.name

    def __str__(self) -> str:
        what = self.name + (f" {self.policy}" if self.policy else "")
        what += f" subscription {self.subscription}" if self.subscription else ""
        what += f" to {self.role}" if self.role else ""
        if self.action in ("update", "replace"):
            what += f": {_words(self.before, self.policy)} -> {_words(self.after, self.policy)}"
        elif self.kind in ("grant", "subscription_grant"):
            what += f": {_words(self.after or self.before)}"
        return f"{self.cluster}: {self.action} {self.kind} {what}"


def plan(desired: Mapping[str, ClusterState], actual: Mapping[str, ClusterState]) -> list[Change]:
    """The changes that lead from `actual` to `desired`, in order; empty when they agree.

    Subscriptions, dead-letter and retry topics that the topology does not name stay: consumers created them.
    """
    changes = [
        change
        for cluster, state in desired.items()
        for change in _cluster_changes(cluster, state, actual.get(cluster, ClusterState()))
    ]
    made = [change for change in changes if not _removes(change)]
    gone = [change for change in changes if _removes(change)]
    # Stable: clusters are interleaved kind by kind, so that every cluster knows all others before anything replicates.
    return sorted(made, key=_rank) + sorted(gone, key=lambda one: -_rank(one))


def _removes(change: Change) -> bool:
    # A tenant loses a cluster only after its namespaces have left it.
    return change.action == "delete" or (change.kind in ("tenant", "namespace") and change.deletes_data)


def _rank(change: Change) -> int:
    # A namespace is made with automatic topic creation off, and gets its own setting when its topics are there: a
    # client that waits for the namespace would else make a topic without partitions in the moment between.
    if change.policy == "auto_topic_creation":
        return _ORDER.index("auto_topic_creation")
    # A namespace that goes stops replicating in every cluster before it is deleted in one.
    return _ORDER.index("policy" if (change.kind, change.action) == ("namespace", "update") else change.kind)


def _cluster_changes(cluster: str, desired: ClusterState, actual: ClusterState) -> Iterator[Change]:
    for name, registration in desired.registrations.items():
        yield from _resource_changes(cluster, "cluster", name, actual.registrations.get(name), registration)
    for name, tenant in desired.tenants.items():
        yield from _resource_changes(cluster, "tenant", name, actual.tenants.get(name), tenant)
    filled = {topic.rpartition("/")[0] for topic in actual.topics}
    for name, namespace in desired.namespaces.items():
        yield from _namespace_changes(cluster, name, actual.namespaces.get(name), namespace, name in filled)
    for name, topic in desired.topics.items():
        yield from _topic_changes(cluster, name, actual.topics.get(name), topic)
    if actual.enforces_rights:
        yield from _grants(cluster, desired.namespaces, actual.namespaces)
    yield from _surplus(cluster, desired, actual)


def _grants(
    cluster: str, desired: Mapping[str, NamespaceState], actual: Mapping[str, NamespaceState]
) -> Iterator[Change]:
    """Missing rights are granted, and rights that the topology does not name are revoked."""
    for namespace, wanted in desired.items():
        found = actual.get(namespace)
        after, before = wanted.grants, (found and found.grants) or {}
        if after is None:
            continue
        for name in sorted({*before, *after}):
            olds, news = before.get(name, {}), after.get(name, {})
            for role in sorted({*olds, *news}):
                old, new = olds.get(role), news.get(role)
                if old != new:
                    action = _action(old, new)
                    yield Change(
                        cluster=cluster, action=action, kind="grant", name=name, role=role, before=old, after=new
                    )
        # A subscription that the topology does not name keeps its roles, which only restrict it.
        held = (found and found.subscription_roles) or {}
        for name, roles in (wanted.subscription_roles or {}).items():
            if held.get(name) != roles:
                yield Change(
                    cluster=cluster,
                    action=_action(held.get(name), roles),
                    kind="subscription_grant",
                    name=namespace,
                    subscription=name,
                    before=held.get(name),
                    after=roles,
                )


def _action(old: frozenset[str] | None, new: frozenset[str] | None) -> Literal["create", "update", "delete"]:
    return "create" if old is None else "delete" if new is None else "update"


def _resource_changes(
    cluster: str,
    kind: Literal["cluster", "tenant"],
    name: str,
    before: _ResourceState,
    after: Registration | TenantState,
) -> Iterator[Change]:
    if isinstance(before, Registration) and isinstance(after, Registration) and not after.trust_certs_file:
        before = before.model_copy(update={"trust_certs_file": ""})
    if before != after:
        action: Literal["create", "update"] = "create" if before is None else "update"
        yield Change(
            cluster=cluster,
            action=action,
            kind=kind,
            name=name,
            before=before,
            after=after,
            deletes_data=_takes_clusters_away(before, after),
        )


def _namespace_changes(
    cluster: str, name: str, before: NamespaceState | None, after: NamespaceState, has_topics: bool
) -> Iterator[Change]:
    if before is None:
        yield Change(cluster=cluster, action="create", kind="namespace", name=name, after=after)
        before = new_namespace_state(after)
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
                deletes_data=has_topics and _can_lose_messages(policy, old, new),
            )


def _topic_changes(cluster: str, name: str, before: TopicState | None, after: TopicState) -> Iterator[Change]:
    replaced = False
    if before is None:
        yield Change(cluster=cluster, action="create", kind="topic", name=name, after=after.partitions)
        before = TopicState(partitions=after.partitions)
    elif before.partitions != after.partitions:
        # Partitions can only be added, and only to a partitioned topic.
        replaced = not 0 < before.partitions < after.partitions
        yield Change(
            cluster=cluster,
            action="replace" if replaced else "update",
            kind="topic",
            name=name,
            before=before.partitions,
            after=after.partitions,
            deletes_data=replaced,
        )
        before = TopicState(partitions=after.partitions) if replaced else before
    for number in before.missing:
        missing = partition_name(name, number)
        yield Change(cluster=cluster, action="create", kind="partition", name=missing, after=number)
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
                deletes_data=replaced,  # it belongs to the replacement: without it there is nothing to do
            )


def _surplus(cluster: str, desired: ClusterState, actual: ClusterState) -> Iterator[Change]:
    for name in actual.registrations:
        if name not in desired.registrations and name not in desired.others:
            before = actual.registrations[name]
            yield Change(cluster=cluster, action="delete", kind="cluster", name=name, before=before, deletes_data=True)
    for name, namespace in actual.namespaces.items():
        if name.partition("/")[0] in desired.tenants and name not in desired.namespaces:
            yield from _namespace_gone(cluster, name, namespace)
    for name, topic in actual.topics.items():
        if (
            name.rpartition("/")[0] in desired.namespaces
            and name not in desired.topics
            and not _is_companion(name, desired)
        ):
            yield Change(
                cluster=cluster, action="delete", kind="topic", name=name, before=topic.partitions, deletes_data=True
            )


def _namespace_gone(cluster: str, name: str, actual: NamespaceState) -> Iterator[Change]:
    # Two steps, as Pulsar needs them: when the second is refused, the first has been reported.
    alone = frozenset({cluster})
    if actual.clusters != alone:
        yield Change(
            cluster=cluster,
            action="update",
            kind="namespace",
            name=name,
            before=actual.clusters,
            after=alone,
            deletes_data=True,
        )
    yield Change(cluster=cluster, action="delete", kind="namespace", name=name, before=actual, deletes_data=True)


def new_namespace_state(desired: NamespaceState) -> NamespaceState:
    """A namespace just after its creation: in its clusters, with automatic topic creation off, and no other policy."""
    return NamespaceState(clusters=desired.clusters, auto_topic_creation=False)


def _is_companion(name: str, desired: ClusterState) -> bool:
    return name.endswith(_COMPANIONS) and any(name.startswith(f"{topic}-") for topic in desired.topics)


def _takes_clusters_away(before: _ResourceState, after: _ResourceState) -> bool:
    if isinstance(before, TenantState) and isinstance(after, TenantState):
        return bool(before.allowed_clusters - after.allowed_clusters)
    return False


def _size(retention: tuple[int, int] | None) -> float:
    if retention is None:
        return 0
    return float("inf") if retention[1] == -1 else retention[1]


def _can_lose_messages(policy: str, old: Any, new: Any) -> bool:
    """Whether messages that `old` keeps could be deleted under `new`.

    None is the broker's own policy, which is not known: as `old` it counts as keeping everything, as `new` as keeping
    nothing.
    """
    if policy == "clusters":
        # The replicator's cursor is deleted with the cluster, and with it the messages not sent yet.
        return bool(set(old) - set(new))
    if policy == "retention":
        before, after = old or (-1, -1), new or (0, 0)
        return any(_shrinks(kept, keeps) for kept, keeps in zip(before, after, strict=True))
    if policy == "message_ttl_s":
        return new is None or _shrinks(old or -1, new or -1)
    if policy == "backlog_quota":
        if new is None:
            return True
        return new[1] == _EVICTS and (old is None or old[1] != _EVICTS or _shrinks(old[0], new[0]))
    return False


def _shrinks(before: int, after: int) -> bool:
    return after != -1 and (before == -1 or after < before)


def _words(value: Any, policy: str = "") -> str:
    if value is None:
        return "unset"
    if policy in _UNITS:
        return _UNITS[policy].format(*value)
    if isinstance(value, frozenset | set):
        return ", ".join(sorted(map(str, value))) or "none"
    if isinstance(value, Settings):
        return ", ".join(f"{key}={_words(getattr(value, key))}" for key in type(value).model_fields)
    return str(value)
