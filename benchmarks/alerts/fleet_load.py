"""Vehicles of the load, as many agents at the region's broker: batches of fixes made beforehand, in a process alone.

Each device sends a batch in its turn, with the fixes of the time since its last one (`benchmarks.alerts.servers`).
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.alerts.servers import on_track
from benchmarks.gateway.device_load import LoadFleet, LoadSettings, device_name, publish_packet
from waybill.record import Batch, DeviceChannel, Position, Record, device_topic, encode

EPOCH = 7


def drive(began_us: int, settings: LoadSettings, number: int) -> list[bytes]:
    """The batches of a device for the whole of the load, from a moment on (microseconds since 1970)."""
    name = device_name(settings.name, number)
    topic = device_topic(settings.tenant, name, DeviceChannel.BATCH).encode()
    period_s = len(settings.certificates) / settings.rate
    made = []
    for turn in range(math.ceil(settings.seconds / period_s) + 1):
        first = turn * settings.records + 1
        batch = tuple(
            _record(number, seq, seq * period_s / settings.records, began_us)
            for seq in range(first, first + settings.records)
        )
        head = first + settings.records - 1
        made.append(publish_packet(topic, turn % 0xFFFF + 1, encode(Batch(name, EPOCH, head, batch))))
    return made


def _record(number: int, seq: int, at_s: float, began_us: int) -> Record:
    latitude, longitude = on_track(number, at_s)
    return Record(seq, began_us + round(at_s * 1e6), Position(latitude=latitude, longitude=longitude, accuracy_m=4.0))


def main() -> None:
    settings = LoadSettings(**json.loads(Path(sys.argv[1]).read_text()))
    # The first batch is of the past by then: a fix that is ahead of the region's clock would be passed over.
    began_us = time.time_ns() // 1000 - round(1e6 * len(settings.certificates) / settings.rate)
    print(json.dumps(asdict(LoadFleet(settings, partial(drive, began_us)).run())), flush=True)


if __name__ == "__main__":
    main()
