"""How many batches go through gateways on real servers, what each process spends for them, and how long they take.

Everything shares the machine: the gateway, the region's other servers with all that guards a real one (`servers`), and
the devices, each of which the registry has. In the same
run `pulsar-perf produce` writes messages of the same size to the same cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.gateway.device_load import TENANT, LoadSettings, device_name
from benchmarks.gateway.pulsar_perf import perf_rate
from benchmarks.gateway.servers import Gateway, MeasuredRegion, Spent, region

DEVICES = 200
WARM_UP_S = 6.0
MEASURED_S = 10.0
PERF_S = 15
LARGE, SMALL = 16 << 10, 2 << 10
TARGET_RATE = 8_000.0
_PERSIST = "waybill_gateway_persist_seconds_bucket"


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """One load on gateways. `cpu`: seconds for 10,000 batches, by process."""

    what: str
    rate: float
    bytes_rate: float
    cpu: dict[str, float]
    cores: float
    receipt_ms: tuple[float, float]
    answer_ms: tuple[float, float]
    resident_mib: float
    acks_per_batch: float


def measure(
    place: MeasuredRegion,
    gateways: list[Gateway],
    what: str,
    *,
    batch_bytes: int,
    rate: float = 0.0,
    warm_up_s: float = WARM_UP_S,
    measured_s: float = MEASURED_S,
) -> MeasuredLoad:
    """Send for some seconds, and look at the last of them."""
    name = f"d{int(time.monotonic())}"
    place.expect(TENANT, [device_name(name, number) for number in range(DEVICES)])
    settings = LoadSettings(
        port=place.mqtt.port,
        certificates=[place.files_of(f"{TENANT}/{device_name(name, number)}") for number in range(DEVICES)],
        batch_bytes=batch_bytes,
        seconds=warm_up_s + measured_s + 1.0,
        rate=rate,
        skip_s=warm_up_s,
        name=name,
    )
    file = place.folder / f"{name}.json"
    file.write_text(json.dumps(asdict(settings)))
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.device_load", str(file)], stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdout is not None
        assert load.stdout.readline().strip() == "ready"
        time.sleep(warm_up_s)
        pids = {
            "broker": place.mqtt.pid or 0,
            "pulsar": place.pulsar.pid or 0,
            "load": load.pid,
            "guard": place.guard.pid or 0,
        }
        pids |= {gateway.process.name: gateway.process.pid or 0 for gateway in gateways}
        before, counted = Spent.now(pids), _counts(gateways)
        time.sleep(measured_s)
        spent, after = Spent.now(pids).since(before), _counts(gateways)
        resident = max(psutil.Process(gateway.process.pid).memory_info().rss for gateway in gateways)
        result = json.loads(load.stdout.readline())
    grown = {key: after[key] - counted.get(key, 0.0) for key in after}
    batches = grown["waybill_gateway_batches_total"]
    cpu = {name: seconds / batches * 10_000 for name, seconds in spent.cpu_s.items()}
    cpu["gateway"] = sum(cpu.pop(gateway.process.name) for gateway in gateways)
    assert not result["left"], f"{result['left']} batches were never acknowledged"
    return MeasuredLoad(
        what=what,
        rate=batches / spent.at_s,
        bytes_rate=grown["waybill_gateway_bytes_total"] / spent.at_s,
        cpu=cpu,
        cores=sum(spent.cpu_s.values()) / spent.at_s,
        receipt_ms=(_quantile_ms(grown, 0.5), _quantile_ms(grown, 0.99)),
        answer_ms=(result["p50_ms"], result["p99_ms"]),
        resident_mib=resident / (1 << 20),
        acks_per_batch=grown["waybill_gateway_acks_total"] / batches,
    )


def _counts(gateways: list[Gateway]) -> dict[str, float]:
    total: dict[str, float] = {}
    for gateway in gateways:
        for key, value in gateway.metrics().items():
            total[key] = total.get(key, 0.0) + value
    return total


def _quantile_ms(grown: dict[str, float], share: float) -> float:
    """From the histogram's buckets, in between by interpolation."""
    buckets = sorted((float(key.split('"')[1]), count) for key, count in grown.items() if key.startswith(_PERSIST))
    wanted = share * buckets[-1][1]
    low_s, below = 0.0, 0.0
    for high_s, count in buckets:
        if count >= wanted and count > below:
            return (low_s + (high_s - low_s) * (wanted - below) / (count - below)) * 1000
        low_s, below = high_s, count
    return float("nan")


def line(one: MeasuredLoad) -> str:
    cpu = " ".join(f"{one.cpu[name]:7.2f}" for name in ("gateway", "broker", "pulsar", "load", "guard"))
    return (
        f"{one.what:28}{one.rate:9,.0f}{one.bytes_rate / 1e6:8.1f} {cpu}{sum(one.cpu.values()):8.2f}{one.cores:7.2f}"
        f"{one.receipt_ms[0]:7.1f}{one.receipt_ms[1]:7.1f}{one.answer_ms[0]:8.1f}{one.answer_ms[1]:8.1f}"
        f"{one.resident_mib:7.0f}{one.acks_per_batch:6.2f}"
    )


HEAD = (
    f"{'':28}{'batches':>9}{'MB':>8} {'gateway':>7} {'broker':>7} {'pulsar':>7} {'load':>7} {'guard':>7}"
    f"{'all':>8}{'cores':>7}"
    f"{'receipt':>14}{'answer':>16}{'MiB':>7}{'acks':>6}\n"
    f"{'':28}{'a second':>9}{'/s':>8} {'CPU seconds for 10,000 batches':>39}{'':>8}{'':>7}"
    f"{'p50':>7}{'p99 ms':>7}{'p50':>8}{'p99 ms':>8}{'':>7}{'each':>6}"
)


def main() -> None:
    """All of it: about three minutes where nothing else runs, or the figures are of no use."""
    folder = Path(tempfile.mkdtemp(prefix="bench-gateway-"))
    with region(folder) as place:
        print(HEAD)
        with place.running(1) as gateways:
            full = measure(place, gateways, "2 kB, as many as go", batch_bytes=SMALL)
            print(line(full), flush=True)
            half = measure(place, gateways, "2 kB, half load", batch_bytes=SMALL, rate=TARGET_RATE / 2, warm_up_s=2)
            print(line(half), flush=True)
            large = measure(place, gateways, "16 kB, as many as go", batch_bytes=LARGE, warm_up_s=3)
            print(line(large), flush=True)
        with place.running(2) as gateways:
            two = measure(place, gateways, "2 kB, two processes", batch_bytes=SMALL, warm_up_s=3)
            print(line(two), flush=True)
        perf = {
            size: perf_rate(
                place.pulsar.service_url, place.credentials.gateway, place.new_topic(f"perf-{size}"), size, PERF_S
            )
            for size in (SMALL, LARGE)
        }
    for size, one in ((SMALL, full), (LARGE, large)):
        share = one.bytes_rate / (perf[size] * size)
        rate = f"{perf[size]:9,.0f} messages/s, {perf[size] * size / 1e6:6.1f} MB/s"
        print(f"pulsar-perf produce, {size >> 10:2} kB: {rate}; the gateway {share:.0%} of its bytes")


if __name__ == "__main__":
    main()
