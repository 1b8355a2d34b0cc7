"""The topology on three real clusters: applied once, verified over every link, and careful with data."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from deploy.local import LocalStack
from geo.replication import AdminClient, Namespace, Topic, Topology, WrongCluster, admins, apply
from geo.replication.cli import app
from geo.replication.model import Retention, Tenant
from tests.geo.replication.plan_model import read_plan
from tests.system.topology_parts import look
from tests.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def clients(stack: LocalStack) -> Iterator[dict[str, AdminClient]]:
    with admins(stack.topology, stack.access()) as opened:
        yield opened


def topology_file(stack: LocalStack) -> str:
    return str(stack.folder / "topology.toml")


def test_applying_a_second_time_changes_nothing(stack: LocalStack, clients: dict[str, AdminClient]) -> None:
    # grants of topics that other tests left
    apply(stack.topology, clients)
    assert apply(stack.topology, clients).changed == ()
    assert [change for change in read_plan(stack.topology, clients) if not change.deletes_data] == []


def test_verify_finds_every_link_good_and_measures_it(stack: LocalStack) -> None:
    done = CliRunner().invoke(app, ["verify", "--topology", topology_file(stack), "--json"])
    assert done.exit_code == 0, done.stdout
    links = json.loads(done.stdout)["links"]
    assert len(links) == len(stack.topology.links())
    assert all(link["connected"] and 0 < link["latency_s"] < 15 for link in links)


@pytest.mark.nightly  # a replicator waits up to minutes before it tries again; the drill of a cut link counts records
def test_verify_names_a_cut_link_and_its_backlog_and_it_heals(stack: LocalStack) -> None:
    stack.links["eu->hq"].cut()
    try:
        done = CliRunner().invoke(app, ["verify", "--topology", topology_file(stack), "--json", "--timeout", "2"])
    finally:
        stack.links["eu->hq"].heal()
    bad = {
        (link["namespace"], link["source"], link["target"]): link
        for link in json.loads(done.stdout)["links"]
        if link["problem"]
    }
    assert done.exit_code == 1
    replicated = ("access", "alerts-eu", "reference", "registry", "telemetry-eu")
    canary = ("alerts-eu", "registry", "telemetry-eu")
    cut = (*(f"canary/{name}" for name in canary), *(f"fleet/{name}" for name in replicated))
    assert set(bad) == {(name, "eu", "hq") for name in cut}
    assert bad["fleet/telemetry-eu", "eu", "hq"]["backlog"] > 0
    wait_until(lambda: not _unhealed(stack), 60, said=lambda: _unhealed(stack))


def _unhealed(stack: LocalStack) -> list[object]:
    with admins(stack.topology, stack.access()) as opened:
        return [link for link in look(stack, opened).links if not link.connected or link.backlog]


def test_what_would_delete_data_is_held_back_until_it_is_allowed(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    # A tenant of its own: what other tests left in theirs must not be deleted here.
    def topology(**namespaces: Namespace) -> Topology:
        spaces = {f"held/{name}": one for name, one in namespaces.items()}
        return stack.topology.model_copy(update={"tenants": {"held": Tenant()}, "namespaces": spaces})

    topics = {"one": Topic(partitions=1)}
    held = Namespace(clusters=("eu", "hq"), retention=Retention(minutes=60, size_mb=100), topics=topics)
    apply(topology(a=held), clients)
    more = held.model_copy(update={"topics": {"one": Topic(partitions=3), "two": Topic()}})
    assert {str(change) for change in apply(topology(a=more), clients).changed} == {
        f"{cluster}: {what}"
        for cluster in ("eu", "hq")
        for what in ("update topic held/a/one: 1 -> 3", "create topic held/a/two")
    } | {
        f"{here}: create grant held/a/two to replication-{there}: produce"
        for here, there in (("eu", "hq"), ("hq", "eu"))
    }
    less = more.model_copy(update={"retention": Retention(minutes=10, size_mb=100)})
    kept = apply(topology(a=less), clients)
    assert kept.changed == ()
    assert {change.policy for change in kept.held_back} == {"retention"}
    assert apply(topology(a=less), clients, allow_delete=["held/a"]).changed == ()
    assert apply(topology(a=less), clients, allow_delete=["held/a:retention"]).held_back == ()
    assert {change.kind for change in apply(topology(), clients).held_back} == {"namespace"}
    assert apply(topology(), clients, allow_delete=["held/a"]).held_back == ()
    assert clients["hq"].get("namespaces/held/a") is None
    assert read_plan(topology(), clients) == []


def test_swapped_addresses_are_refused_and_nothing_is_changed(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    swapped = stack.topology.model_dump()
    us, eu = swapped["clusters"]["us"]["address"], swapped["clusters"]["eu"]["address"]
    us["admin_url"], eu["admin_url"] = eu["admin_url"], us["admin_url"]
    before = {name: [client.get(f"clusters/{one}") for one in clients] for name, client in clients.items()}
    with admins(Topology.model_validate(swapped), stack.access()) as wrong, pytest.raises(WrongCluster):
        apply(Topology.model_validate(swapped), wrong)
    assert before == {name: [client.get(f"clusters/{one}") for one in clients] for name, client in clients.items()}
