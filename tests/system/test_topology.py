"""The topology on three real clusters: applied once, verified over every link, and careful with data."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from typer.testing import CliRunner, Result

from deploy.local import LocalStack
from geo.replication import (
    AdminClient,
    Namespace,
    NothingToDelete,
    Subscription,
    Topic,
    Topology,
    WrongCluster,
    admins,
    apply,
    inspect_clusters,
)
from geo.replication.cli import app
from geo.replication.link_probe import observe, verify
from geo.replication.model import Retention, Tenant
from tests.geo.replication.plan_model import read_plan
from tests.pulsar_clients import open_client
from tests.system.topology_parts import BATCHES, known, look
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


def test_a_message_published_in_a_region_arrives_in_the_centre(stack: LocalStack) -> None:
    topic = "persistent://fleet/telemetry-eu/probe"
    centre = open_client(stack.pulsar["hq"].service_url, stack.pulsar["hq"].access)
    region = open_client(stack.pulsar["eu"].service_url, stack.pulsar["eu"].access)
    try:
        reader = centre.create_reader(topic, pulsar.MessageId.latest)
        region.create_producer(topic).send(b"from eu", properties={"region": "eu"})
        message = reader.read_next(20_000)
        assert message.data() == b"from eu"
        assert message.properties()["region"] == "eu"
    finally:
        region.close()
        centre.close()


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


@pytest.mark.nightly
def test_a_partition_that_does_not_exist_is_a_difference_and_is_made_again_with_its_subscriptions(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    kept = {"kept": Subscription(replicated=True, on="everywhere")}
    space = {"lost/a": Namespace(clusters=("hq",), topics={"one": Topic(partitions=2, subscriptions=kept)})}
    topology = stack.topology.model_copy(update={"tenants": {"lost": Tenant()}, "namespaces": space})
    apply(topology, clients)
    for number in (1, 0):
        clients["hq"].delete(f"persistent/lost/a/one-partition-{number}", force=True)
        missing = [f"hq: create partition lost/a/one-partition-{one}" for one in range(number, 2)]
        made = "hq: create subscription lost/a/one subscription kept"
        assert [str(change) for change in read_plan(topology, clients)] == [*missing, made]
    assert apply(topology, clients).held_back == ()
    assert read_plan(topology, clients) == []
    assert apply(topology.model_copy(update={"namespaces": {}}), clients, allow_delete=["lost/a"]).held_back == ()


@pytest.mark.nightly
def test_an_apply_that_holds_something_back_ends_as_the_plan_does(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    longer = '[tenants.brief]\n[namespaces."brief/a"]\nclusters = ["hq"]\nretention = { minutes = 100, size_mb = 10 }\n'
    longer += '[namespaces."brief/a".topics.one]\n'
    text = Path(topology_file(stack)).read_text()
    shutil.copy(stack.folder / "operator-access.toml", tmp_path)

    def topology(*words: str, own: str) -> Result:
        file.write_text(f"{text}\n{own}")
        return CliRunner().invoke(app, [*words, "--topology", str(file)])

    topology("apply", own=longer)
    shorter = longer.replace("100", "50")
    held = topology("apply", own=shorter)
    assert held.exit_code == topology("plan", own=shorter).exit_code == 2
    assert "held back, it would delete data: hq: update policy brief/a retention" in held.stdout
    assert "nothing to change" not in held.stdout
    topology("apply", "--allow-delete", "brief/a", own="[tenants.brief]\n")


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


@pytest.mark.nightly
def test_a_service_address_of_another_cluster_is_refused_and_verify_names_it(
    stack: LocalStack, clients: dict[str, AdminClient], tmp_path: Path
) -> None:
    eu, before = stack.pulsar["eu"].service_url, clients["hq"].get("clusters/us")
    for place in ((), ("seen_from", "hq")):
        wrong = stack.topology.model_dump()
        at = wrong["clusters"]["us"]["address"]
        for key in place:
            at = at[key]
        at |= {"service_url": eu, "listener": ""} if place else {"service_url": eu}
        topology = Topology.model_validate(wrong)
        for command in (lambda: apply(topology, clients), lambda: inspect_clusters(topology, clients)):  # noqa: B023
            with pytest.raises(WrongCluster, match="belongs to another cluster"):
                command()
        links = verify(topology, clients, timeout_s=2).links
        named = {(link.source, link.target) for link in links if "not of cluster us" in link.problem}
        us = {(source, target) for _, source, target in topology.links() if "us" in (source, target)}
        assert named == ({("hq", "us")} if place else us)
    assert clients["hq"].get("clusters/us") == before


@pytest.mark.nightly
def test_what_a_cluster_knows_of_itself_and_of_others_is_restored_and_the_rest_of_it_kept(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    eu = clients["eu"]
    own, hq = known(eu, "clusters/eu"), known(eu, "clusters/hq")
    try:
        eu.post("clusters/eu", own | {"serviceUrlTls": stack.pulsar["us"].admin_url})
        eu.post("clusters/hq", hq | {"serviceUrlTls": "https://127.0.0.1:9", "authenticationPlugin": "kept"})
        changed = apply(stack.topology, clients).changed
        assert {(change.cluster, change.kind, change.name) for change in changed} == {
            ("eu", "cluster", "eu"),
            ("eu", "cluster", "hq"),
        }
        assert eu.get("clusters/eu") == own
        assert eu.get("clusters/hq") == hq | {"authenticationPlugin": "kept"}
    finally:
        eu.post("clusters/eu", own)
        eu.post("clusters/hq", hq)


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


@pytest.mark.nightly
def test_watch_says_what_it_sees(stack: LocalStack) -> None:
    done = CliRunner().invoke(app, ["watch", "--topology", topology_file(stack), "--port", "0", "--looks", "1"])
    assert done.exit_code == 0
    assert f"of {len(stack.topology.links())} links connected" in done.stdout


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
