"""`python -m benchmarks.gateway fleet`: a whole gateway, with its connections, in a region of 100,000 devices.

Every device is in the registry's topic; some of them send, at half of the load that is asked of a gateway. What it
takes to have heard from all of them is in `memory`, which needs no certificate for each.
"""

from __future__ import annotations

import time

from benchmarks.gateway.device_load import TENANT
from benchmarks.gateway.servers import Gateway, region
from benchmarks.gateway.speed import measure
from benchmarks.harness import Target, are_met, benchmark_folder
from tests.waiting import wait_until

DEVICES = 100_000
LOADED_RATE, BATCH_BYTES = 4000.0, 2 << 10
LIMIT_MIB = 150
_READ_S = 300.0


def main() -> bool:
    with benchmark_folder("fleet") as folder, region(folder) as place:
        began_s = time.monotonic()
        place.expect(TENANT, [f"vehicle-{number:06d}" for number in range(DEVICES)])
        print(f"{DEVICES:,} devices put into the registry in {time.monotonic() - began_s:.0f} s", flush=True)
        with place.running(1) as (gateway,):
            print(f"read by a gateway in {_read_s(gateway):.0f} s after it was healthy", flush=True)
            loaded = measure(place, [gateway], "half the load", batch_bytes=BATCH_BYTES, rate=LOADED_RATE)
    print(f"beside {loaded.rate:,.0f} batches a second, MQTT-in to receipt p99 {loaded.receipt_ms[1]:.1f} ms")
    resident = loaded.resident_mib
    return are_met(
        [
            Target(
                "resident memory of the whole gateway",
                f"< {LIMIT_MIB} MiB",
                f"{resident:.0f} MiB",
                resident < LIMIT_MIB,
            )
        ]
    )


def _read_s(gateway: Gateway) -> float:
    began_s = time.monotonic()
    wait_until(lambda: gateway.known_devices() == DEVICES, _READ_S)
    return time.monotonic() - began_s
