"""A device that records without end and sends each batch until it is acknowledged. It runs in a pod, until stdin ends.

`-c TEXT HOST PORT TLS TENANT/DEVICE`, with the text of this file. A line of JSON ten times a second: records recorded
and acknowledged, the first that is not acknowledged, and whether it is connected.
"""

import json
import select
import sys
import time
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from waybill.daemon.tls import TlsSettings, tls_context
from waybill.record import Batch, Canary, DeviceChannel, IntervalSet, Record, decode_ack, device_topic, encode

RECORDS = 10
AGAIN_S = 2.0


def main(host: str, port: int, folder: Path, name: str) -> None:
    tenant, device = name.split("/")
    files = {one: folder / f"{one}.pem" for one in ("ca", "certificate", "key")}
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    acknowledged, waiting, recorded = IntervalSet(), dict[int, tuple[bytes, float]](), 0

    def on_ack(_: mqtt.Client, __: object, message: mqtt.MQTTMessage) -> None:
        nonlocal acknowledged
        acknowledged |= decode_ack(bytes(message.payload)).seqs

    client.on_message = on_ack
    client.on_connect = lambda client, *_: client.subscribe(device_topic(tenant, device, DeviceChannel.ACK), qos=1)
    client.reconnect_delay_set(1, 1)
    client.tls_set_context(tls_context(TlsSettings(**files)))
    client.connect_async(host, port, 10)
    client.loop_start()
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        if client.is_connected() and len(waiting) < 20:
            now_us = time.time_ns() // 1000
            seqs = range(recorded + 1, recorded + RECORDS + 1)
            batch = Batch(device, 7, seqs[-1], tuple(Record(seq, now_us + seq, Canary(id=f"{seq}")) for seq in seqs))
            waiting[seqs[0]], recorded = (encode(batch), 0.0), seqs[-1]
        for first, (payload, sent_s) in [*waiting.items()]:
            if acknowledged.covers(IntervalSet([(first, first + RECORDS - 1)])):
                del waiting[first]
            elif client.is_connected() and time.monotonic() - sent_s > AGAIN_S:
                client.publish(device_topic(tenant, device, DeviceChannel.BATCH), payload, qos=1)
                waiting[first] = payload, time.monotonic()
        counts = {
            "recorded": recorded,
            "acknowledged": acknowledged.count,
            "waits_from": min(waiting, default=recorded + 1),
        }
        sys.stdout.write(json.dumps(counts | {"connected": client.is_connected()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
