"""The region's side of the benchmark: takes batches (or bridged messages), acknowledges, notes when what arrived."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.edge.load import FIRST_MS
from telemetry import Ack, decode, encode_ack, read_header

LIVE_MS = FIRST_MS + 10**9
"""Live messages have times from here on; their place says when they were sent."""


class Sink:
    """`numbers`: how often each message arrived, by its number. `live`: seconds from sending to arrival."""

    def __init__(self, port: int, *, count_only_above: int | None = None) -> None:
        self.numbers: dict[int, int] = {}
        self.records = 0
        self.wire_bytes = 0
        self.live: list[float] = []
        self.repeated = 0
        self.names: dict[tuple[int, int], int] = {}
        self._out_of_order = 0
        self._latest = -1
        self._live_sent: dict[int, float] = {}
        self._above = count_only_above
        self._seen: set[tuple[int, int]] = set()
        self._ready = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="sink", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe([("waybill/1/+/+/batch", 1), ("vehicle/#", 1)])
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._take
        # The region's broker keeps what comes while the sink reconnects: nothing is lost on this side.
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, keepalive=600, clean_start=False, properties=properties)
        self._client.reconnect_delay_set(1, 1)
        self._client.loop_start()
        self._ready.wait(30)

    @property
    def out_of_order(self) -> int:
        """Messages that stand after a later one: in the order of their names, where they have names."""
        in_order = [number for _, number in sorted(self.names.items())]
        return self._out_of_order + sum(after < before for before, after in pairwise(in_order))

    def sending_live(self, number: int) -> None:
        self._live_sent[number] = time.monotonic()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        payload = message.payload
        self.wire_bytes += len(payload)
        if not message.topic.startswith("waybill"):
            number = int(json.loads(payload)["time"]) - FIRST_MS
            self._note(number)
            self.records += 1
            if number < LIVE_MS - FIRST_MS:
                self._out_of_order += number < self._latest
                self._latest = max(number, self._latest)
            return
        header = read_header(payload)
        client.publish(
            message.topic.removesuffix("batch") + "ack", encode_ack(Ack(header.epoch, header.accounted)), qos=1
        )
        self.records += header.ranges.count
        if self._above is None or (header.ranges.last or 0) > self._above:
            for record in decode(payload).records:
                number = record.device_time_us // 1000 - FIRST_MS
                if self.names.setdefault((header.epoch, record.seq), number) != number:
                    raise AssertionError("a name has two contents")
                self.repeated += (header.epoch, record.seq) in self._seen
                if (header.epoch, record.seq) not in self._seen:
                    self._seen.add((header.epoch, record.seq))
                    self._note(number)

    def _note(self, number: int) -> None:
        live = number - (LIVE_MS - FIRST_MS)
        if live >= 0:
            sent_s = self._live_sent.pop(live, None)
            if sent_s is not None:
                self.live.append(time.monotonic() - sent_s)
            return
        self.numbers[number] = self.numbers.get(number, 0) + 1


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")
