"""From a real Pulsar into `records`: how many records a second, and how long a light micro-batch takes."""

import json
import statistics
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
from pyspark.sql import SparkSession

from benchmarks.harness import Figure, limited, percentile
from benchmarks.lakes import TENANT, batch_of_fixes, fleet
from benchmarks.stacks import running
from cloud_jobs.config import CloudSettings
from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.lake.tables import Lake
from deploy.local import ObjectStore
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

DEVICES = 500
PARTITIONS = 2
LIGHT_MESSAGES = 200
LIGHT_PAUSE_S = 0.25
LIGHT_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class PulsarLoad:
    """Batches of one size: how many records are in a batch and in a micro-batch, how many micro-batches count."""

    size: int
    records: int
    rounds: int
    asked: int

    @property
    def messages(self) -> int:
        return self.records // self.size


LOADS = (PulsarLoad(200, 1_000_000, 3, 400_000), PulsarLoad(10, 200_000, 3, 60_000))


def settings_of(
    place: LiveCluster, folder: Path, topic: str, *, store: ObjectStore | None = None, **ingest: Any
) -> CloudSettings:
    where: dict[str, Any] = {"lake": folder / "lake"}
    if store is not None:
        where = {"lake": f"s3://{store.bucket}/{folder.name}"} | tomllib.loads(store.job_settings())
    given = {
        "checkpoints": folder / "checkpoints",
        "clusters": [{"name": "bench", "service_url": place.service_url, "admin_url": place.admin_url}],
        "access": place.access,
        "ingest": {"topics": [topic]} | ingest,
    }
    return CloudSettings.model_validate(where | given)


def start_us() -> int:
    return int((time.time() - 86_400) * 1e6)


def send(place: LiveCluster, topic: str, batches: Iterator[tuple[str, bytes]]) -> None:
    producer = place.client.create_producer(
        topic, batching_enabled=True, batching_max_messages=100, block_if_queue_full=True, send_timeout_millis=60_000
    )
    failed: list[pulsar.Result] = []

    def sent(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for device, value in batches:
        properties = {"tenant": TENANT, "region": "eu", "device": device, "epoch": "7"}
        producer.send_async(value, sent, partition_key=device, properties=properties)
    producer.flush()
    producer.close()
    assert not failed


def throughput(
    spark: SparkSession, place: LiveCluster, folder: Path, load: PulsarLoad, store: ObjectStore | None = None
) -> tuple[float, Figure]:
    """Records a second of full micro-batches but the first, from plan to commit, and that beside what is asked."""
    topic = place.new_topic(PARTITIONS)
    count = load.messages * (load.rounds + 1)
    batches = max(count // DEVICES, 1)
    begin_us = start_us()
    send(place, topic, fleet(DEVICES, batches, load.size, start_us=begin_us))
    settings = settings_of(place, folder, topic, store=store, max_messages_per_trigger=load.messages)
    query = start_ingest(spark, settings, available_now=True).query
    assert query.awaitTermination(600)
    error = query.exception()
    assert error is None, error
    taken = [row["durationMs"]["triggerExecution"] / 1000 for row in query.recentProgress if row["numInputRows"]]
    rows = settings.tables.rows("ingest_batches", ["accepted"])["accepted"].to_pylist()
    assert sum(rows) == batches * DEVICES * load.size
    rate = load.records / statistics.median(taken[1:])
    what = f"{load.size} records a batch, {load.records:,} a micro-batch, lake in {'S3' if store else 'a folder'}"
    shown = f"{rate:,.0f} records/s ({', '.join(f'{one:.2f}' for one in taken)} s)"
    return rate, Figure(what, shown, f"at least {load.asked:,} records/s", rate >= load.asked)


def full(spark: SparkSession, place: LiveCluster, folder: Path) -> Iterator[Figure]:
    """Full micro-batches with the lake in a folder and on S3, and how fast the second is beside the first."""
    with running(ObjectStore(folder / "object-store")) as store:
        # not counted: Spark compiles, and what is measured first would be the slower one
        throughput(spark, place, folder / "warm", LOADS[0])
        for load in LOADS:
            here, shown = throughput(spark, place, folder / f"folder-{load.size}", load)
            yield shown
            there, shown = throughput(spark, place, folder / f"s3-{load.size}", load, store)
            yield shown
            what = f"{load.size} records a batch, S3 against a folder"
            yield limited(what, there / here, ">=", 0.8, "{:.2f} times")


def light(spark: SparkSession, place: LiveCluster, folder: Path) -> list[Figure]:
    """From Pulsar's receipt of a message to the commit of its rows, while a few messages a second come."""
    topic = place.new_topic(PARTITIONS)
    settings = settings_of(place, folder, topic)
    query = start_ingest(spark, settings, available_now=False).query
    begin_us = start_us()
    # the first micro-batch starts Python's workers
    send(place, topic, fleet(7, 1, 10, start_us=begin_us))
    eventually("a first commit", lambda: settings.tables.rows("records", ["seq"]).num_rows)
    for number in range(1, LIGHT_MESSAGES + LIGHT_WARM_UP):
        device = f"eu-{number % 7:05}"
        send(place, topic, iter([(device, batch_of_fixes(device, 1 + number * 10, 10, begin_us))]))
        time.sleep(LIGHT_PAUSE_S)
    time.sleep(5)
    query.stop()
    taken = [row["durationMs"]["triggerExecution"] for row in query.recentProgress if row["numInputRows"]]
    latencies, took_s = _latencies_s(settings.tables, LIGHT_WARM_UP * 10), statistics.median(taken) / 1000
    p50, p99 = (percentile(latencies, share) for share in (0.5, 0.99))
    return [
        limited("light: from Pulsar's receipt to a committed row, p99", p99, "<", 1, "{:.2f} s"),
        Figure("light: the same, median", f"{p50:.2f} s"),
        limited("light: micro-batch from plan to commit, median", took_s, "<", 0.6, "{:.2f} s"),
    ]


def _latencies_s(lake: Lake, after_seq: int) -> list[float]:
    """Of each message behind the first ones: seconds from its publication to the commit of its records."""
    committed_ms = _committed_ms(lake)
    found = lake.rows("records", ["seq", "received_at", "ingest_number"], where=[("seq", ">", after_seq)]).to_pylist()
    firsts = {row["received_at"]: committed_ms[row["ingest_number"]] for row in found}
    return [moment / 1000 - received.timestamp() for received, moment in firsts.items()]


def _committed_ms(lake: Lake) -> dict[int, float]:
    commits = {}
    for file in sorted(Path(lake.path("records")).glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for number in (action["txn"]["version"] for action in actions if "txn" in action):
            stamp = next(action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action)
            commits[number >> 32] = float(stamp)
    return commits
