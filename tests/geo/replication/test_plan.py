"""Laws of the plan: it leads to what is wanted, needs no second time, and says what would delete data."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.replication import (
    ClusterState,
    NamespaceState,
    TenantState,
    TopicState,
    Topology,
    desired,
    plan,
)
from geo.replication.apply import _allowed
from tests.examples import examples
from tests.geo.replication.plan_model import with_changes
from tests.geo.replication.topologies import cluster_states, topologies


@given(topologies())
def test_what_is_as_wanted_needs_no_change(topology: Topology) -> None:
    assert plan(desired(topology), desired(topology)) == []


@settings(max_examples=examples(40))
@given(topologies(), cluster_states())
def test_after_all_changes_nothing_is_left_to_change(topology: Topology, there: dict[str, ClusterState]) -> None:
    wanted = desired(topology)
    assert plan(wanted, with_changes(there, plan(wanted, there))) == []


@settings(max_examples=examples(40))
@given(topologies(), topologies())
def test_any_topology_leads_to_any_other(before: Topology, after: Topology) -> None:
    there = desired(before)
    assert plan(desired(after), with_changes(there, plan(desired(after), there))) == []


@settings(max_examples=examples(40))
@given(topologies(), cluster_states())
def test_without_those_that_delete_data_exactly_those_are_left(
    topology: Topology, there: dict[str, ClusterState]
) -> None:
    wanted = desired(topology)
    changes = plan(wanted, there)
    kept = with_changes(there, [change for change in changes if not change.deletes_data])
    assert plan(wanted, kept) == [change for change in changes if change.deletes_data]


@settings(max_examples=examples(40))
@given(topologies(), cluster_states(), st.data())
def test_an_interrupted_apply_is_finished_by_the_next_one(
    topology: Topology, there: dict[str, ClusterState], data: st.DataObject
) -> None:
    wanted = desired(topology)
    changes = plan(wanted, there)
    halfway = with_changes(there, changes[: data.draw(st.integers(0, len(changes)))])
    assert plan(wanted, with_changes(halfway, plan(wanted, halfway))) == []


@settings(max_examples=examples(40))
@given(topologies(), cluster_states())
def test_nothing_of_another_tenant_is_touched(topology: Topology, there: dict[str, ClusterState]) -> None:
    foreign = {
        name: state.model_copy(
            update={
                "namespaces": {**state.namespaces, "public/default": NamespaceState(clusters=frozenset({name}))},
                "topics": {**state.topics, "public/default/x": TopicState(partitions=0)},
            }
        )
        for name, state in there.items()
    }
    assert plan(desired(topology), foreign) == plan(desired(topology), there)


def namespace(**policies: object) -> dict[str, ClusterState]:
    state = NamespaceState.model_validate({"clusters": frozenset({"eu", "hq"}), **policies})
    topics = {"fleet/a/b": TopicState(partitions=0)}
    return {"eu": ClusterState(namespaces={"fleet/a": state}, topics=topics)}


HOLDS, EVICTS = "producer_request_hold", "consumer_backlog_eviction"


@pytest.mark.parametrize(
    ("before", "after", "deletes"),
    [
        ({"retention": (60, 100)}, {"retention": (60, 200)}, False),
        ({"retention": (60, 100)}, {"retention": (60, 50)}, True),
        ({"retention": (-1, -1)}, {"retention": (60, -1)}, True),
        ({"retention": (60, 100)}, {"retention": (-1, -1)}, False),
        ({"retention": (60, 100)}, {"retention": (0, 0)}, True),
        ({"retention": (60, 100)}, {}, True),
        ({}, {"retention": (60, 100)}, True),
        ({}, {"retention": (-1, -1)}, False),
        ({"clusters": frozenset({"eu"})}, {"clusters": frozenset({"eu", "hq"})}, False),
        ({"clusters": frozenset({"eu", "hq"})}, {"clusters": frozenset({"eu"})}, True),
        ({}, {"message_ttl_s": 5}, True),
        ({"message_ttl_s": 5}, {"message_ttl_s": 9}, False),
        ({"message_ttl_s": 9}, {"message_ttl_s": 5}, True),
        ({"message_ttl_s": 9}, {"message_ttl_s": 0}, False),
        ({"message_ttl_s": 0}, {"message_ttl_s": 9}, True),
        ({}, {"message_ttl_s": 0}, False),
        ({"message_ttl_s": 0}, {"message_ttl_s": None}, True),
        ({}, {"backlog_quota": (5, HOLDS)}, False),
        ({}, {"backlog_quota": (5, EVICTS)}, True),
        ({"backlog_quota": (5, EVICTS)}, {"backlog_quota": (4, EVICTS)}, True),
        ({"backlog_quota": (5, EVICTS)}, {"backlog_quota": (6, EVICTS)}, False),
        ({"backlog_quota": (5, HOLDS)}, {}, True),
        ({}, {"deduplication": True}, False),
        ({}, {"compaction_threshold_bytes": 5}, False),
        ({}, {"auto_topic_creation": False}, False),
    ],
)
def test_a_policy_that_shortens_what_is_kept_is_marked_also_where_the_brokers_own_is_not_known(
    before: dict[str, object], after: dict[str, object], deletes: bool
) -> None:
    [change] = plan(namespace(**after), namespace(**before))
    assert change.kind == "policy"
    assert change.deletes_data is deletes
    assert change.subject == f"fleet/a:{change.policy}"


def test_a_tenant_that_loses_a_cluster_is_marked_and_changed_after_its_namespaces() -> None:
    def tenant(*clusters: str) -> dict[str, ClusterState]:
        spaces = {f"fleet/{name}": NamespaceState(clusters=frozenset({name})) for name in clusters}
        return {
            "hq": ClusterState(tenants={"fleet": TenantState(allowed_clusters=frozenset(clusters))}, namespaces=spaces)
        }

    gone = plan(tenant("hq"), tenant("eu", "hq"))
    assert [(change.subject, change.action, change.deletes_data) for change in gone] == [
        ("fleet/eu", "update", True),
        ("fleet/eu", "delete", True),
        ("fleet:clusters", "update", True),
    ]
    assert not any(change.deletes_data for change in plan(tenant("eu", "hq"), tenant("hq")))


def test_retention_grows_before_the_quota_and_shrinks_after_it() -> None:
    small: dict[str, Any] = {"retention": (60, 100), "backlog_quota": (50, "producer_request_hold")}
    large: dict[str, Any] = {"retention": (60, 900), "backlog_quota": (800, "producer_request_hold")}
    assert [change.policy for change in plan(namespace(**large), namespace(**small))] == ["retention", "backlog_quota"]
    assert [change.policy for change in plan(namespace(**small), namespace(**large))] == ["backlog_quota", "retention"]


def test_partitions_are_added_and_what_cannot_be_added_is_a_replacement_that_deletes_data() -> None:
    def topics(partitions: int) -> dict[str, ClusterState]:
        topic = TopicState(partitions=partitions, subscriptions={"ingest": True})
        return {"eu": ClusterState(topics={"fleet/a/batches": topic})}

    [change] = plan(topics(4), topics(2))
    assert str(change) == "eu: update topic fleet/a/batches: 2 -> 4"
    assert not change.deletes_data
    for before, after in ((4, 2), (0, 2), (2, 0)):
        replaced, subscription = plan(topics(after), topics(before))
        assert str(replaced) == f"eu: replace topic fleet/a/batches: {before} -> {after}"
        assert (subscription.kind, subscription.subject) == ("subscription", replaced.subject)
        assert replaced.deletes_data
        assert subscription.deletes_data


def test_a_subscription_that_a_consumer_made_stays() -> None:
    there = {"eu": ClusterState(topics={"fleet/a/b": TopicState(partitions=0, subscriptions={"mine": False})})}
    wanted = {"eu": ClusterState(topics={"fleet/a/b": TopicState(partitions=0)})}
    assert plan(wanted, there) == []


def test_only_the_deletion_that_was_named_is_allowed() -> None:
    def topics(*names: str) -> dict[str, ClusterState]:
        made = {f"fleet/a/{name}": TopicState(partitions=0) for name in names}
        return {"eu": ClusterState(namespaces={"fleet/a": NamespaceState(clusters=frozenset({"eu"}))}, topics=made)}

    pending = plan(topics("new"), topics("one", "two"))
    assert [change.subject for change in _allowed(pending, ["fleet/a/one"])] == ["fleet/a/new", "fleet/a/one"]
    assert [change.subject for change in _allowed(pending, [])] == ["fleet/a/new"]


def test_a_namespace_that_goes_stops_replicating_everywhere_before_it_is_deleted_anywhere() -> None:
    spaces = {"fleet/a": NamespaceState(clusters=frozenset({"eu", "hq"}))}
    tenants = {"fleet": TenantState(allowed_clusters=frozenset({"eu", "hq"}))}
    there = {name: ClusterState(tenants=tenants, namespaces=spaces) for name in ("eu", "hq")}
    changes = plan({name: ClusterState(tenants=tenants) for name in there}, there)
    assert [str(change) for change in changes] == [
        "eu: update namespace fleet/a: eu, hq -> eu",
        "hq: update namespace fleet/a: eu, hq -> hq",
        "eu: delete namespace fleet/a",
        "hq: delete namespace fleet/a",
    ]
    assert {(change.subject, change.deletes_data) for change in changes} == {("fleet/a", True)}
