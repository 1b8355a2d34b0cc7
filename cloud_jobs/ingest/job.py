"""The streaming query: executors write the records of each micro-batch into files, the driver decides and commits.

No record passes through the JVM's rows: what comes back from the executors are files and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import Fenced
from cloud_jobs.ingest.decoding import TopicTenants
from cloud_jobs.ingest.micro_batch import Counted, MicroBatchWriter, ignore_counts
from cloud_jobs.ingest.parts import PART_COLUMNS, read_parts, write_parts
from cloud_jobs.ingest.quarantine import Run
from cloud_jobs.ingest.sensible_time import USUAL, SensibleTime
from cloud_jobs.lake.tables import Lake
from cloud_jobs.pulsar_source import PulsarDataSource

_READ = ("value", "properties", "publish_time", "topic", "message_id", "malformed")


class IngestQuery(NamedTuple):
    """A running query, what it does with each micro-batch, and the version of the records that it begins with."""

    query: StreamingQuery
    micro_batch: MicroBatchHandler
    records_version: int


def start_ingest(
    spark: SparkSession, settings: CloudSettings, *, available_now: bool, counted: Counted = ignore_counts
) -> IngestQuery:
    """Starts the query, which runs until it is stopped or, with `available_now`, until what is there was read."""
    lake, checkpoints = settings.tables, settings.bound_checkpoints
    # before a lake is begun: of checkpoints that are there it is none
    checkpoints.check()
    lake.create()
    checkpoints.bind()
    spark.dataSource.register(PulsarDataSource)
    ingest = settings.ingest
    stream = (
        spark.readStream.format("pulsar")
        .options(**settings.source_options)
        .option("topics", ",".join(settings.batch_topics))
        .option("subscription", ingest.subscription)
        # one tenant's topic must not hold up the others
        .option("leftOutFile", str(settings.left_out_file))
        .option("columns", ",".join(_READ))
        .option("maxMessagesPerTrigger", str(ingest.max_messages_per_trigger))
        .options(**ingest.options)
        .load()
    )
    sensible = SensibleTime(max_age_days=ingest.max_age_days, max_ahead_days=ingest.max_ahead_days)
    micro_batch = MicroBatchHandler(
        spark,
        lake,
        sensible,
        ingest.sealing_keys,
        settings.batch_topics,
        committed=checkpoints.note,
        counted=counted,
    )
    begin = micro_batch.writer.records_version
    writer = (
        stream.writeStream.queryName("ingest")
        .option("checkpointLocation", str(settings.checkpoints / "ingest"))
        .foreachBatch(micro_batch)
    )
    if available_now:
        return IngestQuery(writer.trigger(availableNow=True).start(), micro_batch, begin)
    interval = f"{round(ingest.trigger_interval_s * 1000)} milliseconds"
    return IngestQuery(writer.trigger(processingTime=interval).start(), micro_batch, begin)


class MicroBatchHandler:
    """What Spark calls with the messages of each micro-batch."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        sensible: SensibleTime = USUAL,
        sealing_keys: Path | None = None,
        tenants: TopicTenants | None = None,
        *,
        committed: Callable[[int], object] = lambda _: None,
        counted: Counted = ignore_counts,
    ) -> None:
        """`committed` is called with the number of each commit that was made."""
        self._committed = committed
        self._sensible = sensible
        self._sealing_keys, self._tenants = sealing_keys, tenants
        self._lake = lake
        self.writer = MicroBatchWriter(lake, run=_on_executors(spark), counted=counted)
        self.completed = 0
        self.fenced: Fenced | None = None

    def __call__(self, messages: DataFrame, batch_id: int) -> None:  # noqa: ARG002  # Spark's contract
        """Writes what is new in the messages. Raises Fenced, and keeps it for those who only see Spark."""
        try:
            attempt = self.writer.begin()
            write = write_parts(
                self._lake,
                attempt.ingest_number,
                attempt.now,
                self._sensible,
                self._sealing_keys,
                tenants=self._tenants,
            )
            parts = read_parts(messages.select(*_READ).mapInArrow(write, from_arrow_schema(PART_COLUMNS)).toArrow())
            if parts:
                self.writer.write(attempt, parts)
                self._committed(attempt.number)
        except Fenced as error:
            self.fenced = error
            raise
        self.completed += 1


def _on_executors(spark: SparkSession) -> Run:
    def run(work: Callable[[Any], Any], items: Sequence[Any]) -> Sequence[Any]:
        made: list[Any] = spark.sparkContext.parallelize(items, len(items)).map(work).collect()
        return made

    return run
