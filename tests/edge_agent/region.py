"""The far side of an uplink as the tests want it: it takes batches, can stay silent, and remembers everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from deploy.local import TlsFiles
from tests.waiting import PATIENCE, deadline_s
from waybill.record import Ack, IntervalSet, Record, decode, encode_ack

Name = tuple[str, int, int]


class MqttRegion:
    """A gateway on a broker at `port` that acknowledges what it remembers, as long as `answers` is true."""

    def __init__(self, port: int, name: str = "region", tls: TlsFiles | None = None) -> None:
        self.records: dict[Name, Record] = {}
        self.lost: dict[tuple[str, int], IntervalSet] = {}
        self.heads: dict[tuple[str, int], int] = {}
        self.conflicts: list[Name] = []
        self.payloads: list[bytes] = []
        self.answers = True
        self.errors: list[BaseException] = []
        self.reports: list[bytes] = []
        self._ready = threading.Event()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"gateway-{name}", protocol=MQTTProtocolVersion.MQTTv5
        )
        self.client.max_inflight_messages_set(1000)
        self.client.on_connect = lambda client, *_: client.subscribe(
            [("waybill/1/+/+/batch", 1), ("waybill/1/+/+/config-result", 1)]
        )
        self.client.on_subscribe = lambda *_: self._ready.set()
        self.client.on_message = self._take
        if tls is not None:
            self.client.tls_set(str(tls.ca), str(tls.certificate), str(tls.key))
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self._ready.wait(10 * PATIENCE)

    def close(self) -> None:
        self.client.disconnect()
        # paho forgets its thread between its own two looks at it when the thread ends by itself.
        with suppress(AttributeError):
            self.client.loop_stop()

    def push(self, tenant: str, device: str, text: str) -> None:
        self.client.publish(f"waybill/1/{tenant}/{device}/config", text.encode(), qos=1).wait_for_publish(5)

    def accounted(self, device: str, epoch: int) -> IntervalSet:
        names = IntervalSet.of(seq for its, number, seq in self.records if (its, number) == (device, epoch))
        return names | self.lost.get((device, epoch), IntervalSet())

    def wait_for(self, condition: Callable[[MqttRegion], bool], timeout_s: float = 20.0) -> bool:
        deadline = deadline_s(timeout_s)
        while not condition(self):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _take(self, client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        try:
            if message.topic.endswith("config-result"):
                self.reports.append(bytes(message.payload))
            else:
                self._take_batch(message.topic, bytes(message.payload))
        except BaseException as error:  # noqa: BLE001 - paho would swallow it; the test looks at it
            self.errors.append(error)

    def _take_batch(self, topic: str, payload: bytes) -> None:
        self.payloads.append(payload)
        batch = decode(payload)
        life = (batch.device, batch.epoch)
        self.heads[life] = max(batch.head, self.heads.get(life, 0))
        for record in batch.records:
            name = (*life, record.seq)
            if self.records.setdefault(name, record) != record:
                self.conflicts.append(name)
        self.lost[life] = self.lost.get(life, IntervalSet()) | batch.header.lost_seqs
        if self.answers:
            ack = encode_ack(Ack(batch.epoch, batch.header.seqs))
            self.client.publish(topic.removesuffix("batch") + "ack", ack, qos=1)
