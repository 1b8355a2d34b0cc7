"""`cloud-jobs geofence`: events of fences and gates, once or for as long as records come."""

from __future__ import annotations

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.config import CloudSettings
from cloud_jobs.geofence.fence_changes import AppliedFences
from cloud_jobs.geofence.job import TABLE, GeofenceRun, tell_events
from cloud_jobs.geofence.message import event_message
from cloud_jobs.outbox import Outbox, to_topic
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference import collect
from cloud_jobs.repeating import Due, repeat, stopped_by_signals
from cloud_jobs.spark import start_spark

_log = structlog.get_logger("geofence")


def run_geofence(settings: CloudSettings, *, follow: bool = False) -> None:
    """Takes the fences that were published, tells the events that changed, and publishes them.

    With `follow` again and again, until SIGTERM or SIGINT.
    """
    settings.tables.create()
    stop = stopped_by_signals()
    spark = start_spark("waybill-geofence", settings.spark)
    try:
        spark.dataSource.register(PulsarDataSource)
        due = Due(settings.geofence.reference_interval_s)
        if not follow:
            geofence_once(spark, settings, due)
            return
        repeat(
            lambda: geofence_once(spark, settings, due),
            interval_s=settings.geofence.interval_s,
            complain=lambda error: _log.warning("not published", error=str(error)),
            stop=stop,
        )
    finally:
        spark.stop()


def geofence_once(spark: SparkSession, settings: CloudSettings, reference_due: Due) -> GeofenceRun:
    """One run: fences when they are due, events, and whatever of the events was not published yet."""
    lake = settings.tables
    if reference_due():
        collect(spark, lake, settings.source_options)
    applied = AppliedFences(settings.checkpoints / "applied" / "fences.geojson")
    run = tell_events(spark, lake, settings.tracks, settings.geofence, applied)
    outbox = Outbox(lake, TABLE, settings.checkpoints / "published" / TABLE)
    published = outbox.flush(to_topic(settings.service_urls, settings.geofence.topic, event_message))
    if run.touched_days or published:
        _log.info(
            "geofence",
            fence_changes=run.fence_changes,
            touched_days=run.touched_days,
            told=run.told,
            published=published,
            fences_refused=run.fences_refused,
            records=run.to_version,
        )
    return run
