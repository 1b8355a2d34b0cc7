"""What goes through gateways on real servers, beside `pulsar-perf`, 100,000 known devices, and a noisy tenant."""

import os
import re
import subprocess
import time
from statistics import median
from tempfile import gettempdir
from typing import Any, NamedTuple

import psutil

from benchmarks.gateway.device_load import TENANT, result_of
from benchmarks.gateway.region import REGION, Gateway, MeasuredRegion, region
from benchmarks.harness import benchmark_folder, limited, print_figures
from deploy.local.pulsar import pulsar_home
from tests.waiting import wait_until
from waybill.pulsar.pulsar_client import PulsarAccess

DEVICES = 200
WARM_UP_S = 6.0
HALF_WARM_UP_S = 2.0
MEASURED_S = 10.0
PERF_S = 15
LARGE, SMALL = 16 << 10, 2 << 10
TARGET_RATE = 8_000.0
HALF_OF_PERF, TWO_OF_ONE, MOST_RECEIPT_MS, MOST_MIB = 0.5, 1.6, 50.0, 150.0
MOST_UNSENT = 0.01
_PERSIST = "waybill_gateway_persist_seconds_bucket"


def perf_rate(service_url: str, access: PulsarAccess, topic: str, size: int, seconds: int) -> float:
    """Messages of that size a second by `pulsar-perf produce`, with Pulsar's own settings for batching."""
    # without a bound it takes more messages than its memory holds, and stands still for ever
    arguments = f"--service-url {service_url} --size {size} --rate 1000000 --max-outstanding 1000".split()
    arguments += ["--test-duration", str(seconds)]
    if access.token_file is not None:
        arguments += ["--auth-plugin", "org.apache.pulsar.client.impl.auth.AuthenticationToken"]
        arguments += ["--auth-params", access.token_file.as_uri()]
    if access.tls_ca is not None:
        arguments += ["--trust-cert-file", str(access.tls_ca)]
    command = [str(pulsar_home() / "bin" / "pulsar-perf"), "produce", *arguments, topic]
    environment = {"OPTS": "-Xmx512m -XX:MaxDirectMemorySize=512m -XX:+UseSerialGC", "PULSAR_LOG_DIR": gettempdir()}
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    rates = re.findall(r"(?:Throughput produced:|Aggregated throughput).*?--- +([\d.]+) msg/s", done.stdout)
    if not rates:
        raise RuntimeError(f"pulsar-perf says nothing of its rate:\n{(done.stdout + done.stderr)[-2000:]}")
    # it prints the rate of each three seconds: in the first ones the JVM becomes fast
    return max(float(rate) for rate in rates)


class MeasuredLoad(NamedTuple):
    """One load on gateways. `cpu_s`: processor seconds of the gateways for 10,000 batches."""

    rate: float
    bytes_rate: float
    cpu_s: float
    receipt_ms: tuple[float, float]
    resident_mib: float
    unsent: int


def measure(
    place: MeasuredRegion, what: str, *, batch_bytes: int, rate: float = 0.0, warm_up_s: float = WARM_UP_S
) -> MeasuredLoad:
    """One load on the gateways that run; its row is printed."""
    seconds, gateways = warm_up_s + MEASURED_S + 1.0, place.gateways
    with place.load(TENANT, DEVICES, rate, seconds, warm_up_s, batch_bytes=batch_bytes) as load:
        time.sleep(warm_up_s)
        processes = [psutil.Process(gateway.process.pid) for gateway in gateways]
        before, counted, began_s = _cpu_s(processes), _counts(gateways), time.monotonic()
        time.sleep(MEASURED_S)
        cpu_s, after, took_s = _cpu_s(processes) - before, _counts(gateways), time.monotonic() - began_s
        resident = max(process.memory_info().rss for process in processes)
        result = result_of(load)
    assert not result.left, f"{result.left} batches were never acknowledged"
    grown = {key: after[key] - counted.get(key, 0.0) for key in after}
    batches, p50, p99 = grown["waybill_gateway_batches_total"], _quantile_ms(grown, 0.5), _quantile_ms(grown, 0.99)
    bytes_rate, mib = grown["waybill_gateway_bytes_total"] / took_s, resident / (1 << 20)
    found = MeasuredLoad(batches / took_s, bytes_rate, cpu_s / batches * 10_000, (p50, p99), mib, result.unsent)
    print(
        f"{what}: {found.rate:,.0f} batches/s, {bytes_rate / 1e6:.1f} MB/s; MQTT-in to receipt p50 {p50:.1f} ms, p99"
        f" {p99:.1f} ms; {mib:.0f} MiB, {found.cpu_s:.2f} s of processor for 10,000 batches",
        flush=True,
    )
    return found


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(one.user + one.system for one in (process.cpu_times() for process in processes))


