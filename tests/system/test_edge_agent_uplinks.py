"""Both uplinks pass the conformance suite, on the real servers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pulsar
import pytest

from deploy.local import LocalStack, MosquittoBroker, MosquittoSettings
from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.pulsar import PulsarUplink
from tests.edge_agent.region import MqttRegion
from tests.edge_agent.uplink_conformance import FarSide, UplinkConformance
from tests.pulsar_clients import open_client
from waybill.daemon.tls import TlsSettings

pytestmark = pytest.mark.system
DEVICE = DeviceSettings(id="eu-0001", tenant="acme")


class _Recording(MqttRegion):
    """A region that also keeps the bytes."""

    def __init__(self, port: int) -> None:
        self.payloads: list[bytes] = []
        super().__init__(port)

    def _take_batch(self, topic: str, payload: bytes) -> None:
        self.payloads.append(payload)
        super()._take_batch(topic, payload)


class TestTheGatewayOverMqtt(UplinkConformance):
    @pytest.fixture
    def side(self, tmp_path: Path) -> Iterator[FarSide]:
        # Fewer than the suite sends at once: who passes over a Receive Maximum is disconnected.
        broker = MosquittoBroker(
            "eu", tmp_path / "eu", settings=MosquittoSettings(max_inflight_messages=4, max_packet_mb=4)
        )
        broker.start()
        broker.wait()
        region = _Recording(broker.port)
        settings = UplinkSettings(region="eu", host="127.0.0.1", port=broker.port)
        nowhere = UplinkSettings(region="eu", host="127.0.0.1", port=9, connect_timeout_s=2)
        yield FarSide(
            DEVICE.id,
            lambda: MqttUplink(DEVICE, settings),
            lambda: MqttUplink(DEVICE, nowhere),
            lambda: list(region.payloads),
            broker.stop,
        )
        region.close()
        broker.stop()
        assert region.errors == []


class TestPulsarDirectly(UplinkConformance):
    @pytest.fixture
    def side(self, stack: LocalStack) -> Iterator[FarSide]:
        url, access = stack.pulsar["eu"].service_url, stack.access()
        topic = f"persistent://public/default/uplink-{uuid4().hex[:8]}"
        client = open_client(url, access)
        consumer = client.subscribe(topic, "far", initial_position=pulsar.InitialPosition.Earliest)
        payloads: list[bytes] = []
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                try:
                    message = consumer.receive(timeout_millis=300)
                except pulsar.Timeout:
                    continue
                assert message.partition_key() == DEVICE.id
                assert message.properties()["tenant"] == DEVICE.tenant
                payloads.append(message.data())
                consumer.acknowledge(message)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        tls = TlsSettings(ca=access.tls_ca) if access.tls_ca else None
        settings = UplinkSettings(
            region="eu", kind="pulsar", service_url=url, topic=topic, tls=tls, token_file=access.token_file
        )
        nowhere = settings.model_copy(update={"service_url": "pulsar+ssl://127.0.0.1:9", "connect_timeout_s": 2.0})

        def arrived() -> list[bytes]:
            for _ in range(50):
                done.wait(0.1)
                if len(payloads) >= 10:
                    break
            return list(payloads)

        yield FarSide(DEVICE.id, lambda: PulsarUplink(DEVICE, settings), lambda: PulsarUplink(DEVICE, nowhere), arrived)
        done.set()
        thread.join(5)
        client.close()
