"""`make bench-replication`: how long a record takes from its sending in a region to a reader at the centre."""

import sys
import threading
import time
from collections.abc import Iterator

from benchmarks.harness import Figure, benchmark_folder, parser_of, percentile, print_figures
from benchmarks.lakes import batch_of_fixes
from benchmarks.stacks import measured_stack
from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.findings import Follower, SeenRange
from deploy.local import LocalStack
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client

RECORDS_PER_S = 5_000
RECORDS_PER_BATCH = 20
DEVICES = 50
WARM_UP_S = 8.0
MEASURED_S = 15.0
SETTLE_S = 20.0
OPERATION_S = 30
START_US = 1_767_603_422_000_000
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


def main() -> None:
    parser_of(__doc__).parse_args()
    with benchmark_folder("replication") as folder, measured_stack(folder, TOPOLOGY, 512, 384) as stack:
        measure(stack, "warm-up", 1, WARM_UP_S, float("inf"))
        figures = measure(stack, "loopback", 2, MEASURED_S, 100)
        stack.links["eu->hq"].delay(ADDED_DELAY_S)
        figures += measure(stack, f"{ADDED_DELAY_S * 1000:.0f} ms added each way", 3, MEASURED_S, 1000)
    title = f"Replication, eu to hq: {RECORDS_PER_BATCH} records a batch, {DEVICES} devices, 2 partitions"
    sys.exit(0 if print_figures(title, figures) else 1)


def measure(stack: LocalStack, what: str, epoch: int, seconds: float, target_ms: float) -> list[Figure]:
    """Sends for a while at the steady rate and waits until everything has arrived."""
    payloads = list(batches(epoch, round(seconds * RECORDS_PER_S / RECORDS_PER_BATCH)))
    with Follower(stack.pulsar["hq"].service_url, [TOPIC], stack.access()) as follower:
        sent, lasted_s = send(stack.pulsar["eu"].service_url, stack.access(), payloads)
        ends = time.monotonic() + SETTLE_S
        while len(follower.arrivals) < len(payloads) and time.monotonic() < ends:
            time.sleep(0.1)
        times = list(milliseconds(follower.arrivals, sent))
    records = len(payloads) * RECORDS_PER_BATCH
    p50, p99, most = (percentile(times, share) for share in (0.5, 0.99, 1.0))
    shown = f"p50 {p50:,.0f}, p99 {p99:,.0f}, most {most:,.0f} ms"
    missing = records - len(times)
    return [
        Figure(f"{what}, {records / lasted_s:,.0f} records/s", shown, f"p99 {target_ms:,.0f} ms", p99 <= target_ms),
        Figure(f"{what}, missing of {records:,} records", f"{missing:,}", "0", not missing),
    ]


def milliseconds(arrivals: list[SeenRange], sent: dict[tuple[str, int], float]) -> Iterator[float]:
    """The time of each record; one that comes twice counts at its first arrival."""
    for arrival in arrivals:
        began_s = sent.pop((arrival.stream.device, arrival.first), None)
        if began_s is not None:
            yield from [1000 * (arrival.at_s - began_s)] * (arrival.last - arrival.first + 1)


def batches(epoch: int, count: int) -> Iterator[tuple[DeviceStream, int, bytes]]:
    for number in range(count):
        device, first = f"eu-{number % DEVICES:04d}", number // DEVICES * RECORDS_PER_BATCH + 1
        payload = batch_of_fixes(device, first, RECORDS_PER_BATCH, START_US, epoch=epoch)
        yield DeviceStream("fleet", device, epoch), first, payload


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


if __name__ == "__main__":
    main()