def _counts(gateways: list[Gateway]) -> dict[str, float]:
    total: dict[str, float] = {}
    for gateway in gateways:
        for key, value in gateway.metrics().items():
            total[key] = total.get(key, 0.0) + value
    return total


def _quantile_ms(grown: dict[str, float], share: float) -> float:
    buckets = sorted((float(key.split('"')[1]), count) for key, count in grown.items() if key.startswith(_PERSIST))
    wanted = share * buckets[-1][1]
    low_s, below = 0.0, 0.0
    for high_s, count in buckets:
        if count >= wanted and count > below:
            return (low_s + (high_s - low_s) * (wanted - below) / (count - below)) * 1000
        low_s, below = high_s, count
    return float("nan")


def main() -> bool:
    """About three minutes where nothing else runs, or the figures are of no use."""
    with benchmark_folder("gateway") as folder, region(folder) as place:
        with place.running(1):
            full = measure(place, "2 kB, as many as go", batch_bytes=SMALL)
            rate = TARGET_RATE / 2
            half = measure(place, "2 kB, half load", batch_bytes=SMALL, rate=rate, warm_up_s=HALF_WARM_UP_S)
            large = measure(place, "16 kB, as many as go", batch_bytes=LARGE, warm_up_s=3)
        with place.running(2):
            two = measure(place, "2 kB, two processes", batch_bytes=SMALL, warm_up_s=3)
        url, access = place.stack.pulsar[REGION].service_url, place.stack.access(f"gateway-{REGION}")
        topic = f"persistent://{TENANT}/telemetry-{REGION}/perf"
        perf = {size: perf_rate(url, access, topic, size, PERF_S) for size in (SMALL, LARGE)}
    for size, one in ((SMALL, full), (LARGE, large)):
        share = one.bytes_rate / (perf[size] * size)
        print(f"pulsar-perf produce, {size >> 10:2} kB: {perf[size]:9,.0f} messages/s; the gateway {share:.0%} of it")
    # each with a core of its own, two would take twice the batches of one, divided by how much dearer a batch is
    two_of_one = 2 * full.cpu_s / two.cpu_s
    of_perf = large.bytes_rate / (perf[LARGE] * LARGE)
    unsent = half.unsent / (TARGET_RATE / 2 * (HALF_WARM_UP_S + MEASURED_S + 1))
    mib = max(one.resident_mib for one in (full, half, large, two))
    return print_figures(
        "Gateways",
        [
            limited("batches of 2 kB a second", full.rate, ">=", TARGET_RATE),
            limited("bytes of pulsar-perf, 16 kB", of_perf, ">=", HALF_OF_PERF, "{:.0%}"),
            limited("two processes of one, by processor time a batch", two_of_one, ">=", TWO_OF_ONE, "{:.2f} times"),
            limited("MQTT-in to receipt at half load, p99", half.receipt_ms[1], "<", MOST_RECEIPT_MS, "{:.1f} ms"),
            limited("half a load: not sent when due", unsent, "<=", MOST_UNSENT, "{:.1%}"),
            limited("memory of a gateway, the most", mib, "<", MOST_MIB, "{:.0f} MiB"),
        ],
    )


