"""Devices with a certificate each that record without end, and the centre's account of what came of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import TlsFiles
from tests.cloud_jobs.ingest.centre import new_ingest, seqs_in_table, take_in
from tests.new_lakes import new_lake
from tests.system.gateway_region import RECORDS, assert_safe
from tests.system.guarded_region import TENANT, GuardedRegion
from tests.waiting import wait_until
from waybill.daemon.tls import load_key_pair, tls_context
from waybill.record import (
    Ack,
    Batch,
    Canary,
    DeviceChannel,
    IntervalSet,
    Record,
    decode_ack,
    device_topic,
    encode,
    read_header,
)

EPOCH = 7
_EVERY_S, _AGAIN_S, _KEEPALIVE_S = 0.02, 2.0, 3
_PUBACK_S = 2.0
"""So long after its device heard of it a batch may wait for its PUBACK, without which the broker sends it again."""
PARTITIONS = ("batches-partition-0", "batches-partition-1")


class GuardedDevice:
    """A device. With a `window` of one it sends each batch when the one before is acknowledged.

    `acknowledged_s`: when it was first seen that a batch, by its first seq, is acknowledged; `sent`: how often it went.
    """

    def __init__(self, name: str, files: TlsFiles, port: int, window: int) -> None:
        self.name, self.window = name, window
        self.batches: dict[int, bytes] = {}
        self.acknowledged, self.acknowledged_s = IntervalSet(), dict[int, float]()
        self.refusals: set[str] = set()
        self._files, self._context = files, tls_context(files)
        self.sent: Counter[int] = Counter()
        self._sent_s: dict[int, float] = {}
        self._next_s = 0.0
        self._topic = device_topic(TENANT, name, DeviceChannel.BATCH)
        acks = device_topic(TENANT, name, DeviceChannel.ACK)
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self.client.on_message = lambda _, __, message: self._on_ack(decode_ack(bytes(message.payload)))
        self.client.on_connect = lambda client, *_: client.subscribe(acks, qos=1)
        self.client.reconnect_delay_set(1, 1)
        self.client.tls_set_context(self._context)
        self.client.connect("127.0.0.1", port, _KEEPALIVE_S)
        self.client.loop_start()

    @property
    def recorded(self) -> IntervalSet:
        return IntervalSet([(1, len(self.batches) * RECORDS)]) if self.batches else IntervalSet()

    @property
    def waiting(self) -> list[int]:
        return [*self._sent_s]

    def read_certificate(self) -> None:
        """The next connection shows the certificate that is in its file now."""
        load_key_pair(self._context, self._files.certificate, self._files.key)

    def turn(self, now_s: float, *, records: bool) -> None:
        """Take note of what is acknowledged, record the next batch when it is time, send what is to be sent."""
        for first in self.waiting:
            if self.acknowledged.covers(IntervalSet([(first, first + RECORDS - 1)])):
                self.acknowledged_s[first] = now_s
                del self._sent_s[first]
        if records and len(self._sent_s) < self.window and now_s > self._next_s:
            self._next_s = now_s + _EVERY_S
            self._record()
        if self.client.is_connected():
            for first, sent_s in self._sent_s.items():
                if now_s - sent_s > _AGAIN_S:
                    self._sent_s[first] = now_s
                    self.sent[first] += 1
                    self.client.publish(self._topic, self.batches[first], qos=1)

    def _record(self) -> None:
        first = len(self.batches) * RECORDS + 1
        seqs = range(first, first + RECORDS)
        now_us = time.time_ns() // 1000
        records = tuple(Record(seq, now_us + seq, Canary(id=f"{self.name}-{seq}")) for seq in seqs)
        self.batches[first] = encode(Batch(self.name, EPOCH, seqs[-1], records))
        self._sent_s[first] = 0.0

    def _on_ack(self, ack: Ack) -> None:
        if ack.refusal:
            self.refusals.add(ack.refusal)
        else:
            self.acknowledged |= ack.seqs

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class GuardedFleet:
    """Devices at work in a thread, and a centre's lake that takes in what Pulsar has of them."""

    def __init__(self, region: GuardedRegion, folder: Path, windows: dict[str, int]) -> None:
        self.region = region
        region.register(windows)
        port = region.to_broker.port
        self.devices = {
            name: GuardedDevice(name, region.files(f"{TENANT}/{name}"), port, window)
            for name, window in windows.items()
        }
        self._lake = new_lake(folder / "lake")
        self._ingest = new_ingest(self._lake)
        self._taken = dict.fromkeys(PARTITIONS, 0)
        self._copies: Counter[tuple[str, int]] = Counter()
        self._records, self._ends = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._work)

    @property
    def acknowledged(self) -> dict[str, IntervalSet]:
        return {name: one.acknowledged for name, one in self.devices.items()}

    @property
    def batches(self) -> int:
        """How many are acknowledged."""
        return sum(len(one.acknowledged_s) for one in self.devices.values())

    def reissue(self, *, in_s: float) -> None:
        """Gives certificates that end so soon to all devices and gateways, and such a token to the gateways."""
        gateways = [f"gateway@{one.process.name}" for one in self.region.gateways]
        self.region.reissue([*gateways, *(f"{TENANT}/{name}" for name in self.devices)], in_s=in_s)
        for one in self.devices.values():
            one.read_certificate()

    def go_on(self) -> None:
        """Let the devices record, and wait until batches of each are acknowledged."""
        self._records.set()
        before = {one: len(one.acknowledged_s) for one in self.devices.values()}
        wait_until(lambda: all(len(one.acknowledged_s) > count + 2 for one, count in before.items()), said=self._said)

    def settle(self) -> None:
        """Let the devices record nothing more, and wait until everything is acknowledged."""
        self._records.clear()
        wait_until(lambda: not any(one.waiting for one in self.devices.values()), said=self._said)

    def assert_safe(self) -> None:
        """What is acknowledged by now is in Pulsar."""
        acknowledged = self.acknowledged
        assert_safe(acknowledged, self.region.topics.persisted(TENANT))

    def check(self, since_s: float) -> list[tuple[str, int]]:
        """What a reader of the topic gets, taken in as the ingest does it, is what was recorded; what came again.

        Again comes a whole batch with the same bytes, and none that its device knew to be safe well before `since_s`.
        """
        found = {topic: self.region.topics.messages(topic) for topic in PARTITIONS}
        copies: Counter[tuple[str, int]] = Counter()
        for payload, properties in chain.from_iterable(found.values()):
            header = read_header(payload)
            assert header.seqs.first is not None
            assert (properties["tenant"], properties["device"]) == (TENANT, header.device)
            assert payload == self.devices[header.device].batches[header.seqs.first], "an id has other bytes"
            copies[header.device, header.seqs.first] += 1
        self._take_in(found)
        for name, one in self.devices.items():
            came = [first for device, first in copies if device == name]  # in the order of their first copies
            assert one.window > 1 or came == sorted(came), f"the batches of {name} are not in their order"
            assert seqs_in_table(self._lake, name, TENANT) == list(one.recorded), f"{name}: lost or double"
            assert one.refusals <= {"slow-down"}
        again = [key for key, count in copies.items() if count > max(1, self._copies[key])]
        self._copies = copies
        for name, first in again:
            assert self.devices[name].acknowledged_s[first] > since_s - _PUBACK_S, "what was acknowledged came again"
        return again

    def close(self) -> None:
        self._ends.set()
        try:
            self._done.result(10)
        finally:
            self._pool.shutdown()
            for one in self.devices.values():
                one.close()

    def _take_in(self, found: dict[str, list[tuple[bytes, dict[str, str]]]]) -> None:
        """One micro-batch with what came since the last one."""
        tasks = [[(TENANT, payload) for payload, _ in found[topic][self._taken[topic] :]] for topic in PARTITIONS]
        take_in(self._lake, self._ingest, *tasks)
        self._taken = {topic: len(messages) for topic, messages in found.items()}

    def _work(self) -> None:
        while not self._ends.wait(0.005):
            for one in self.devices.values():
                one.turn(time.monotonic(), records=self._records.is_set())

    def _said(self) -> dict[str, list[int]]:
        return {name: one.waiting for name, one in self.devices.items()}
