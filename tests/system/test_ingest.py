"""Batches on a real topic become records in a real table, each once, whatever happens to the ingest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.config import CloudSettings, ClusterSettings, IngestSettings
from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.lake.coverage import DeviceStream
from deploy.local import LocalStack
from tests.pulsar_clients import open_client
from waybill.record import Batch, Canary, IntervalSet, Record, Tombstone, encode

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

EPOCH = 7
NOON_US = 1_767_614_400_000_000


class IngestCentre:
    """One topic in hq, a lake of its own, and an ingest that is started as often as a test likes."""

    def __init__(self, stack: LocalStack, spark: SparkSession, folder: Path) -> None:
        hq = stack.pulsar["hq"]
        self.topic = f"persistent://public/default/ingest-{uuid4().hex[:8]}"
        self.spark = spark
        cluster = ClusterSettings(name="hq", service_url=hq.service_url, admin_url=hq.admin_url)
        self.settings = CloudSettings(
            lake=folder / "lake",
            checkpoints=folder / "checkpoints",
            clusters=(cluster,),
            access=hq.access,
            ingest=IngestSettings(topics=(self.topic,), max_age_days=36_500),
        )
        self.client = open_client(hq.service_url, hq.access)
        self.producer = self.client.create_producer(self.topic)

    def send(self, *values: bytes) -> None:
        for value in values:
            self.producer.send(value, properties={"tenant": "acme", "region": "eu"})

    def ingest(self) -> None:
        query = start_ingest(self.spark, self.settings, available_now=True).query
        assert query.awaitTermination(120)

    def names(self) -> list[int]:
        rows = self.settings.tables.rows("records", ["device", "epoch", "seq"]).to_pylist()
        assert all(row["device"] == "eu-0001" and row["epoch"] == EPOCH for row in rows)
        return sorted(row["seq"] for row in rows)

    def count(self, column: str) -> int:
        return sum(self.settings.tables.rows("ingest_batches")[column].to_pylist())


@pytest.fixture
def centre(stack: LocalStack, spark: SparkSession, tmp_path: Path) -> Iterator[IngestCentre]:
    made = IngestCentre(stack, spark, tmp_path)
    yield made
    made.client.close()


def batch(*seqs: int, head: int = 0, lost: tuple[Tombstone, ...] = (), word: str = "x") -> bytes:
    records = tuple(Record(seq, NOON_US + seq * 1_000_000, Canary(id=f"{word}{seq}")) for seq in seqs)
    return encode(Batch("eu-0001", EPOCH, head or max(seqs), records, lost))


def test_records_come_out_once_and_coverage_says_what_is_there(centre: IngestCentre) -> None:
    centre.send(batch(1, 2, 3), batch(2, 3, 4), batch(1, 2, 3), batch(8, head=9, lost=(Tombstone(6, 7, "quota"),)))
    centre.ingest()
    assert centre.names() == [1, 2, 3, 4, 8]
    assert (centre.count("accepted"), centre.count("duplicates"), centre.count("conflicts")) == (5, 5, 0)
    coverage = centre.settings.tables.coverage()[DeviceStream("acme", "eu-0001", EPOCH)]
    assert coverage.received == IntervalSet([(1, 4), (8, 8)])
    assert coverage.missing == IntervalSet([(5, 5), (9, 9)])
    assert coverage.declared_lost == IntervalSet([(6, 7)])


def test_what_came_is_not_let_in_again_after_the_checkpoint_was_lost(centre: IngestCentre) -> None:
    centre.send(batch(1, 2), batch(3, 4))
    centre.ingest()
    elsewhere = centre.settings.model_copy(
        update={
            "checkpoints": centre.settings.checkpoints / "new",
            "ingest": IngestSettings(topics=(centre.topic,), subscription="again", max_age_days=36_500),
        }
    )
    centre.settings = elsewhere
    centre.send(batch(4, 5))
    centre.ingest()
    assert centre.names() == [1, 2, 3, 4, 5]
