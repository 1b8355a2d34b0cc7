"""The gateway between a real Mosquitto and a real Pulsar: what a device's acknowledgements name is in Pulsar."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from deploy.local import MosquittoBroker
from tests.identity.makers import active, change, operator, operators_file
from tests.system.gateway_region import NAMESPACE, RECORDS, Devices, PulsarRegion
from tests.system.own_pulsar import own_pulsar
from tests.waiting import PATIENCE, wait_until
from waybill.identity.registry import suspend
from waybill.identity.registry_messages import signed_by
from waybill.identity.registry_topic import RegistryPublisher
from waybill.record import Batch, Canary, IntervalSet, Record, encode

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarRegion]:
    """A Pulsar and a Mosquitto of our own: these tests stop and kill them."""
    folder = tmp_path_factory.mktemp("region")
    broker = MosquittoBroker("eu", folder / "mqtt")
    with own_pulsar("eu", folder, NAMESPACE, partitioned=f"{NAMESPACE}/batches") as pulsar:
        broker.start()
        try:
            broker.wait()
            yield PulsarRegion(pulsar, broker, folder)
        finally:
            broker.stop()


@pytest.fixture
def devices(region: PulsarRegion) -> Iterator[Callable[..., Devices]]:
    made: list[Devices] = []

    def make(tenant: str, count: int, batches: int) -> Devices:
        made.append(Devices(region.broker, tenant, count, batches))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_every_device_gets_an_acknowledgement_of_every_record_and_pulsar_has_them_all(
    region: PulsarRegion, devices: Callable[..., Devices]
) -> None:
    fleet = devices("plain", 10, 20)
    with region.gateway("plain-1") as gateway:
        fleet.send_unacknowledged()
        wait_until(lambda: fleet.all_acknowledged, 30)
        wait_until(lambda: gateway.status().batches_persisted == 200, 5)
        status = gateway.status()
    assert region.persisted("plain") == fleet.snapshot()
    assert status.records_persisted == 200 * RECORDS
    assert status.acks_published < 200, "acknowledgements of one device are united"
    assert (status.in_flight, status.pending_acks, status.pulsar_failures) == (0, 0, 0)


def test_a_damaged_batch_and_one_of_another_device_are_dead_letters_and_the_sender_is_answered(
    region: PulsarRegion, devices: Callable[..., Devices]
) -> None:
    fleet = devices("liar", 2, 1)
    valid = fleet.batches["liar-0", 1]
    damaged = valid[:-1] + bytes([valid[-1] ^ 1])
    with region.gateway("liar-1") as gateway:
        fleet.send("liar-0", damaged)
        fleet.send("liar-1", valid)
        wait_until(lambda: len(fleet.acks) == 2, 10)
        wait_until(lambda: gateway.status().batches_refused == 2, 5)
        fleet.send("liar-0", valid)
        wait_until(lambda: fleet.knows("liar-0", 1), 10)
    refused = {properties["reason"]: (payload, properties) for payload, properties in region.messages("refused")}
    assert {(device, ack.refusal) for device, ack in fleet.acks[:2]} == {
        ("liar-0", "checksum"),
        ("liar-1", "wrong-device"),
    }
    assert refused["checksum"][0] == damaged
    assert refused["wrong-device"][1]["topic"] == "waybill/1/liar/liar-1/batch"
    assert region.persisted("liar").keys() == {"liar-0"}


def test_batches_of_devices_that_the_registry_does_not_let_send_are_refused_and_their_senders_answered(
    region: PulsarRegion, devices: Callable[..., Devices], tmp_path: Path
) -> None:
    admin, anna = f"{region.pulsar.admin_url}/admin/v2", operator("anna", tenants=("known",), kinds=("device",))
    httpx.put(f"{admin}/tenants/known", json={"allowedClusters": [region.pulsar.cluster]}).raise_for_status()
    httpx.put(f"{admin}/namespaces/known/registry", json={}).raise_for_status()
    with RegistryPublisher(region.pulsar.service_url, region.pulsar.access, sign=signed_by(anna.key)) as publisher:
        publisher.publish(active("known", "known-0"))
        publisher.publish(suspend(active("known", "known-1"), change()))
    with RegistryPublisher(region.pulsar.service_url, region.pulsar.access) as stranger:
        stranger.publish(active("known", "known-2"))
    fleet, trusted = devices("known", 3, 1), operators_file(tmp_path / "operators.toml", anna)
    registry = f'[registry]\ntenants = ["known"]\nservice_url = "{region.pulsar.service_url}"\noperators = "{trusted}"'
    with region.gateway("known-1", more=registry) as gateway:
        wait_until(lambda: gateway.status().registry_current is True, 20)
        fleet.send_unacknowledged()
        wait_until(lambda: len(fleet.acks) == 3, 10)
        status = gateway.status()
    refused = {(device, ack.refusal) for device, ack in fleet.acks}
    assert refused == {("known-0", ""), ("known-1", "device-not-active"), ("known-2", "unknown-device")}
    assert (status.registry_devices, status.registry_entries_refused_by) == (2, {"unsigned": 1})


@pytest.mark.nightly
def test_a_hostile_neighbour_stops_silences_and_fills_nothing(
    region: PulsarRegion, devices: Callable[..., Devices]
) -> None:
    fleet = devices("beside", 4, 5)
    odd = Properties(PacketTypes.PUBLISH)
    odd.UserProperty = [("a", "\ufeff")] * 1000
    with region.gateway("beside-1") as gateway:
        fleet.client.publish("waybill/1/hostile/d/config-result", b"[" * 80_000, qos=1)
        fleet.client.publish("waybill/1/hostile/d/batch", b"WB" + bytes(1000), qos=1, properties=odd)
        for number in range(1000):
            fleet.client.publish(
                f"waybill/1/hostile{number}/{'d' * 60}{number}/batch", b"garbage %d" % number, qos=number % 2
            )
            fleet.client.publish(f"waybill/1/hostile/{'x' * 3000}{number}/batch", b"other %d" % number, qos=1)
        epochs = [encode(Batch("beside-0", epoch, 9, (Record(1, 0, Canary(id="e")),))) for epoch in range(100, 300)]
        for payload in epochs:
            fleet.send("beside-0", payload)
        fleet.send_unacknowledged()
        wait_until(lambda: fleet.count() >= 4 * 5 * RECORDS, 30)
        wait_until(lambda: gateway.status().batches_refused > 1500, 20)
        wait_until(lambda: gateway.status().healthy, 10)
        status = gateway.status()
        log_bytes = gateway.process.log.stat().st_size
    assert status.internal_errors == 0
    assert status.dead_letters_not_kept > 1000
    assert log_bytes < 200_000, "a flood of refusals is a few lines"
    persisted = region.persisted("beside")
    assert all(persisted[device].covers(IntervalSet([(1, 5 * RECORDS)])) for device in persisted)


def test_a_gateway_that_is_asked_to_stop_finishes_what_it_has_taken(
    region: PulsarRegion, devices: Callable[..., Devices]
) -> None:
    fleet = devices("stopped", 10, 60)
    with region.gateway("stopped-1") as gateway:
        fleet.send_unacknowledged()
        wait_until(lambda: fleet.count() > 0, 20)
        asked = time.monotonic()
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: gateway.process.pid is None, 12)
        assert time.monotonic() - asked < 11 * PATIENCE
        wait_until(lambda: fleet.snapshot() == region.persisted("stopped"), 10, every_s=0.3)