MANY_DEVICES, FLEET_RATE = 100_000, 4000.0


def fleet() -> bool:
    """A whole gateway with its connections in a region of 100,000 devices, of which some send at half a load."""
    with benchmark_folder("fleet") as folder, region(folder) as place:
        place.expect(TENANT, [f"vehicle-{number:06d}" for number in range(MANY_DEVICES)])
        with place.running(1) as (gateway,):
            began_s = time.monotonic()
            wait_until(lambda: gateway.known_devices() == MANY_DEVICES, 300.0)
            print(f"{MANY_DEVICES:,} devices read in {time.monotonic() - began_s:.0f} s after it was healthy")
            mib = measure(place, "half the load", batch_bytes=SMALL, rate=FLEET_RATE).resident_mib
    what = f"memory of a gateway with {MANY_DEVICES:,} devices"
    return print_figures("A fleet", [limited(what, mib, "<", MOST_MIB, "{:.0f} MiB")])


CALM, LOUD = "calm", "loud"
CALM_RATE, LOUD_RATE, NOISE = 100.0, 100.0, 10
NOISY_DEVICES, NOISY_S, NOISY_SKIP_S, TURNS = 50, 10.0, 4.0, 3
MOST_LONGER, MOST_OF_NOISE = 1.2, 0.9


def _noisy_phase(place: MeasuredRegion, gateway: Gateway, loud_rate: float) -> float:
    """p99 of the calm tenant in ms, from the moment a batch was due."""
    facts: dict[str, Any] = {"seconds": NOISY_S, "skip_s": NOISY_SKIP_S, "batch_bytes": SMALL, "waits": True}
    with (
        place.load(CALM, NOISY_DEVICES, CALM_RATE, **facts) as calm,
        place.load(LOUD, NOISY_DEVICES, loud_rate, deaf=True, **facts) as loud,
    ):
        for one in (calm, loud):
            print("go", file=one.stdin, flush=True)
        time.sleep(NOISY_SKIP_S)
        before, began_s = gateway.metrics(), time.monotonic()
        time.sleep(NOISY_S - NOISY_SKIP_S - 1)
        after, took_s = gateway.metrics(), time.monotonic() - began_s
        assert calm.poll() is None, "the calm tenant ended while the loud one was measured"
        result = result_of(calm)
        result_of(loud)
    assert not result.unsent, f"{result.unsent} batches of the calm tenant could not be sent when due"
    assert not result.left, f"{result.left} batches of the calm tenant were never acknowledged"
    names = ("waybill_gateway_batches_total", f'waybill_gateway_slowed_down_batches_total{{tenant="{LOUD}"}}')
    taken, slowed = ((after.get(name, 0.0) - before.get(name, 0.0)) / took_s for name in names)
    # what is not taken of the loud one is sent back, so together they are what it sent
    sent = taken - CALM_RATE + slowed
    assert sent >= MOST_OF_NOISE * loud_rate, f"the loud one sent {sent:.0f} batches a second"
    print(
        f"loud {loud_rate:,.0f}/s: {taken - CALM_RATE:,.0f} taken, {slowed:,.0f} sent back; calm tenant:"
        f" p50 {result.p50_ms:.1f} ms, p99 {result.p99_ms:.1f} ms",
        flush=True,
    )
    return result.p99_ms


def noisy() -> bool:
    """Both phases come in turn, so that what else the machine does weighs on both."""
    limit = f"max_batches_per_s = {LOUD_RATE}"
    with benchmark_folder("noisy") as folder, region(folder) as place, place.running(1, limit) as (gateway,):
        turns = [[_noisy_phase(place, gateway, LOUD_RATE * times) for times in (1, NOISE)] for _ in range(TURNS)]
    quiet, noise = (median(values) for values in zip(*turns, strict=True))
    longer = limited("p99 of the calm tenant beside the noise", noise / quiet, "<=", MOST_LONGER, "{:.2f} times")
    return print_figures("A noisy tenant", [longer])
