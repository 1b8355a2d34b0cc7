"""Clusters of their own that lose their disks, are away, or give up a namespace."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from deploy.local import LocalStack, PulsarCluster, PulsarSettings, StackSettings
from geo.replication import (
    Topology,
    admins,
    apply,
)
from geo.replication.cli import reconnect
from tests.geo.replication.plan_model import read_plan
from tests.pulsar_clients import open_client
from tests.system.topology_parts import BATCHES, known, look
from tests.waiting import wait_until
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.own_servers]


SMALL = (
    'centre = "hq"\n[clusters.eu]\n[clusters.hq]\n[regions.eu]\ncluster = "eu"\n[tenants.fleet]\n'
    '[namespaces."fleet/telemetry-{region}".topics.batches]\npartitions = 2\nsubscriptions.ingest = {}\n'
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Two clusters that tests may break; as by Pulsar's default, they delete no namespace by force."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "topology.toml").write_text(SMALL)
    cautious = PulsarSettings(broker={"forceDeleteNamespaceAllowed": "false"})
    settings = StackSettings(pulsar=cautious)
    with LocalStack(folder / "stack", topology=folder / "topology.toml", settings=settings) as running:
        yield running


def test_a_cluster_that_lost_its_disks_gets_its_topics_again_although_a_producer_waits_for_them(
    own: LocalStack,
) -> None:
    with admins(own.topology, own.access()) as opened:
        eu = own.pulsar["eu"]
        client = open_client(eu.service_url, eu.access)
        producer = client.create_producer(BATCHES, send_timeout_millis=0)
        producer.send(b"before")
        centre = open_client(own.pulsar["hq"].service_url, own.pulsar["hq"].access)
        sender = centre.create_producer(BATCHES)
        sender.send(b"first")
        wait_until(lambda: all(link.connected for link in look(own, opened).links), 60)
        eu.kill()
        for lost in ("metadata", "bookkeeper"):
            shutil.rmtree(eu.folder / lost)
        sender.send(b"while it was away")
        eu.start()
        eu.wait()
        producer.send_async(b"after", lambda *_: None)
        # Its neighbour's replicators must have been refused, or there is nothing to bring back.
        wait_until(lambda: not look(own, opened).links[1].connected, 60)
        with ThreadPoolExecutor(1) as pool:  # another client, that asks until it is let in
            late = pool.submit(wait_until, lambda: _produces(eu), 60)
            assert apply(own.topology, opened).held_back == ()
            assert late.result()
        assert known(opened["eu"], "persistent/fleet/telemetry-eu/batches/partitions")["partitions"] == 2
        assert read_plan(own.topology, opened) == []
        reconnect(own.topology, opened)
        wait_until(lambda: all(link.connected and not link.backlog for link in look(own, opened).links), 60)
        reader = client.create_reader(BATCHES, pulsar.MessageId.earliest)
        found = {reader.read_next(20_000).data()}
        while b"while it was away" not in found:
            found.add(reader.read_next(20_000).data())
        client.close()
        centre.close()


def test_a_tenants_quotas_are_set_changed_and_taken_back_and_its_rate_holds_its_producers(
    own: LocalStack, tmp_path: Path
) -> None:
    text = (own.folder / "topology.toml").read_text()
    own_namespace = '[namespaces."{tenant}/loads-{region}".topics.batches]\n[tenants.acme]\noperator = true\n'
    quotas = 'quotas."loads-{region}" = { %s, publish_rate = { messages_per_s = 50, kb_per_s = %d } }\n'

    def applied(more: str) -> list[str]:
        (tmp_path / "topology.toml").write_text(text + own_namespace + more)
        topology = load(Topology, tmp_path / "topology.toml")
        changed = [str(change) for change in apply(topology, opened).changed]
        assert read_plan(topology, opened) == []
        return [change for change in changed if "eu: update policy acme" in change]

    with admins(own.topology, own.access()) as opened:
        applied("")
        made = applied(quotas % ("backlog_quota = { size_mb = 9 }", 64))
        assert made == [
            "eu: update policy acme/loads-eu backlog_quota: unset -> 9 MB, producer_request_hold",
            "eu: update policy acme/loads-eu publish_rate: unset -> 50 messages/s, 64 KB/s",
        ]
        client = open_client(own.pulsar["eu"].service_url, own.access())
        producer = client.create_producer("persistent://acme/loads-eu/batches", send_timeout_millis=0)
        began = time.monotonic()
        for _ in range(200):  # a second's worth passes at once
            producer.send(b"x")
        assert time.monotonic() - began > 1.5
        client.close()
        assert applied(quotas % ("backlog_quota = { size_mb = 9 }", 128)) == [
            "eu: update policy acme/loads-eu publish_rate: 50 messages/s, 64 KB/s -> 50 messages/s, 128 KB/s"
        ]
        assert len(applied("")) == 2
        apply(own.topology, opened, allow_delete=["acme/loads-eu"])


def _produces(cluster: PulsarCluster) -> bool:
    client = open_pulsar_client(cluster.service_url, cluster.access, timeout_s=2)
    try:
        client.create_producer(BATCHES).send(b"late")
    except pulsar.PulsarException:
        return False
    else:
        return True
    finally:
        client.close()
