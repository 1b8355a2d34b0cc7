"""`cloud-jobs ingest`: runs the query until it is told to stop."""

from __future__ import annotations

import signal
import threading
from typing import Any

import structlog
from pyspark.sql.streaming import StreamingQuery

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.spark import start_spark

_log = structlog.get_logger("ingest")
_POLL_S = 0.5


def run_ingest(settings: CloudSettings, *, available_now: bool) -> None:
    """Runs until SIGTERM, SIGINT, the end of what is there (`available_now`) or an error, which is raised."""
    spark = start_spark("waybill-ingest", settings.spark)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    query = start_ingest(spark, settings, available_now=available_now)
    _log.info("started", lake=str(settings.lake), topics=list(settings.ingest.topics))
    try:
        _watch(query, stop)
    finally:
        query.stop()
        spark.stop()
    _log.info("stopped")


def _watch(query: StreamingQuery, stop: threading.Event) -> None:
    while query.isActive and not stop.is_set():
        stop.wait(_POLL_S)
    failure: Any = query.exception()
    if failure is not None and not stop.is_set():
        raise CloudError(f"the ingest ended: {failure}") from failure
