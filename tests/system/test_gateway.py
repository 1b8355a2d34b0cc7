"""The gateway between a real Mosquitto and a real Pulsar: what a device's acknowledgements name is in Pulsar."""

# ruff: noqa: F811 - a fixture is asked for by its name

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from deploy.local import (
    free_port,
)
from tests.edge_agent.process import DEVICE, AgentProcess, VehicleSensors
from tests.identity.operators import operator, operators_file
from tests.identity.registry_strategies import active, change
from tests.system.gateway_region import RECORDS, Devices, GatewayProcess, PulsarRegion
from tests.system.gateway_servers import devices, region  # noqa: F401 - fixtures
from tests.system.vehicle_agent import running, stored, vehicle  # noqa: F401 - a fixture
from tests.waiting import PATIENCE, wait_until
from waybill.identity.registry import suspend
from waybill.identity.registry_messages import signed_by
from waybill.identity.registry_topic import RegistryPublisher
from waybill.identity.signatures import sign_push
from waybill.record import Batch, Canary, IntervalSet, Record, encode

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


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
    assert (status.pushes_unknown, status.internal_errors) == (1, 0)
    assert status.dead_letters_not_kept > 1000
    assert 4 <= status.devices_known <= 1500  # a forged topic counts as heard; the list is bounded, and says so
    assert log_bytes < 200_000, "a flood of refusals is a few lines"
    persisted = region.persisted("beside")
    assert all(persisted[device].covers(IntervalSet([(1, 5 * RECORDS)])) for device in persisted)


@pytest.mark.nightly
def test_two_gateways_of_one_name_slow_down_and_say_it(region: PulsarRegion) -> None:
    with region.gateway("twin") as one:
        twin = region.gateway_process("twin-b")
        twin.config.write_text(twin.text.replace('name = "twin-b"', 'name = "twin"'), encoding="utf-8")
        twin.process.start()
        try:
            wait_until(lambda: "each gateway needs a name of its own" in one.status().last_error, 30)
            assert not one.status().healthy
        finally:
            twin.process.stop()
        wait_until(lambda: one.status().healthy, 15)


@pytest.mark.nightly
def test_two_gateways_share_the_load(region: PulsarRegion, devices: Callable[..., Devices]) -> None:
    fleet = devices("shared", 10, 20)
    with region.gateway("shared-1") as one, region.gateway("shared-2") as other:
        fleet.send_unacknowledged()
        wait_until(lambda: fleet.all_acknowledged, 30)
        wait_until(lambda: one.status().batches_persisted + other.status().batches_persisted == 200, 5)
        assert min(one.status().batches_persisted, other.status().batches_persisted) > 50


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


@pytest.mark.nightly
def test_the_operator_s_pause_reaches_the_devices_without_a_restart(
    region: PulsarRegion, devices: Callable[..., Devices]
) -> None:
    fleet = devices("paused", 1, 2)
    with region.gateway("paused-1") as gateway:
        fleet.send("paused-0", fleet.batches["paused-0", 1])
        wait_until(lambda: len(fleet.acks) == 1, 10)
        gateway.config.write_text(gateway.text + "[drain]\npause_s = 30\n", encoding="utf-8")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: "drain settings reloaded" in gateway.process.log.read_text(encoding="utf-8"), 10)
        fleet.send("paused-0", fleet.batches["paused-0", 1 + RECORDS])
        wait_until(lambda: len(fleet.acks) == 2, 10)
    assert [ack.pause_s for _, ack in fleet.acks] == [0.0, 30.0]


