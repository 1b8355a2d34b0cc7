"""Clusters of their own that lose their disks, are away, or give up a namespace."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest

from deploy.local import LocalStack, PulsarCluster, PulsarSettings, StackSettings
from geo.replication import admins, apply
from tests.geo.replication.plan_model import read_plan
from tests.pulsar_clients import open_client
from tests.system.topology_parts import BATCHES, known, look
from tests.waiting import wait_until
from waybill.pulsar.pulsar_client import open_pulsar_client

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
        # Pulsar 4.0.8 gives up a replicator that was refused; docs/replication.md says to unload its topics.
        for number in range(2):
            opened["hq"].put(f"persistent/fleet/telemetry-eu/batches-partition-{number}/unload")
        wait_until(lambda: all(link.connected and not link.backlog for link in look(own, opened).links), 60)
        reader = client.create_reader(BATCHES, pulsar.MessageId.earliest)
        found = {reader.read_next(20_000).data()}
        while b"while it was away" not in found:
            found.add(reader.read_next(20_000).data())
        client.close()
        centre.close()


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
