"""`python -m benchmarks.gateway noisy`: what one tenant at ten times its rate does to another, on real servers.

The calm tenant sends steadily; how long its devices wait for their acknowledgements is measured, from the moment a
batch was due. The loud one sends at its rate, then ten times as much, and listens to no answer. Both phases come in
turn, so that what else the machine does weighs on both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from statistics import median

from benchmarks.gateway.device_load import LoadSettings, device_name
from benchmarks.gateway.servers import Gateway, MeasuredRegion, region
from benchmarks.harness import Target, are_met, benchmark_folder

CALM, LOUD = "calm", "loud"
CALM_RATE, LOUD_RATE, NOISE = 100.0, 100.0, 10
DEVICES, BATCH_BYTES = 50, 2 << 10
SECONDS, SKIP_S, TURNS = 10.0, 4.0, 3
MOST_LONGER, MOST_OF_NOISE = 1.2, 0.9
TENANTS = f"[tenants.{CALM}]\n[tenants.{LOUD}]\nmax_batches_per_s = {LOUD_RATE}\n"


def _load(place: MeasuredRegion, stack: ExitStack, tenant: str, rate: float, *, deaf: bool) -> subprocess.Popen[str]:
    name = f"{tenant}{int(time.monotonic() * 1000)}"
    place.expect(tenant, [device_name(name, number) for number in range(DEVICES)])
    settings = LoadSettings(
        port=place.mqtt.port,
        certificates=[place.files_of(f"{tenant}/{device_name(name, number)}") for number in range(DEVICES)],
        batch_bytes=BATCH_BYTES,
        seconds=SECONDS,
        rate=rate,
        skip_s=SKIP_S,
        name=name,
        tenant=tenant,
        deaf=deaf,
        waits=True,
    )
    file = place.folder / f"{name}.json"
    file.write_text(json.dumps(asdict(settings)))
    command = [sys.executable, "-m", "benchmarks.gateway.device_load", str(file)]
    return stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def phase(place: MeasuredRegion, gateway: Gateway, loud_rate: float) -> tuple[float, float, float, float]:
    """p50 and p99 of the calm tenant (ms), and of the loud one what was taken and sent back a second."""
    with ExitStack() as stack:
        calm = _load(place, stack, CALM, CALM_RATE, deaf=False)
        loud = _load(place, stack, LOUD, loud_rate, deaf=True)
        for one in (calm, loud):
            assert one.stdout is not None
            assert one.stdout.readline().strip() == "ready"
        for one in (calm, loud):
            assert one.stdin is not None
            print("go", file=one.stdin, flush=True)
        time.sleep(SKIP_S)
        before, began_s = gateway.metrics(), time.monotonic()
        time.sleep(SECONDS - SKIP_S - 1)
        after, took_s = gateway.metrics(), time.monotonic() - began_s
        assert calm.poll() is None, "the calm tenant ended while the loud one was measured"
        assert calm.stdout is not None
        result = json.loads(calm.stdout.readline())
        assert loud.stdout is not None
        loud.stdout.readline()
        assert not result["unsent"], f"{result['unsent']} batches of the calm tenant could not be sent when due"
        assert not result["left"], f"{result['left']} batches of the calm tenant were never acknowledged"
        loud.communicate()  # or it ends by an error: nobody would read what it says
    names = ("waybill_gateway_batches_total", f'waybill_gateway_slowed_down_batches_total{{tenant="{LOUD}"}}')
    taken, slowed = ((after.get(name, 0.0) - before.get(name, 0.0)) / took_s for name in names)
    # What is not taken of the loud one is sent back, so together they are what it sent.
    sent = taken - CALM_RATE + slowed
    assert sent >= MOST_OF_NOISE * loud_rate, f"the loud one sent {sent:.0f} batches a second"
    return result["p50_ms"], result["p99_ms"], taken - CALM_RATE, slowed


def main() -> bool:
    p99: dict[float, list[float]] = {}
    with benchmark_folder("noisy") as folder, region(folder) as place:
        for tenant in (CALM, LOUD):
            place.new_tenant(tenant)
        print(f"{'loud tenant sends':>20}{'taken':>9}{'sent back':>11}   {'calm tenant: p50':>16}{'p99 ms':>9}")
        with place.running(1, TENANTS) as (gateway,):
            for number in range(2 * TURNS):
                rate = LOUD_RATE * (NOISE if number % 2 else 1)
                half_ms, most_ms, taken, slowed = phase(place, gateway, rate)
                p99.setdefault(rate, []).append(most_ms)
                print(f"{rate:18,.0f}/s{taken:9,.0f}{slowed:11,.0f}   {half_ms:16.1f}{most_ms:9.1f}", flush=True)
    quiet, noise = (median(values) for values in p99.values())
    print(f"median p99 {quiet:.1f} ms, beside the noise {noise:.1f} ms")
    return are_met(
        [
            Target(
                "p99 of the calm tenant beside the noise",
                f"<= {MOST_LONGER} times",
                f"{noise / quiet:.2f} times",
                noise <= MOST_LONGER * quiet,
            )
        ]
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
