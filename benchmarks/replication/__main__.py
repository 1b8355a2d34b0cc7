"""`make bench-replication`: how long a record takes from a region to the centre, at rest and over a slow link.

Real batches go into cluster eu at 5,000 records a second; a reader in cluster hq notes when each arrives. A record's
time runs from the call that sends its batch to the arrival in the reader's process: it holds the sender's own batching,
Pulsar's disk in both clusters, the link between them and the delivery. Exit status: 0 both targets hold, 1 one does
not.
"""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.harness import benchmark_folder
from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.findings import Follower, SeenRange
from deploy.local import LocalStack, PulsarSettings, StackSettings
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.record import Batch, Position, Record, encode

RECORDS_PER_S = 5_000
RECORDS_PER_BATCH = 20
DEVICES = 50
WARM_UP_S = 8.0
MEASURED_S = 15.0
SETTLE_S = 20.0
OPERATION_S = 30
ADDED_DELAY_S = 0.08
TOPIC = "persistent://fleet/telemetry-eu/batches"
TOPOLOGY = """
centre = "hq"
[clusters.eu]
[clusters.hq]
[regions.eu]
cluster = "eu"
[tenants.fleet]
[namespaces."fleet/telemetry-{region}"]
retention = { minutes = 600, size_mb = 1024 }
[namespaces."fleet/telemetry-{region}".topics.batches]
partitions = 2
"""


@dataclass(frozen=True)
class Measured:
    """One run: milliseconds by record, ascending; how many records were sent and how many of them never arrived."""

    what: str
    target_ms: float
    times_ms: list[float]
    sent: int
    rate: float

    def percentile(self, share: float) -> float:
        if not self.times_ms:
            return float("inf")
        return self.times_ms[min(len(self.times_ms) - 1, int(share * len(self.times_ms)))]

    @property
    def missing(self) -> int:
        return self.sent - len(self.times_ms)

    @property
    def holds(self) -> bool:
        return self.missing == 0 and self.percentile(0.99) <= self.target_ms


def main() -> None:
    with benchmark_folder("replication") as folder:
        (folder / "topology.toml").write_text(TOPOLOGY)
        settings = StackSettings(pulsar=PulsarSettings(heap_mb=512, full_compiler=True))
        with LocalStack(folder / "stack", topology=folder / "topology.toml", settings=settings) as stack:
            measure(stack, "warm-up", 1, WARM_UP_S, float("inf"))
            runs = [measure(stack, "loopback", 2, MEASURED_S, 100)]
            stack.links["eu->hq"].delay(ADDED_DELAY_S)
            runs.append(measure(stack, f"{ADDED_DELAY_S * 1000:.0f} ms added each way", 3, MEASURED_S, 1000))
    Console(width=None if sys.stdout.isatty() else 120).print(table(runs))
    sys.exit(0 if all(run.holds for run in runs) else 1)


def measure(stack: LocalStack, what: str, epoch: int, seconds: float, target_ms: float) -> Measured:
    """Sends for a while at the steady rate and waits until everything has arrived."""
    payloads = list(batches(epoch, round(seconds * RECORDS_PER_S / RECORDS_PER_BATCH)))
    with Follower(stack.pulsar["hq"].service_url, [TOPIC], stack.access()) as follower:
        sent, lasted_s = send(stack.pulsar["eu"].service_url, stack.access(), payloads)
        ends = time.monotonic() + SETTLE_S
        while len(follower.arrivals) < len(payloads) and time.monotonic() < ends:
            time.sleep(0.1)
        times = sorted(milliseconds(follower.arrivals, sent))
    records = len(payloads) * RECORDS_PER_BATCH
    return Measured(what, target_ms, times, records, records / lasted_s)


def milliseconds(arrivals: list[SeenRange], sent: dict[tuple[str, int], float]) -> Iterator[float]:
    """The time of each record; one that comes twice counts at its first arrival."""
    for arrival in arrivals:
        began_s = sent.pop((arrival.stream.device, arrival.first), None)
        if began_s is not None:
            yield from [1000 * (arrival.at_s - began_s)] * (arrival.last - arrival.first + 1)


def batches(epoch: int, count: int) -> Iterator[tuple[DeviceStream, int, bytes]]:
    for number in range(count):
        device, first = f"eu-{number % DEVICES:04d}", number // DEVICES * RECORDS_PER_BATCH + 1
        last = first + RECORDS_PER_BATCH - 1
        records = tuple(
            Record(seq, 1_767_603_422_000_000 + seq, Position(latitude=53.44 + seq * 1e-6, longitude=-2.93))
            for seq in range(first, last + 1)
        )
        yield DeviceStream("fleet", device, epoch), first, encode(Batch(device, epoch, last, records))


def send(
    service_url: str, access: PulsarAccess, payloads: list[tuple[DeviceStream, int, bytes]]
) -> tuple[dict[tuple[str, int], float], float]:
    """Sends at the pace, each batch at its own moment; returns when each was sent, and how long all took."""
    client = open_pulsar_client(service_url, access, timeout_s=OPERATION_S)
    producer = client.create_producer(TOPIC, block_if_queue_full=True, batching_max_publish_delay_ms=1)
    sent: dict[tuple[str, int], float] = {}
    began, pause = time.monotonic(), threading.Event()
    for number, (buffer, first, payload) in enumerate(payloads):
        early_s = began + number * RECORDS_PER_BATCH / RECORDS_PER_S - time.monotonic()
        if early_s > 0:
            pause.wait(early_s)
        sent[buffer.device, first] = time.time()
        producer.send_async(payload, lambda *_: None, partition_key=buffer.device)
    producer.flush()
    lasted_s = time.monotonic() - began
    client.close()
    return sent, lasted_s


def table(runs: list[Measured]) -> Table:
    rendered = Table(title="Replication latency, eu to hq", title_justify="left", caption_justify="left")
    for column in ("link", "records/s", "records", "missing", "p50", "p99", "most", "p99 must be", "holds"):
        rendered.add_column(column, justify="left" if column == "link" else "right", no_wrap=True)
    for run in runs:
        times = [f"{run.percentile(share):,.0f} ms" for share in (0.5, 0.99, 1.0)]
        rendered.add_row(
            run.what,
            f"{run.rate:,.0f}",
            f"{run.sent:,}",
            f"{run.missing:,}",
            *times,
            f"at most {run.target_ms:,.0f} ms",
            "yes" if run.holds else "NO",
        )
    rendered.caption = f"{RECORDS_PER_BATCH} records a batch, {DEVICES} devices, 2 partitions"
    return rendered


if __name__ == "__main__":
    main()
