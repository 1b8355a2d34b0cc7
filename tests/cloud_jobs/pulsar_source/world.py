"""Topics on a real cluster and queries on a real Spark, as the tests and the benchmark of the source use them."""

import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import pulsar
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.spark import start_spark
from deploy.local import PulsarCluster
from tests.pulsar_clients import NOBODY, http_access, open_client, source_access
from tests.waiting import deadline_s
from waybill.pulsar.pulsar_client import PulsarAccess

_numbers = itertools.count(1)
_TRIES_WHILE_BUSY = 20


def session() -> SparkSession:
    """The Spark session of the tests, with the format `pulsar`."""
    # the tests read in the checkpoint what was planned since the query began: Spark keeps 100 batches of it
    spark = start_spark("waybill-tests", SparkSettings(extra={"spark.sql.streaming.minBatchesToRetain": "100000"}))
    spark.dataSource.register(PulsarDataSource)
    return spark


def eventually(what: str, true: Callable[[], Any], timeout_s: float = 150.0) -> Any:
    deadline = deadline_s(timeout_s)
    while time.monotonic() < deadline:
        if result := true():
            return result
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


class LiveCluster:
    """One cluster: creates topics, sends numbered messages, asks the admin REST."""

    def __init__(
        self,
        name: str,
        service_url: str,
        admin_url: str,
        namespace: str = "public/default",
        access: PulsarAccess = NOBODY,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.access = access
        self.service_url, self.admin_url = service_url, admin_url
        self.text = f"{name}={service_url}|{admin_url}"
        self.options = {"clusters": self.text, **source_access(access)}
        """What the source needs to read it."""
        self.http = httpx.Client(
            base_url=f"{admin_url}/admin/v2/", timeout=20, follow_redirects=True, **http_access(access)
        )
        self.client = open_client(service_url, access)

    @classmethod
    def of(cls, cluster: PulsarCluster, namespace: str = "public/default") -> Self:
        return cls(cluster.cluster, cluster.service_url, cluster.admin_url, namespace, cluster.access)

    def close(self) -> None:
        self.client.close()
        self.http.close()

    def new_topic(self, partitions: int = 0, prefix: str = "topic", also_in: Iterable["LiveCluster"] = ()) -> str:
        """Creates a topic with a name of its own; returns its full name.

        `also_in`: the clusters that it replicates to. Brokers have no right to create a partitioned topic in another,
        nor to write into one without a grant.
        """
        name = f"{prefix}-{os.getpid()}-{next(_numbers)}"
        path, places = f"persistent/{self.namespace}/{name}", (self, *also_in)
        for place in places:
            if partitions:
                place.call("PUT", f"{path}/partitions?createLocalTopicOnly=true", partitions)
            else:
                place.call("PUT", path)
            for other in places:
                if other is not place:
                    place.call("POST", f"{path}/permissions/replication-{other.name}", ["produce"])
        return f"persistent://{self.namespace}/{name}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        response = self.http.request(method, path, json=body)
        for _ in range(_TRIES_WHILE_BUSY):
            # Pulsar refuses what meets a subscription that is just opened or closed, and says so
            if response.status_code != httpx.codes.PRECONDITION_FAILED or "Busy" not in response.text:
                break
            time.sleep(0.5)
            response = self.http.request(method, path, json=body)
        assert response.is_success, (method, path, response.status_code, response.text)
        return response.json() if response.content and "json" in response.headers.get("content-type", "") else None

    def path(self, topic: str) -> str:
        return topic.replace("://", "/")

    def send(self, topic: str, numbers: Iterable[int], *, pad: int = 0, batching: bool = True, **more: Any) -> None:
        """Sends each number as text (padded with blanks to `pad` bytes), and returns when all are persisted."""
        producer = self.client.create_producer(
            topic,
            batching_enabled=batching,
            batching_max_messages=100,
            block_if_queue_full=True,
            send_timeout_millis=20_000,
            compression_type=more.pop("compression", pulsar.CompressionType.NONE),
        )
        failed: list[Any] = []
        for number in numbers:
            key = more.get("partition_key") or f"k{number % 97}"
            body = str(number).encode().ljust(pad)
            producer.send_async(
                body,
                lambda result, _: failed.extend([] if result == pulsar.Result.Ok else [result]),
                **(more | {"partition_key": key}),
            )
        producer.flush()
        producer.close()
        assert not failed

    def cursors(self, topic: str, subscription: str) -> dict[str, str | None]:
        parts = self.call("GET", f"{self.path(topic)}/partitions")["partitions"]
        kind = "partitioned-internalStats" if parts else "internalStats"
        stats = self.call("GET", f"{self.path(topic)}/{kind}")
        rows = stats["partitions"] if parts else {topic: stats}
        return {n: row["cursors"].get(subscription, {}).get("markDeletePosition") for n, row in rows.items()}

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries that the subscription has not acknowledged, over all partitions."""
        parts = self.call("GET", f"{self.path(topic)}/partitions")["partitions"]
        query = (
            "partitioned-stats?perPartition=false&getPreciseBacklog=true" if parts else "stats?getPreciseBacklog=true"
        )
        stats = self.call("GET", f"{self.path(topic)}/{query}")
        return int(stats["subscriptions"][subscription]["msgBacklog"])


class MessageSender:
    """Sends numbered messages at a steady rate from a thread of its own until it is stopped."""

    def __init__(self, place: LiveCluster, topic: str, rate: int) -> None:
        self._place, self._topic, self._rate = place, topic, rate
        self._stopping = threading.Event()
        self.sent: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "MessageSender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _note_sent(self, number: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.sent.append(number)

    def _run(self) -> None:
        producer = self._place.client.create_producer(self._topic, block_if_queue_full=True)
        tick = max(1, self._rate // 20)
        number = 0
        while not self._stopping.wait(1 / 20):
            for _ in range(tick):
                producer.send_async(
                    str(number).encode(), partial(self._note_sent, number), partition_key=f"k{number % 97}"
                )
                number += 1
        producer.flush()
        producer.close()


class Sink(Protocol):
    """What takes the batches of a query, as `foreachBatch` gives them."""

    def sink(self, frame: DataFrame, number: int, /) -> None: ...


class DeliveredBatches:
    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.first_seen: dict[int, float] = {}
        self.before: Callable[[int], None] = lambda _: None

    def sink(self, frame: DataFrame, batch: int) -> None:
        self.before(batch)
        values = frame.select("value").toArrow().column(0).to_pylist()
        self.batches[batch] = [int(value) for value in values if value]
        now = time.monotonic()
        for number in self.batches[batch]:
            self.first_seen.setdefault(number, now)

    def numbers(self) -> list[int]:
        return [number for numbers in list(self.batches.values()) for number in numbers]

    def duplicates(self) -> int:
        return sum(count - 1 for count in Counter(self.numbers()).values())

    def sizes(self) -> list[int]:
        return [len(numbers) for _, numbers in sorted(self.batches.items()) if numbers]


def stream(spark: SparkSession, place: Mapping[str, str] | str, **options: Any) -> DataFrame:
    """The format `pulsar` as a stream; `place`: the options of a cluster, or its text."""
    known = {"clusters": place} if isinstance(place, str) else place
    return spark.readStream.format("pulsar").options(**known, **options).load()


@contextmanager
def running(
    frame: DataFrame, collected: Sink, checkpoint: Path, *, available_now: bool = False
) -> Iterator[StreamingQuery]:
    """A query that collects what it reads; stopped on leaving."""
    writer = frame.writeStream.foreachBatch(collected.sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start() if available_now else writer.start()
    try:
        yield query
    finally:
        query.stop()


def read_available(frame: DataFrame, collected: Sink, checkpoint: Path, timeout_s: float = 180) -> StreamingQuery:
    with running(frame, collected, checkpoint, available_now=True) as query:
        assert query.awaitTermination(timeout_s), "AvailableNow did not end"
    return query


def offsets(checkpoint: Path) -> list[dict[str, Any]]:
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[2]) for file in files]
