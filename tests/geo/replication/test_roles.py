"""Rights are the least that a role needs, and what is too much is taken away as what is missing is given."""

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from geo.replication import ClusterState, Topology, desired, plan
from geo.replication.rest_types import CONFIGURATION
from tests.geo.replication.topologies import located

LOCAL = Path(__file__).parents[3] / "deploy" / "local"
EU, US, EVENTS = "fleet/telemetry-eu", "fleet/telemetry-us", "fleet/events"


def topology(**more: object) -> Topology:
    said: dict[str, object] = {
        "centre": "hq",
        "replication_role": "replication-{cluster}",
        "clusters": {name: located(name) for name in ("eu", "us", "hq")},
        "regions": {"eu": {"cluster": "eu"}, "us": {"cluster": "us"}},
        "tenants": {"fleet": {"operator": True}},
        "namespaces": {
            "{tenant}/telemetry-{region}": {"topics": {"batches": {"partitions": 2}, "refused": {}}},
            EVENTS: {"clusters": "centre", "topics": {"geofence": {}}},
        },
        "roles": {
            "operator": {"superuser": True},
            "gateway-{region}": {"on": "region", "grants": {"{tenant}/telemetry-{region}": ["produce"]}},
            "jobs": {"on": "centre", "grants": {"{tenant}/telemetry-{region}": ["consume"], EVENTS: ["produce"]}},
            "auditor": {"grants": {f"{EU}/refused": ["consume"]}},
        },
    }
    return Topology.model_validate(said | more)


def guarded(state: ClusterState, **of_eu: object) -> ClusterState:
    """The same cluster, in which rights count, with these of the namespace `fleet/telemetry-eu`."""
    spaces = dict(state.namespaces)
    if of_eu:
        spaces[EU] = spaces[EU].model_copy(update=of_eu)
    return state.model_copy(update={"enforces_rights": True, "namespaces": spaces})


def test_a_gateway_may_produce_in_its_region_alone_and_brokers_where_their_cluster_replicates_to() -> None:
    produce, consume = frozenset({"produce"}), frozenset({"consume"})
    known = topology()

    def of(cluster: str, namespace: str, roles: dict[str, frozenset[str]]) -> None:
        others = {role: may for role, may in roles.items() if role.startswith("replication-")}
        refused = roles | ({"auditor": consume} if namespace == EU else {})
        topics = {f"{namespace}/batches": roles, f"{namespace}/refused": refused, f"{namespace}/probe": others}
        assert known.grants(cluster, namespace) == topics

    of("eu", EU, {"gateway-eu": produce, "replication-hq": produce})
    of("hq", EU, {"jobs": consume, "replication-eu": produce})
    of("us", US, {"gateway-us": produce, "replication-hq": produce})
    assert known.grants("hq", EVENTS) == {f"{EVENTS}/geofence": {"jobs": produce}}
    assert known.superusers() == ("operator",)


def test_a_subscription_is_for_its_roles_and_the_brokers_own_are_for_superusers() -> None:
    ingest = {"ingest": {"roles": ["gateway-{region}"]}, "audit": {"create": False}}
    known = topology(namespaces={"{tenant}/telemetry-{region}": {"topics": {"batches": {"subscriptions": ingest}}}}, roles={"operator": {"superuser": True}, "gateway-{region}": {"on": "region"}})  # fmt: skip  # noqa: E501
    closed = frozenset({"operator", "replication-eu"})
    own = dict.fromkeys(["__compaction", "pulsar.dedup", "pulsar.repl.hq"], closed)
    assert known.subscription_roles("eu", EU) == {"ingest": frozenset({"gateway-eu"}), "audit": closed} | own
    assert desired(known)["hq"].topics[f"{EU}/batches"].subscriptions == {"ingest": True}
    wanted = desired(known)
    there = {name: guarded(state) for name, state in wanted.items()}
    there["eu"] = guarded(wanted["eu"], subscription_roles={"ingest": frozenset({"stranger"}), "mine": frozenset()})
    assert [str(change) for change in plan(wanted, there)] == [
        f"eu: update subscription_grant {EU} subscription ingest: stranger -> gateway-eu",
        f"eu: create subscription_grant {EU} subscription audit: operator, replication-eu",
        *(f"eu: create subscription_grant {EU} subscription {one}: operator, replication-eu" for one in own),
    ]
    with pytest.raises(ValidationError, match=r"subscriptions.ingest.roles: no role 'gateway-eu'"):
        topology(namespaces={"{tenant}/telemetry-{region}": {"topics": {"batches": {"subscriptions": ingest}}}}, roles={"jobs": {}})  # fmt: skip  # noqa: E501


