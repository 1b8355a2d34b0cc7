"""Rights of the topology's roles in namespaces of a tenant that is not in it, and tenants that have no namespace."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from geo.replication.apply import admins, left_over
from geo.replication.cli import _print_new_tenants
from geo.replication.cluster_state import TenantState
from geo.replication.model import Topology
from geo.replication.plan import Change
from tests.geo.replication.brokers import FakeBroker


def wanted(broker: FakeBroker, roles: dict[str, object]) -> Topology:
    at = {"service_url": "pulsar://127.0.0.1:9", "admin_url": broker.url}
    return Topology.model_validate(
        {
            "centre": "hq",
            "clusters": {"hq": {"address": at}},
            "regions": {"eu": {"cluster": "hq"}},
            "tenants": {"fleet": {"operator": True}},
            "namespaces": {"{tenant}/telemetry-{region}": {}},
            "roles": roles,
            "replication_role": "replication-{cluster}",
        }
    )


ROLES: dict[str, object] = {"gateway-{region}": {"grants": {"{tenant}/telemetry-{region}": ["produce"]}}}


def answers(broker: FakeBroker, path: str, content: object) -> None:
    broker.answers[f"/admin/v2/{path}"] = (200, {}, json.dumps(content).encode())


def with_zeta(broker: FakeBroker, rights: object, namespaces: int = 1) -> None:
    names = [f"zeta/telemetry-{number}" for number in range(namespaces)]
    answers(broker, "tenants", ["fleet", "public", "zeta"])
    answers(broker, "namespaces/public", ["public/default"])
    answers(broker, "namespaces/public/default", {"replication_clusters": ["hq"]})
    answers(broker, "namespaces/zeta", names)
    for name in names:
        answers(broker, f"namespaces/{name}", {"replication_clusters": ["hq"], "auth_policies": rights})


def found(topology: Topology) -> tuple[str, ...]:
    with admins(topology) as clients:
        return left_over(topology, clients)


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ({"namespace_auth": {"gateway-eu": ["produce"], "other": ["consume"]}}, "gateway-eu produce;"),
        ({"namespace_auth": {"replication-hq": ["produce"]}}, "replication-hq produce;"),
        ({"destination_auth": {"persistent://zeta/telemetry-0/batches": {"gateway-eu": ["consume"]}}}, "eu consume;"),
        ({"namespace_auth": {"other": ["consume"]}}, ""),
    ],
)
def test_a_right_of_a_role_at_a_tenant_that_the_topology_does_not_name_is_named(
    broker: Callable[[str], FakeBroker], rights: object, said: str
) -> None:
    one = broker("hq")
    with_zeta(one, rights)
    lines = found(wanted(one, ROLES))
    assert len(lines) == bool(said)
    for line in lines:
        assert line.startswith("hq: zeta/telemetry-0 is of a tenant that the topology does not name")
        assert said in line
        assert "other" not in line.partition("rights: ")[2].partition(";")[0]
        assert "[tenants.zeta]" in line
    assert found(wanted(one, {})) == (), "rights are left as they are"


@pytest.mark.parametrize(
    ("is_operator", "said"),
    [(False, "tenant zeta gets no namespace"), (True, "zeta is a new fleet operator: name it in")],
)
def test_a_new_tenant_is_said_to_need_more(
    broker: Callable[[str], FakeBroker], capsys: pytest.CaptureFixture[str], is_operator: bool, said: str
) -> None:
    topology = wanted(broker("hq"), ROLES)
    named = topology.model_dump() | {"tenants": {"fleet": {"operator": True}, "zeta": {"operator": is_operator}}}
    made = Change(
        cluster="hq", action="create", kind="tenant", name="zeta", after=TenantState(allowed_clusters=frozenset())
    )
    _print_new_tenants(Topology.model_validate(named), [made])
    assert said in capsys.readouterr().err
    _print_new_tenants(topology, [])
    assert capsys.readouterr().err == ""
