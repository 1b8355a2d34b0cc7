"""The ingest: a streaming query over the telemetry topics; each micro-batch is admitted, written, accounted for."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import Fenced
from cloud_jobs.ingest.admission import Admission, Arrival, Place, admit
from cloud_jobs.ingest.conflicts import conflicts
from cloud_jobs.ingest.ledger import WRITER, Ledger
from cloud_jobs.ingest.quarantine import quarantine, refusals
from cloud_jobs.ingest.reading import HEADER, OPENED, ROWS, opened, records
from cloud_jobs.lake import Lake
from cloud_jobs.pulsar_source import PulsarDataSource
from telemetry import Header, IntervalSet, Tombstone

_log = structlog.get_logger("ingest")
_READ = ("value", "properties", "publish_time", "topic", "message_id", "malformed")
_HEADER_COLUMNS = ("device", "epoch", "payload", *HEADER.names)


class Ingest(NamedTuple):
    """A running query, and what it does with each micro-batch."""

    query: StreamingQuery
    micro_batch: MicroBatch


def start_ingest(spark: SparkSession, settings: CloudSettings, *, available_now: bool) -> Ingest:
    """Starts the query, which runs until it is stopped or, with `available_now`, until what is there was read."""
    lake = settings.tables
    lake.create()
    spark.dataSource.register(PulsarDataSource)
    ingest = settings.ingest
    stream = (
        spark.readStream.format("pulsar")
        .options(**settings.source_options)
        .option("topics", ",".join(ingest.topics))
        .option("subscription", ingest.subscription)
        .option("columns", ",".join(_READ))
        .option("maxMessagesPerTrigger", str(ingest.max_messages_per_trigger))
        .options(**ingest.options)
        .load()
    )
    micro_batch = MicroBatch(spark, lake, Ledger.open(lake))
    writer = (
        stream.writeStream.queryName("ingest")
        .option("checkpointLocation", str(settings.checkpoints / "ingest"))
        .foreachBatch(micro_batch)
    )
    if available_now:
        return Ingest(writer.trigger(availableNow=True).start(), micro_batch)
    interval = f"{round(ingest.trigger_interval_s * 1000)} milliseconds"
    return Ingest(writer.trigger(processingTime=interval).start(), micro_batch)


class MicroBatch:
    """What is done with the messages of one micro-batch. Doing it again, whole or in other pieces, changes nothing."""

    def __init__(self, spark: SparkSession, lake: Lake, ledger: Ledger) -> None:
        self._spark = spark
        self._lake = lake
        self._ledger = ledger
        self.completed = 0
        self.fenced: Fenced | None = None

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Admits, writes and accounts for the messages. Raises Fenced, and keeps it for those who only see Spark."""
        try:
            self._process(messages, batch_id)
        except Fenced as error:
            self.fenced = error
            raise
        self.completed += 1

    def _process(self, messages: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        messages = messages.select(*_READ).mapInArrow(opened, from_arrow_schema(OPENED)).persist()
        try:
            found = messages.where("seq IS NULL").select(*_HEADER_COLUMNS).toArrow().to_pylist()
            refused = [row for row in found if row["refused"] is not None]
            arrivals = [_arrival(row) for row in found if row["refused"] is None]
            admission = admit(self._ledger.known, arrivals)
            self._write_records(messages, admission, batch_id)
            in_conflict = self._conflicts(messages, admission)
        finally:
            messages.unpersist()
        now = datetime.now(UTC)
        quarantine(self._lake, [*refusals(refused, now), *in_conflict])
        self._ledger.join(admission.coverage)
        if admission.coverage:
            self._ledger.save()
        counted = {"messages": len(found), "conflicts": len(in_conflict), "refused": len(refused)}
        self._account(batch_id, admission, counted, time.monotonic() - began)

    def _write_records(self, messages: DataFrame, admission: Admission, batch_id: int) -> None:
        if not admission.admitted:
            return
        token = json.dumps({"batch_id": batch_id, "token": uuid4().hex})
        rows = self._rows(messages, admission.admitted)
        (
            rows.withColumn("ingested_at", f.lit(datetime.now(UTC)))
            .withColumn("batch_id", f.lit(batch_id).cast("bigint"))
            .coalesce(1)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", WRITER)
            .option("txnVersion", self._ledger.fence)
            .option("userMetadata", token)
            .save(self._lake.path("records"))
        )
        self._ledger.confirm(token)

    def _conflicts(self, messages: DataFrame, admission: Admission) -> list[dict[str, Any]]:
        if not admission.duplicates:
            return []
        again = self._rows(messages, admission.duplicates)
        buffers = sorted(admission.coverage)
        return conflicts(self._spark, self._lake, again, buffers, admission.duplicates)

    def _rows(self, messages: DataFrame, wanted: dict[Place, IntervalSet]) -> DataFrame:
        return messages.mapInArrow(records(wanted), from_arrow_schema(ROWS))

    def _account(self, batch_id: int, admission: Admission, counted: dict[str, int], seconds: float) -> None:
        admitted, duplicates = admission.admitted_count, admission.duplicate_count
        row: dict[str, Any] = counted | {
            "batch_id": batch_id,
            "records": admitted + duplicates,
            "admitted": admitted,
            "duplicates": duplicates,
            "seconds": seconds,
        }
        _log.info("micro-batch", **row)
        self._lake.append("ingest_batches", [row | {"committed_at": datetime.now(UTC)}])


def _arrival(row: dict[str, Any]) -> Arrival:
    bounds, lost = row["bounds"], row["lost"]
    tombstones = tuple(
        Tombstone(first, last, reason)
        for first, last, reason in zip(lost[::2], lost[1::2], row["reasons"], strict=True)
    )
    ranges = IntervalSet(zip(bounds[::2], bounds[1::2], strict=True))
    header = Header(row["device"], row["epoch"], row["head"], ranges, tombstones)
    return Arrival(Place(row["topic"], row["message_id"]), header)
