"""The streaming query: executors write the records of a micro-batch into files, the driver commits them.

No record passes through the JVM; executors return files and headers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError, Fenced, StoreUnavailable
from cloud_jobs.ingest.decoding import USUAL, SensibleTime, TopicTenants
from cloud_jobs.ingest.micro_batch import Counted, MicroBatchWriter, ignore_counts
from cloud_jobs.ingest.parts import PART_COLUMNS, read_parts, write_parts
from cloud_jobs.lake.tables import Lake
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.run_metrics import IngestMetrics, served_metrics
from cloud_jobs.spark import run_on_executors, start_spark, terminal_log
from cloud_jobs.spark_python import SOURCE
from waybill.daemon.signals import stop_on_signals

# The ingest query: runs until a signal and restarts after a cluster failure.

_log = structlog.get_logger("ingest", job="ingest")
_POLL_S = 0.1
_TASK_IMPORTS = (SOURCE, "cloud_jobs.ingest.parts")


def run_ingest(settings: CloudSettings, *, available_now: bool) -> None:
    """Runs until SIGTERM, SIGINT or, with `available_now`, the end of the available messages.

    A failed query restarts from its checkpoint, on the next cluster if its own is gone. Raises CloudError after
    `restarts` failures without a completed micro-batch, and if another ingest writes.
    """
    spark = start_spark(
        "waybill-ingest",
        settings.spark,
        settings.location,
        task_imports=_TASK_IMPORTS,
        log=terminal_log(settings.checkpoints, "ingest"),
    )
    metrics = IngestMetrics()
    served = served_metrics(settings.metrics, "ingest", metrics.registry, metrics.health)

    def start() -> IngestQuery:
        return start_ingest(spark, settings, available_now=available_now, counted=metrics.on_micro_batch)

    # After Spark has started, which takes SIGINT for itself.
    with stop_on_signals() as stop, nullcontext() if available_now else served:
        try:
            run_query(start, settings, stop, metrics)
        finally:
            _stop_if_running(spark.stop)
    _log.info("stopped")


def run_query(
    start: Callable[[], IngestQuery],
    settings: CloudSettings,
    stop: threading.Event,
    metrics: IngestMetrics | None = None,
) -> None:
    """Runs the query, and restarts it if it fails, until it ends or `stop` is set. Raises CloudError."""
    failures, metrics = 0, metrics or IngestMetrics()
    while not stop.is_set():
        try:
            ingest = start()
        # an unavailable store may fail the start or the query: both count, and both are tried again
        except StoreUnavailable as unavailable:
            failures += 1
            metrics.on_failure(failures)
            if failures > settings.ingest.restarts:
                raise
            _wait_before_restart(settings, failures, unavailable, stop)
            continue
        _log.info(
            "started",
            lake=str(settings.lake),
            topics=list(settings.batch_topics),
            records_version=ingest.records_version,
            failures=failures,
        )
        metrics.on_query(runs=True)
        failure = _wait_for_end(ingest, stop)
        metrics.on_query(runs=False)
        if failure is None:
            return
        # not restarted: two ingests would fence each other off in turn
        if ingest.micro_batch.fenced:
            raise CloudError(str(ingest.micro_batch.fenced)) from failure
        # only failures in a row count: a cluster may fail now and then for months
        failures = 1 if ingest.micro_batch.completed else failures + 1
        metrics.on_failure(failures)
        if failures > settings.ingest.restarts:
            lost = settings.location.unavailable(failure)
            raise lost or CloudError(f"the ingest failed {failures} times in a row: {failure}") from failure
        _wait_before_restart(settings, failures, failure, stop)


def _wait_before_restart(settings: CloudSettings, failures: int, failure: Exception, stop: threading.Event) -> None:
    _log.warning("failed, starting again", failures=failures, error=" ".join(str(failure).split())[:400])
    # The first restart is at once: mostly a cluster is gone, and the next one is read. Then linear, not doubling:
    # `restarts` bounds the waits, and a wait beyond the time that a cluster takes to start gains nothing.
    stop.wait(settings.ingest.restart_wait_s * (failures - 1))


def _wait_for_end(ingest: IngestQuery, stop: threading.Event) -> Exception | None:
    """Waits until the query ends or `stop` is set; returns the error of a failed query."""
    query = ingest.query
    try:
        while query.isActive and not stop.is_set():
            stop.wait(_POLL_S)
        return None if stop.is_set() else query.exception()
    except (Py4JError, OSError):
        if stop.is_set():
            return None
        raise
    finally:
        _stop_if_running(query.stop)


def _stop_if_running(stop: Callable[[], None]) -> None:
    """Stops Spark; its process may already be gone if the whole process group was ended."""
    with suppress(Py4JError, OSError):
        stop()


_READ = ("value", "properties", "publish_time", "topic", "message_id", "malformed")


class IngestQuery(NamedTuple):
    """A running query, its handler, and the version of the records at its start."""

    query: StreamingQuery
    micro_batch: MicroBatchHandler
    records_version: int


def start_ingest(
    spark: SparkSession, settings: CloudSettings, *, available_now: bool, counted: Counted = ignore_counts
) -> IngestQuery:
    """Starts the query. With `available_now` it ends at the end of the available messages."""
    lake, checkpoints = settings.tables, settings.bound_checkpoints
    # before the lake is created: existing checkpoints belong to another one
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
    sensible = SensibleTime(max_age_days=ingest.max_age_days)
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
        """`committed` gets the number of each commit."""
        self._committed = committed
        self._sensible = sensible
        self._sealing_keys, self._tenants = sealing_keys, tenants
        self._lake = lake
        self.writer = MicroBatchWriter(lake, run=partial(run_on_executors, spark), counted=counted)
        self.completed = 0
        self.fenced: Fenced | None = None

    def __call__(self, messages: DataFrame, batch_id: int) -> None:  # noqa: ARG002  # Spark's contract
        """Writes the new records of a micro-batch. Keeps Fenced, because Spark hides the exception."""
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
