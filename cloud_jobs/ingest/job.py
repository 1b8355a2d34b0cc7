"""The ingest: a streaming query over the telemetry topics; each micro-batch is deduplicated, written, accounted for."""

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
from cloud_jobs.ingest.coverage_store import WRITER, CoverageStore
from cloud_jobs.ingest.decoding import DECODED, HEADER_COLUMNS, RECORD_COLUMNS, decode_messages, selected_records
from cloud_jobs.ingest.deduplication import DeduplicationResult, MessageRef, ReceivedBatch, deduplicate
from cloud_jobs.ingest.quarantine import find_conflicts, malformed_rows, quarantine
from cloud_jobs.lake.frames import append_once
from cloud_jobs.lake.tables import Lake
from cloud_jobs.pulsar_source import PulsarDataSource
from telemetry import Header, IntervalSet, Tombstone

_log = structlog.get_logger("ingest")
_READ = ("value", "properties", "publish_time", "topic", "message_id", "malformed")
_HEADER_COLUMNS = ("device", "epoch", "payload", *HEADER_COLUMNS.names)


class IngestQuery(NamedTuple):
    """A running query, what it does with each micro-batch, and the version of the records that it begins with."""

    query: StreamingQuery
    micro_batch: MicroBatchWriter
    records_version: int


def start_ingest(spark: SparkSession, settings: CloudSettings, *, available_now: bool) -> IngestQuery:
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
    coverage = CoverageStore.open(lake)
    begin = coverage.records_version
    micro_batch = MicroBatchWriter(spark, lake, coverage)
    writer = (
        stream.writeStream.queryName("ingest")
        .option("checkpointLocation", str(settings.checkpoints / "ingest"))
        .foreachBatch(micro_batch)
    )
    if available_now:
        return IngestQuery(writer.trigger(availableNow=True).start(), micro_batch, begin)
    interval = f"{round(ingest.trigger_interval_s * 1000)} milliseconds"
    return IngestQuery(writer.trigger(processingTime=interval).start(), micro_batch, begin)


class MicroBatchWriter:
    """What is done with the messages of one micro-batch. Doing it again, whole or in other pieces, changes nothing."""

    def __init__(self, spark: SparkSession, lake: Lake, coverage: CoverageStore) -> None:
        self._spark = spark
        self._lake = lake
        self._coverage = coverage
        self.completed = 0
        self.fenced: Fenced | None = None

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Writes what is new in the messages. Raises Fenced, and keeps it for those who only see Spark."""
        try:
            self._process(messages, batch_id)
        except Fenced as error:
            self.fenced = error
            raise
        self.completed += 1

    def _process(self, messages: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        # opened once: headers, records that are let in and records that came again are three reads of it
        messages = messages.select(*_READ).mapInArrow(decode_messages, from_arrow_schema(DECODED)).persist()
        try:
            rows = messages.where("seq IS NULL").select(*_HEADER_COLUMNS).toArrow().to_pylist()
            malformed = [row for row in rows if row["malformed"] is not None]
            arrivals = [_received_batch(row) for row in rows if row["malformed"] is None]
            result = deduplicate(self._coverage.streams, arrivals)
            # the records first: whatever is written after them is made good from them, or written again, after a crash
            self._write_records(messages, result, batch_id)
            in_conflict = self._conflicts(messages, result)
        finally:
            messages.unpersist()
        now = datetime.now(UTC)
        quarantine(self._lake, [*malformed_rows(malformed, now), *in_conflict])
        # after the commit: what counts as received and is not in the table would be dropped when it comes again
        self._coverage.update(result.coverage)
        if result.coverage:
            self._coverage.save()
        counted = {"messages": len(rows), "conflicts": len(in_conflict), "malformed": len(malformed)}
        self._record_counts(batch_id, result, counted, time.monotonic() - began)

    def _write_records(self, messages: DataFrame, result: DeduplicationResult, batch_id: int) -> None:
        if not result.accepted:
            return
        rows = (
            self._rows(messages, result.accepted)
            .withColumn("ingested_at", f.lit(datetime.now(UTC)))
            .withColumn("batch_id", f.lit(batch_id).cast("bigint"))
        )
        made = append_once(
            rows,
            self._lake,
            "records",
            writer=WRITER,
            number=self._coverage.next_version,
            # with a token: after a checkpoint was lost, batch ids come again
            metadata=json.dumps({"batch_id": batch_id, "token": uuid4().hex}),
        )
        self._coverage.after_commit(made=made)

    def _conflicts(self, messages: DataFrame, result: DeduplicationResult) -> list[dict[str, Any]]:
        if not result.duplicates:
            return []
        again = self._rows(messages, result.duplicates)
        streams = sorted(result.coverage)
        return find_conflicts(self._spark, self._lake, again, streams, result.duplicates)

    def _rows(self, messages: DataFrame, wanted: dict[MessageRef, IntervalSet]) -> DataFrame:
        return messages.mapInArrow(selected_records(wanted), from_arrow_schema(RECORD_COLUMNS))

    def _record_counts(
        self, batch_id: int, result: DeduplicationResult, counted: dict[str, int], seconds: float
    ) -> None:
        accepted, duplicates = result.accepted_count, result.duplicate_count
        row: dict[str, Any] = counted | {
            "batch_id": batch_id,
            "records": accepted + duplicates,
            "accepted": accepted,
            "duplicates": duplicates,
            "seconds": seconds,
        }
        _log.info("micro-batch", **row)
        self._lake.append("ingest_batches", [row | {"committed_at": datetime.now(UTC)}])


def _received_batch(row: dict[str, Any]) -> ReceivedBatch:
    bounds, lost = row["bounds"], row["lost"]
    tombstones = tuple(
        Tombstone(first, last, reason)
        for first, last, reason in zip(lost[::2], lost[1::2], row["reasons"], strict=True)
    )
    ranges = IntervalSet(zip(bounds[::2], bounds[1::2], strict=True))
    header = Header(row["device"], row["epoch"], row["head"], ranges, tombstones)
    return ReceivedBatch(MessageRef(row["topic"], row["message_id"]), header)
