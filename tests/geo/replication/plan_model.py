"""What changes do, as a model: the laws of `plan` are stated with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from geo.replication.admin import AdminClient
from geo.replication.cluster_state import ClusterState, NamespaceState, TopicState, actual, desired
from geo.replication.model import Topology, namespace_of
from geo.replication.plan import Change, new_namespace_state, plan


def read_plan(topology: Topology, clients: Mapping[str, AdminClient]) -> list[Change]:
    """What would have to change now; every cluster must answer. Service addresses are not asked."""
    return plan(desired(topology), actual(clients, topology.tenants))


def with_changes(actual: Mapping[str, ClusterState], changes: Sequence[Change]) -> dict[str, ClusterState]:
    """What is there after the changes, if every one is made: the model that the laws of `plan` are tested with."""
    states = dict(actual)
    for change in changes:
        states[change.cluster] = _after(states.get(change.cluster, ClusterState()), change)
    return states


def _after(state: ClusterState, change: Change) -> ClusterState:
    match change.kind:
        case "grant" | "subscription_grant":
            namespace = namespace_of(change.name)
            return _with(state, "namespaces", namespace, _rights_after(state.namespaces[namespace], change))
        case "cluster":
            return _with(state, "registrations", change.name, change.after)
        case "tenant":
            return _with(state, "tenants", change.name, change.after)
        case "policy" | "namespace" if change.action == "update":
            old = state.namespaces[change.name]
            changed = {change.policy or "clusters": change.after}
            return _with(state, "namespaces", change.name, old.model_copy(update=changed))
        case "namespace" | "policy":
            made = change.after and new_namespace_state(change.after)
            state = _with(state, "namespaces", change.name, made)
            return state if made else _without_topics(state, change.name)
        case _:
            name, topic = _topic_after(state, change)
            return _with(state, "topics", name, topic)


def _rights_after(held: NamespaceState, change: Change) -> NamespaceState:
    if change.kind == "subscription_grant":
        roles = {**(held.subscription_roles or {}), change.subscription: change.after}
        return held.model_copy(update={"subscription_roles": roles})
    rest = {role: may for role, may in (held.grants or {}).get(change.name, {}).items() if role != change.role}
    of_one = rest | ({} if change.after is None else {change.role: change.after})
    return held.model_copy(update={"grants": {**(held.grants or {}), change.name: of_one}})


def _topic_after(state: ClusterState, change: Change) -> tuple[str, TopicState | None]:
    if change.kind == "partition":
        name = change.name.rpartition("-partition-")[0]
        held = state.topics[name]
        missing = tuple(number for number in held.missing if number != change.after)
        return name, held.model_copy(update={"missing": missing})
    if change.kind == "subscription":
        held = state.topics[change.name]
        more = {**held.subscriptions, change.subscription: bool(change.after)}
        return change.name, held.model_copy(update={"subscriptions": more})
    kept = state.topics[change.name] if change.action == "update" else TopicState(partitions=0)
    return change.name, None if change.action == "delete" else kept.model_copy(update={"partitions": change.after})


def _with(state: ClusterState, field: str, name: str, value: Any) -> ClusterState:
    things = {key: thing for key, thing in getattr(state, field).items() if key != name}
    return state.model_copy(update={field: things | ({} if value is None else {name: value})})


def _without_topics(state: ClusterState, namespace: str) -> ClusterState:
    left = {name: topic for name, topic in state.topics.items() if name.rpartition("/")[0] != namespace}
    return state.model_copy(update={"topics": left})