def test_a_plan_shows_what_is_missing_and_what_is_too_much() -> None:
    wanted = desired(topology())
    both, produce = frozenset({"consume", "produce"}), frozenset({"produce"})
    right = wanted["hq"].namespaces[EU].grants or {}
    held = {EU: {"gateway-eu": produce}, f"{EU}/__change_events": {"jobs": produce}, f"{EU}/batches": {"jobs": both}}
    there = {name: guarded(state) for name, state in wanted.items()}
    there["hq"] = guarded(wanted["hq"], grants={**right, **held})
    # What a role needs comes first: a namespace's right goes when its topics have theirs.
    assert [str(change) for change in plan(wanted, there)] == [
        f"hq: update grant {EU}/batches to jobs: consume, produce -> consume",
        f"hq: create grant {EU}/batches to replication-eu: produce",
        f"hq: delete grant {EU} to gateway-eu: produce",
        f"hq: delete grant {EU}/__change_events to jobs: produce",
    ]
    assert not any(change.deletes_data for change in plan(wanted, there))


def test_where_rights_do_not_count_or_are_not_named_none_is_given_and_none_taken() -> None:
    named, silent = desired(topology()), desired(topology(roles={}))
    assert plan(named, silent) == []
    assert plan(silent, {name: guarded(state) for name, state in named.items()}) == []


def test_who_may_do_everything_is_read_from_a_brokers_configuration() -> None:
    said = {"clusterName": "eu", "authorizationEnabled": "true", "superUserRoles": "[operator, replication-eu]"}
    found = CONFIGURATION.validate_python(said)
    assert found.authorization
    assert found.superusers == frozenset({"operator", "replication-eu"})
    assert not CONFIGURATION.validate_python({"clusterName": "eu"}).authorization


@pytest.mark.parametrize("file", ["topology.toml", "topology-dr.toml"])
@pytest.mark.parametrize(
    ("topic", "writers"),
    [
        ("reference/tariffs", set()),
        ("registry/devices", {"access-eu", "fleet-operator", "fleet-operator-fleet"}),
        ("reference/revocation-lists", {"access-eu"}),
        ("access/confirmations", {"access-eu"}),
    ],
)
def test_in_a_region_of_the_local_stack_each_role_writes_what_is_its_own_alone(
    file: str, topic: str, writers: set[str]
) -> None:
    wanted = Topology.model_validate(tomllib.loads((LOCAL / file).read_text()))
    namespace = topic.partition("/")[0]
    given = wanted.grants("eu", f"fleet/{namespace}")[f"fleet/{topic}"]
    roles = {role for role, may in given.items() if "produce" in may}
    assert {role for role in roles if not role.startswith("replication-")} == writers
    assert "consume" in wanted.grants("eu", "fleet/access")["fleet/access/confirmations"]["fleet-operator"]
    assert "gateway-eu" not in wanted.grants("eu", "fleet/reference")["fleet/reference/accounts"]
    assert [*wanted.roles_by_name()["fleet-operator-canary"].grants] == [
        "canary/registry/devices",
        "fleet/access/confirmations",
    ], "a tenant's own role has no topic of another tenant"
