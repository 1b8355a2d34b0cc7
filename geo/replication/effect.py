"""What changes do, as a model: the laws of `plan` are stated with it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from geo.replication.plan import Change, fresh
from geo.replication.state import ClusterState, TopicState

__all__ = ["applied"]


def applied(actual: Mapping[str, ClusterState], changes: Sequence[Change]) -> dict[str, ClusterState]:
    """What is there after the changes, if every one is made: the model that the laws of `plan` are tested with."""
    states = dict(actual)
    for change in changes:
        states[change.cluster] = _after(states.get(change.cluster, ClusterState()), change)
    return states


def _after(state: ClusterState, change: Change) -> ClusterState:
    match change.kind:
        case "cluster":
            return _with(state, "registrations", change.name, change.after)
        case "tenant":
            return _with(state, "tenants", change.name, change.after)
        case "policy" | "namespace" if change.action == "update":
            old = state.namespaces[change.name]
            changed = {change.policy or "clusters": change.after}
            return _with(state, "namespaces", change.name, old.model_copy(update=changed))
        case "namespace" | "policy":
            made = change.after and fresh(change.after)
            state = _with(state, "namespaces", change.name, made)
            return state if made else _without_topics(state, change.name)
        case "topic":
            kept = state.topics[change.name].subscriptions if change.action == "update" else {}
            topic = None if change.action == "delete" else TopicState(partitions=change.after, subscriptions=kept)
            return _with(state, "topics", change.name, topic)
        case "subscription":
            held = state.topics[change.name]
            more = {**held.subscriptions, change.subscription: bool(change.after)}
            return _with(state, "topics", change.name, held.model_copy(update={"subscriptions": more}))


def _with(state: ClusterState, field: str, name: str, value: Any) -> ClusterState:
    things = {key: thing for key, thing in getattr(state, field).items() if key != name}
    return state.model_copy(update={field: things | ({} if value is None else {name: value})})


def _without_topics(state: ClusterState, namespace: str) -> ClusterState:
    left = {name: topic for name, topic in state.topics.items() if name.rpartition("/")[0] != namespace}
    return state.model_copy(update={"topics": left})
