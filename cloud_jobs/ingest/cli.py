"""`cloud-jobs ingest`: runs the query until a signal, and starts it again when a cluster fails under it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress

import structlog
from py4j.protocol import Py4JError

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError, StoreUnavailable
from cloud_jobs.ingest.job import IngestQuery, start_ingest
from cloud_jobs.metrics.ingest_metrics import IngestMetrics
from cloud_jobs.metrics.serving import served_metrics
from cloud_jobs.spark import start_spark
from cloud_jobs.spark_python import SOURCE
from waybill.daemon.signals import stop_on_signals

_log = structlog.get_logger("ingest", job="ingest")
_POLL_S = 0.1
_TASK_IMPORTS = (SOURCE, "cloud_jobs.ingest.parts")


def run_ingest(settings: CloudSettings, *, available_now: bool) -> None:
    """Runs until SIGTERM, SIGINT or the end of what is there (`available_now`).

    A query that fails is started again from its checkpoint, on the next cluster if the source finds its own gone; after
    `restarts` failures in a row without a completed micro-batch, or when another writer is there, CloudError is raised.
    """
    spark = start_spark("waybill-ingest", settings.spark, settings.location, task_imports=_TASK_IMPORTS)
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
    """Starts the query, again if it fails, until it ends in order or `stop` is set. Raises CloudError."""
    failures, metrics = 0, metrics or IngestMetrics()
    while not stop.is_set():
        try:
            ingest = start()
        # with the lake open it is the query that fails: both count, and both are tried again
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
        # not started again: two ingests would fence each other in turn
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
    _log.warning("failed, starting again", failures=failures, error=_first_lines(failure))
    # The first restart is at once: mostly a cluster is gone, and the next one is read. Then linear, not doubling:
    # `restarts` bounds the waits, and a wait beyond the time that a cluster takes to start gains nothing.
    stop.wait(settings.ingest.restart_wait_s * (failures - 1))


def _wait_for_end(ingest: IngestQuery, stop: threading.Event) -> Exception | None:
    """Waits for the end of the query; returns why it failed, None if it ended in order or `stop` is set."""
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
    """Stops what may be gone already: who ends a process group ends Spark's own process with it."""
    with suppress(Py4JError, OSError):
        stop()


def _first_lines(failure: Exception) -> str:
    return " ".join(str(failure).split())[:400]
