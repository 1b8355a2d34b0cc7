"""Rights are the least that a role needs, and what is too much is taken away as what is missing is given."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pydantic import SecretStr, ValidationError

from geo.replication import ClusterState, Topology, desired, plan
from geo.replication import verification as grant_probe
from geo.replication.admin import AdminClient
from geo.replication.apply import ServiceAddress
from geo.replication.cluster_state import BrokerDefaults
from geo.replication.rest_types import CONFIGURATION
from geo.replication.verification import NOBODY, TriedRight, VerifyResult, try_rights, untried_roles
from tests.geo.replication.brokers import RUNTIME, FakeBroker
from tests.geo.replication.topologies import located
from waybill.pulsar.pulsar_client import PulsarAccess

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
    return state.model_copy(update={"defaults": BrokerDefaults(authorization=True), "namespaces": spaces})


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


def test_a_role_without_a_token_at_hand_is_unknown_and_what_is_bad_stays_bad(tmp_path: Path) -> None:
    wanted = topology()
    assert untried_roles(wanted, None) == tuple(wanted.roles_by_name())
    for role in wanted.roles_by_name():
        (tmp_path / f"{role}.token").write_text("a token")
    assert untried_roles(wanted, tmp_path) == ()
    good = TriedRight(role="jobs", cluster="hq", action="consume", resource=EU, may=True, was=True)
    for right, verdict in ((good, None), (good.model_copy(update={"was": False}), False)):
        result = VerifyResult(links=(), unreachable={}, rights=(right,), untried=("jobs",))
        assert result.is_good is verdict
    result = VerifyResult(links=(), unreachable={}, rights=(good,))
    assert result.is_good is True
    assert result.model_copy(update={"unprotected": ("eu: ...",)}).is_good is False
    lost = {"unprotected": ("eu: ...",), "unreachable": {"us": "..."}}
    assert result.model_copy(update=lost).is_good is None


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


_SAID = b'{"clusterName": "eu", "authorizationEnabled": "true"}'


class _Client:
    """Of a service address that gives an answer, or none within the time."""

    def __init__(self, answer: pulsar.PulsarException | None) -> None:
        self._answer = answer

    def create_producer(self, *_: object) -> Any:
        if self._answer is not None:
            raise self._answer
        return self

    create_reader = create_producer

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "of_operator", "was"),
    [
        (401, None, False),
        (403, pulsar.AuthorizationError("not this topic"), False),
        (401, pulsar.Timeout("TimeOut"), None),
        (500, None, None),
        (200, None, None),
    ],
)
def test_silence_to_nobody_is_a_refusal_where_http_refuses_and_the_operator_is_answered(
    broker: Callable[[str], FakeBroker],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    of_operator: pulsar.PulsarException | None,
    was: bool | None,
) -> None:
    eu = broker("eu")
    eu.answers |= {RUNTIME: (200, {}, _SAID), "/admin/v2/tenants": (status, {}, b"[]")}

    def connect(admin: AdminClient, _: ServiceAddress, **__: object) -> _Client:
        return _Client(of_operator if admin.access.token is not None else pulsar.Timeout("TimeOut"))

    monkeypatch.setattr(grant_probe, "connect", connect)
    with AdminClient("eu", eu.url, access=PulsarAccess(token=SecretStr("operator"))) as admin:
        asked, produced = try_rights(topology(), {"eu": admin}, None)
    assert (asked.role, asked.action) == (produced.role, "ask for") == (NOBODY, "ask for")
    assert (produced.action, produced.was) == ("produce", was)
    assert ("TimeOut" in str(produced)) is (was is None)


@pytest.mark.parametrize(("was", "verdict"), [((False, False), True), ((False, None), None), ((True, None), False)])
def test_what_got_no_answer_is_unknown_unless_something_is_wrong(
    was: tuple[bool | None, ...], verdict: bool | None
) -> None:
    rights = tuple(
        grant_probe.TriedRight(role=NOBODY, cluster="eu", action="produce", resource="a/b", may=False, was=one)
        for one in was
    )
    assert VerifyResult(links=(), unreachable={}, rights=rights).is_good is verdict
