"""How many batches go through gateways on real servers, what each process spends for them, and how long they take.

Everything shares the machine: the gateway, the region's other servers with all that guards a real one (`servers`), and
the devices, each of which the registry has. In the same
run `pulsar-perf produce` writes messages of the same size to the same cluster.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from tempfile import gettempdir

import psutil

from benchmarks.gateway.device_load import TENANT, LoadSettings, device_name
from benchmarks.gateway.servers import Gateway, MeasuredRegion, Spent, region
from benchmarks.harness import Target, are_met, benchmark_folder
from deploy.local.pulsar import java, pulsar_home
from waybill.pulsar.pulsar_client import PulsarAccess

# `pulsar-perf produce`, Pulsar's own benchmark, from the server's distribution.


def perf_rate(service_url: str, access: PulsarAccess, topic: str, size: int, seconds: int) -> float:
    """Messages a second of that size, as many as go, with Pulsar's own settings for batching."""
    home = pulsar_home()
    packages = ("java.base/java.nio", "java.base/jdk.internal.misc")
    opened = [word for package in packages for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    arguments = [
        "--service-url",
        service_url,
        "--size",
        str(size),
        "--rate",
        "1000000",
        # Without a bound it takes more messages than its memory holds, and stands still for ever.
        "--max-outstanding",
        "1000",
        "--test-duration",
        str(seconds),
    ]
    if access.token_file is not None:
        arguments += ["--auth-plugin", "org.apache.pulsar.client.impl.auth.AuthenticationToken"]
        arguments += ["--auth-params", access.token_file.as_uri()]
    if access.tls_ca is not None:
        arguments += ["--trust-cert-file", str(access.tls_ca)]
    done = subprocess.run(
        [
            *(java(), "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", *opened),
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
            f"-Dlog4j.configurationFile={home / 'conf/log4j2.yaml'}",
            "-Dpulsar.log.appender=Console",
            # it makes a file there all the same
            f"-Dpulsar.log.dir={gettempdir()}",
            *(
                "-cp",
                f"{home}/lib/*",
                "org.apache.pulsar.testclient.PulsarPerfTestTool",
                str(home / "conf/client.conf"),
            ),
            *("produce", *arguments, topic),
        ],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    rates = re.findall(r"Throughput produced:.*?--- +([\d.]+) msg/s", done.stdout)
    if not rates:
        raise RuntimeError(f"pulsar-perf says nothing of its rate:\n{(done.stdout + done.stderr)[-2000:]}")
    # It prints the rate of each three seconds: the first ones are those in which the JVM becomes fast.
    return max(float(rate) for rate in rates)


DEVICES = 200
WARM_UP_S = 6.0
HALF_WARM_UP_S = 2.0
MEASURED_S = 10.0
PERF_S = 15
LARGE, SMALL = 16 << 10, 2 << 10
TARGET_RATE = 8_000.0
HALF_OF_PERF, TWO_OF_ONE, MOST_RECEIPT_MS, MOST_MIB = 0.5, 1.6, 50.0, 150.0
MOST_UNSENT = 0.01
"""Of the batches that were due: where more could not be sent, the load was not what its name says."""
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
    unsent: int


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
        unsent=result["unsent"],
    )


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


def main() -> bool:
    """Whether all that is asked is met: about three minutes where nothing else runs, or the figures are of no use."""
    with benchmark_folder("gateway") as folder, region(folder) as place:
        print(HEAD)
        with place.running(1) as gateways:
            full = measure(place, gateways, "2 kB, as many as go", batch_bytes=SMALL)
            print(line(full), flush=True)
            half = measure(
                place, gateways, "2 kB, half load", batch_bytes=SMALL, rate=TARGET_RATE / 2, warm_up_s=HALF_WARM_UP_S
            )
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
        rate = f"{perf[size]:9,.0f} messages/s, {perf[size] * size / 1e6:6.1f} MB/s"
        share = one.bytes_rate / (perf[size] * size)
        print(f"pulsar-perf produce, {size >> 10:2} kB: {rate}; the gateway {share:.0%} of its bytes")
    return are_met(_targets(full, half, large, two, perf[LARGE] * LARGE))


def _targets(
    full: MeasuredLoad, half: MeasuredLoad, large: MeasuredLoad, two: MeasuredLoad, perf_bytes: float
) -> list[Target]:
    # Each with a core of its own, two would take twice the batches of one, divided by how much dearer a batch is.
    two_of_one = 2 * full.cpu["gateway"] / two.cpu["gateway"]
    unsent = half.unsent / (TARGET_RATE / 2 * (HALF_WARM_UP_S + MEASURED_S + 1))
    resident = max(one.resident_mib for one in (full, half, large, two))
    return [
        Target("batches of 2 kB a second", f">= {TARGET_RATE:,.0f}", f"{full.rate:,.0f}", full.rate >= TARGET_RATE),
        Target(
            "bytes in batches of 16 kB, of those of pulsar-perf",
            f">= {HALF_OF_PERF:.0%}",
            f"{large.bytes_rate / perf_bytes:.0%}",
            large.bytes_rate >= HALF_OF_PERF * perf_bytes,
        ),
        Target(
            "two processes of one, by processor time a batch",
            f">= {TWO_OF_ONE} times",
            f"{two_of_one:.2f} times",
            two_of_one >= TWO_OF_ONE,
        ),
        Target(
            "MQTT-in to receipt at half load, p99",
            f"< {MOST_RECEIPT_MS:.0f} ms",
            f"{half.receipt_ms[1]:.1f} ms",
            half.receipt_ms[1] < MOST_RECEIPT_MS,
        ),
        Target(
            "batches of half a load that could not be sent when due",
            f"<= {MOST_UNSENT:.0%}",
            f"{unsent:.1%}",
            unsent <= MOST_UNSENT,
        ),
        Target(
            "resident memory of a gateway, the most",
            f"< {MOST_MIB:.0f} MiB",
            f"{resident:.0f} MiB",
            resident < MOST_MIB,
        ),
    ]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
