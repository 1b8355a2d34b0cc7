"""The topology on three real clusters: applied once, verified over every link, and careful with data."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from typer.testing import CliRunner

from deploy.local import LocalStack
from geo.replication import (
    AdminClient,
    Namespace,
    NothingToDelete,
    Topic,
    Topology,
    WrongCluster,
    admins,
    apply,
)
from geo.replication.cli import app
from geo.replication.link_probe import observe
from geo.replication.model import Retention, Tenant
from tests.geo.replication.plan_model import read_plan
from tests.pulsar_clients import open_client
from tests.system.topology_parts import BATCHES, look
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


@pytest.mark.nightly
def test_the_position_of_the_replicated_subscription_travels_to_the_region(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    region = open_client(stack.pulsar["eu"].service_url, stack.pulsar["eu"].access)
    centre = open_client(stack.pulsar["hq"].service_url, stack.pulsar["hq"].access)
    try:
        producer = region.create_producer(BATCHES)
        consumer = centre.subscribe(BATCHES, "travel", replicate_subscription_state_enabled=True)

        def travels() -> bool:
            producer.send(b"x", partition_key=str(time.monotonic_ns()))
            consumer.acknowledge(consumer.receive(10_000))
            cursors = [one for one in look(stack, clients).cursors if one.subscription == "travel"]
            return any(one.cluster == "eu" and one.age_s is not None and (one.behind_s or 0) < 30 for one in cursors)

        wait_until(travels, 60)
        consumer.unsubscribe()
    finally:
        region.close()
        centre.close()
    for part in range(2):
        clients["eu"].delete(f"persistent/fleet/telemetry-eu/batches-partition-{part}/subscription/travel", force=True)


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
    with pytest.raises(NothingToDelete, match="held/a:retention"):
        apply(topology(a=less), clients, allow_delete=["held/a"])
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


def test_plan_says_by_its_exit_status_whether_something_differs(stack: LocalStack, tmp_path: Path) -> None:
    same = CliRunner().invoke(app, ["plan", "--topology", topology_file(stack), "--json"])
    kept = [change for change in json.loads(same.stdout) if change["action"] == "delete"]
    assert same.exit_code == (2 if kept else 0), "tests may leave topics, and nothing else may differ"
    assert len(kept) == len(json.loads(same.stdout))
    other = tmp_path / "topology.toml"
    shutil.copy(stack.folder / "operator-access.toml", tmp_path)
    text = Path(topology_file(stack)).read_text()
    other.write_text(
        text.replace("topics.refused]", 'topics.refused]\n[namespaces."{tenant}/telemetry-{region}".topics.new]')
    )
    differs = CliRunner().invoke(app, ["plan", "--topology", str(other), "--json"])
    assert differs.exit_code == 2
    new = [one for one in json.loads(differs.stdout) if one["action"] == "create"]
    assert {(one["cluster"], one["name"]) for one in new} == {
        (cluster, f"{tenant}/telemetry-{region}/new")
        for tenant in ("canary", "fleet")
        for region in ("eu", "us")
        for cluster in (region, "hq")
    }


def test_a_reference_value_is_read_in_every_cluster_as_the_last_of_its_key(stack: LocalStack) -> None:
    topic = "persistent://fleet/reference/fences"
    key = f"test-{time.monotonic_ns()}"
    writer = open_client(stack.pulsar["hq"].service_url, stack.pulsar["hq"].access)
    producer = writer.create_producer(topic)
    for value in (b"old", b"new"):
        producer.send(value, partition_key=key)
    writer.close()
    for cluster in stack.pulsar.values():
        reading = open_client(cluster.service_url, cluster.access)
        reader = reading.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = b""
        while found != b"new":
            message = reader.read_next(20_000)
            found = message.data() if message.partition_key() == key else found
        reading.close()


def test_a_cluster_that_is_gone_is_named(stack: LocalStack) -> None:
    moved = stack.topology.model_dump()
    moved["clusters"]["us"]["address"]["admin_url"] = "http://127.0.0.1:9"
    topology = Topology.model_validate(moved)
    with admins(topology, stack.access()) as clients:
        seen = observe(topology, clients, time.time)
    assert set(seen.unreachable) == {"us"}
    assert "did not answer" in seen.unreachable["us"]
    assert all(link.connected for link in seen.links if "us" not in (link.source, link.target))
    assert stack.pulsar["us"].probe()
