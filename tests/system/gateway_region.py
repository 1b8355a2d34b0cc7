"""A region for the gateway's tests: its Pulsar and broker, gateway processes, and devices that send again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paho.mqtt.client as mqtt
import pulsar
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import DaemonProcess, MosquittoBroker, PulsarCluster, free_port, http_health
from gateway.config import GatewayEndpoint
from gateway.status import GatewayStatus, read_status
from tests.pulsar_clients import open_client
from tests.waiting import wait_until
from waybill.record import Ack, Batch, Canary, IntervalSet, Record, decode_ack, encode, read_header

NAMESPACE = "fleet/telemetry-eu"
RECORDS = 20


@dataclass
class PulsarRegion:
    """One region's servers."""

    pulsar: PulsarCluster
    broker: MosquittoBroker
    folder: Path

    def persisted(self, tenant: str) -> dict[str, IntervalSet]:
        """What Pulsar has of a tenant's devices, read from the beginning."""
        found: dict[str, IntervalSet] = {}
        for payload, properties in self.messages("batches-partition-0", "batches-partition-1"):
            if properties["tenant"] == tenant:
                device = properties["device"]
                found[device] = found.get(device, IntervalSet()) | read_header(payload).seqs
        return found

    def messages(self, *topics: str) -> list[tuple[bytes, dict[str, str]]]:
        """Every message of the topics."""
        client = open_client(self.pulsar.service_url, self.pulsar.access)
        found = []
        try:
            for topic in topics:
                reader = client.create_reader(f"persistent://{NAMESPACE}/{topic}", pulsar.MessageId.earliest)
                while reader.has_message_available():
                    message = reader.read_next(timeout_millis=10_000)
                    found.append((message.data(), message.properties()))
        finally:
            client.close()
        return found

    @contextmanager
    def gateway(self, name: str, more: str = "") -> Iterator[GatewayProcess]:
        gateway = self.gateway_process(name, more)
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.process.stop()

    def gateway_process(self, name: str, more: str = "") -> GatewayProcess:
        """One that is not started."""
        text = f"""
            name = "{name}"
            region = "eu"
            insecure = true
            {more}
            [mqtt]
            host = "127.0.0.1"
            port = {self.broker.port}
            receive_maximum = 64
            backoff_max_s = 1
            [pulsar]
            service_url = "{self.pulsar.service_url}"
            tenant = "fleet"
            send_timeout_s = 3
            backoff_max_s = 1
            operation_timeout_s = 5
            """
        return GatewayProcess(name, self.folder, text)


class GatewayProcess:
    """A gateway process and its configuration."""

    def __init__(self, name: str, folder: Path, text: str) -> None:
        self.observe = GatewayEndpoint(port=free_port())
        self.config = folder / f"{name}.toml"
        self.text = f"{text}\n[status]\nport = {self.observe.port}\n"
        self.config.write_text(self.text, encoding="utf-8")
        self.process = DaemonProcess.python(
            name,
            "gateway",
            ["run", "--config", str(self.config)],
            folder / name,
            healthy_when=http_health(f"http://127.0.0.1:{self.observe.port}/health"),
        )

    def start(self) -> None:
        self.process.start()
        self.process.wait(40)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def status(self) -> GatewayStatus:
        return read_status(self.observe)


class Devices:
    """A tenant's devices: each sends its records in batches, and sends again what was not acknowledged."""

    def __init__(self, broker: MosquittoBroker, tenant: str, devices: int, batches: int) -> None:
        self.tenant = tenant
        self.acks: list[tuple[str, Ack]] = []
        self.acknowledged: dict[str, IntervalSet] = {}
        self._lock = threading.Lock()
        self.batches = {
            (f"{tenant}-{device}", first): encode(
                Batch(
                    f"{tenant}-{device}",
                    7,
                    batches * RECORDS,
                    tuple(Record(seq, 0, Canary(id=tenant)) for seq in range(first, first + RECORDS)),
                )
            )
            for device in range(devices)
            for first in range(1, batches * RECORDS, RECORDS)
        }
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=tenant, protocol=mqtt.MQTTv5)
        self.client.on_message = self._heard
        self.client.on_connect = lambda client, *_: client.subscribe(f"waybill/1/{tenant}/+/ack", qos=1)
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()
        wait_until(self.client.is_connected, 10)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def send(self, device: str, payload: bytes) -> None:
        self.client.publish(f"waybill/1/{self.tenant}/{device}/batch", payload, qos=1)

    def send_unacknowledged(self, up_to: int = 1 << 62) -> int:
        """Send every batch, of those that begin up to a number, that is not acknowledged yet; how many there were."""
        unacknowledged = [key for key in self.batches if key[1] <= up_to and not self.knows(*key)]
        for device, first in unacknowledged:
            self.send(device, self.batches[device, first])
        return len(unacknowledged)

    def knows(self, device: str, first: int) -> bool:
        with self._lock:
            acknowledged = self.acknowledged.get(device, IntervalSet())
        return acknowledged.covers(IntervalSet([(first, first + RECORDS - 1)]))

    def count(self) -> int:
        with self._lock:
            return sum(ranges.count for ranges in self.acknowledged.values())

    def snapshot(self) -> dict[str, IntervalSet]:
        with self._lock:
            return dict(self.acknowledged)

    @property
    def all_acknowledged(self) -> bool:
        return self.count() == len(self.batches) * RECORDS

    def _heard(self, _: object, __: object, message: mqtt.MQTTMessage) -> None:
        device, ack = message.topic.split("/")[3], decode_ack(bytes(message.payload))
        with self._lock:
            self.acks.append((device, ack))
            if not ack.refusal:
                self.acknowledged[device] = self.acknowledged.get(device, IntervalSet()) | ack.seqs


def assert_safe(acknowledged: dict[str, IntervalSet], persisted: dict[str, IntervalSet]) -> None:
    for device, ranges in acknowledged.items():
        assert persisted.get(device, IntervalSet()).covers(ranges), (
            f"{device} has an acknowledgement of records that Pulsar lacks"
        )
