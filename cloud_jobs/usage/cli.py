"""`cloud-jobs usage`: one run of the usage job."""

from __future__ import annotations

import structlog

from cloud_jobs.config import CloudSettings
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference import collect
from cloud_jobs.spark import start_spark
from cloud_jobs.usage.job import UsageRun, compute_usage

_log = structlog.get_logger("usage")


def run_usage(settings: CloudSettings) -> UsageRun:
    """Takes the reference data that was published, then brings usage up to date."""
    lake = settings.tables
    lake.create()
    spark = start_spark("waybill-usage", settings.spark)
    try:
        spark.dataSource.register(PulsarDataSource)
        collected = collect(spark, lake, settings.source_options)
        run = compute_usage(spark, lake, settings.tracks)
    finally:
        spark.stop()
    _log.info(
        "usage",
        reference_rows=collected.rows,
        messages_refused=collected.refused_messages,
        fences_refused=run.fences_refused,
        touched_hours=run.touched_hours,
        rows=run.rows,
        records=run.to_version,
    )
    return run
