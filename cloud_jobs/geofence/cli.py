"""`cloud-jobs geofence`: events of fences and gates, once or for as long as records come."""

from __future__ import annotations

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.config import CloudSettings
from cloud_jobs.geofence.fence_changes import AppliedFences
from cloud_jobs.geofence.job import TABLE, GeofenceRun, compute_events
from cloud_jobs.geofence.message import event_message
from cloud_jobs.outbox import Outbox, topic_sender
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference import collect
from cloud_jobs.run_loop import PeriodicTrigger, run_repeatedly, stop_on_signals
from cloud_jobs.spark import start_spark

_log = structlog.get_logger("geofence")


def run_geofence(settings: CloudSettings, *, follow: bool = False) -> None:
    """Takes the fences that were published, tells the events that changed, and publishes them.

    With `follow` again and again, until SIGTERM or SIGINT.
    """
    settings.tables.create()
    stop = stop_on_signals()
    spark = start_spark("waybill-geofence", settings.spark)
    try:
        spark.dataSource.register(PulsarDataSource)
        due = PeriodicTrigger(settings.geofence.reference_interval_s)
        if not follow:
            geofence_once(spark, settings, due)
            return
        run_repeatedly(
            lambda: geofence_once(spark, settings, due),
            interval_s=settings.geofence.interval_s,
            on_error=lambda error: _log.warning("not published", error=str(error)),
            stop=stop,
        )
    finally:
        spark.stop()


def geofence_once(spark: SparkSession, settings: CloudSettings, reference_due: PeriodicTrigger) -> GeofenceRun:
    """One run: fences when they are due, events, and whatever of the events was not published yet."""
    lake = settings.tables
    if reference_due():
        collect(spark, lake, settings.source_options)
    applied = AppliedFences(settings.checkpoints / "applied" / "fences.geojson")
    run = compute_events(spark, lake, settings.tracks, settings.geofence, applied)
    outbox = Outbox(lake, TABLE, settings.checkpoints / "published" / TABLE)
    published = outbox.flush(topic_sender(settings.service_urls, settings.geofence.topic, event_message))
    if run.touched_days or published:
        _log.info(
            "geofence",
            fence_changes=run.fence_changes,
            touched_days=run.touched_days,
            revisions=run.revisions,
            published=published,
            fences_refused=run.fences_refused,
            records=run.to_version,
        )
    return run