@pytest.mark.nightly
def test_settings_pushed_by_the_gateway_are_tried_answered_and_counted_and_stored_data_stay_as_they_are(
    region: PulsarRegion,
    vehicle: VehicleSensors,
    tmp_path: Path,
) -> None:
    file = tmp_path / "pushes" / "push" / f"{DEVICE}.toml"
    file.parent.mkdir(parents=True)
    anna = operator("anna")
    operators = operators_file(tmp_path / "operators.toml", anna)
    file.write_bytes(sign_push(anna.key, f"push/{DEVICE}", 1, b"[drain]\nwindow = 7\n"))
    now = '[[classes]]\nname = "now"\ntopics = ["vehicle/event"]\nurgent = true\n'
    only_wifi = '[[classes]]\nname = "all"\ntopics = ["#"]\nlinks = ["wifi"]\n'
    extra = f'{now}{only_wifi}[link]\nlink = "cellular"\n[push]\nconfirm_s = 1.2\noperators = "{operators}"'
    agent = AgentProcess(tmp_path, vehicle.port, {"eu": region.broker.port}, extra, tenant="push")
    in_force = tmp_path / "buffer" / "pushed.toml"

    events: list[int] = []

    versions = itertools.count(2)

    def push(gateway: GatewayProcess, text: str) -> None:
        file.write_bytes(sign_push(anna.key, f"push/{DEVICE}", next(versions), text.encode()))
        gateway.signal(signal.SIGHUP)

    def applied(gateway: GatewayProcess, times: int) -> bool:
        """Whether settings proved themselves so often: by an acknowledged event, which travels on any link."""
        events.append(len(events))
        vehicle.publish("vehicle/event", b'{"time": %d, "name": "now"}' % (1767603422000 + events[-1]))
        return gateway.status().pushes_applied == times

    with (
        region.gateway(
            "push-1", more=f'push = {{ folder = "{tmp_path}/pushes", operators = "{operators}" }}'
        ) as gateway,
        running(agent),
    ):
        for _ in range(50):
            vehicle.position()
        wait_until(lambda: agent.status()["depth_records"] == 50, 10)
        before = stored(agent)
        wait_until(lambda: applied(gateway, 1), 20, every_s=0.2)
        push(gateway, "[drain]\nwindow = 0\n")
        wait_until(lambda: gateway.status().pushes_refused == 1, 20)
        push(gateway, f'[[uplinks]]\nregion = "nowhere"\nhost = "127.0.0.1"\nport = {free_port()}\n')
        wait_until(lambda: gateway.status().pushes_taken_back == 1, 20)
        assert in_force.read_text(encoding="utf-8").endswith("\n[drain]\nwindow = 7\n")
        assert set(before) <= set(stored(agent)), "stored data are not touched by any of it"
        assert region.persisted("push")[DEVICE].count <= len(events), "and what waits for another link was not sent"
        push(gateway, '[link]\nlink = "wifi"\n')
        wait_until(lambda: applied(gateway, 2), 20, every_s=0.2)
        made = 50 + len(events)
        wait_until(lambda: region.persisted("push").get(DEVICE, IntervalSet()).count == made, 20, every_s=0.3)
        assert gateway.status().pushes_unknown == 0
        file.write_text("[drain]\nwindow = 5\n", encoding="utf-8")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: gateway.status().pushes_not_published == 1, 10)


@pytest.mark.nightly
def test_a_batch_that_the_gateway_refuses_is_dead_lettered_on_the_vehicle_and_the_rest_is_delivered(
    region: PulsarRegion,
    vehicle: VehicleSensors,
    tmp_path: Path,
) -> None:
    agent = AgentProcess(tmp_path, vehicle.port, {"eu": region.broker.port}, tenant="poison")
    text = agent.config.read_text(encoding="utf-8")
    impatient = "[drain]\nmax_refusals = 3\nrefusal_backoff_s = 0.2\n"
    agent.config.write_text(text.replace("[drain]\n", impatient), encoding="utf-8")
    with region.gateway("poison-1", more="max_batch_bytes = 20000") as gateway, running(agent):
        vehicle.publish("vehicle/odd", os.urandom(30_000))
        wait_until(lambda: agent.status()["depth_records"] == 1, 10)
        for _ in range(40):
            vehicle.position()
            time.sleep(0.03)
        wait_until(lambda: agent.status()["dead_letter_records"] == 1, 20)
        # a depth of one is there before the last positions came out of the vehicle's broker, too
        wait_until(lambda: region.persisted("poison").get(DEVICE, IntervalSet()).count >= 40, 20, every_s=0.3)
        wait_until(lambda: agent.status()["depth_records"] == 1, 10)
        wait_until(lambda: gateway.status().batches_refused == 3, 5)  # the status is made once a second
        (answer,) = [properties for _, properties in region.messages("refused") if properties["tenant"] == "poison"][:1]
        assert answer["reason"] == "too-large"
    assert agent.status()["gaps"] == 0
    assert region.persisted("poison")[DEVICE] == IntervalSet([(2, 41)]), "all but the first, which is kept"
