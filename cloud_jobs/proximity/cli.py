"""`cloud-jobs proximity`: encounters, once or for as long as records come."""

from __future__ import annotations

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.config import CloudSettings
from cloud_jobs.outbox import Outbox, topic_sender
from cloud_jobs.proximity.job import TABLE, ProximityRun, compute_encounters
from cloud_jobs.proximity.message import encounter_message
from cloud_jobs.run_loop import run_repeatedly, stop_on_signals
from cloud_jobs.spark import start_spark

_log = structlog.get_logger("proximity")


def run_proximity(settings: CloudSettings, *, follow: bool = False) -> None:
    """Tells the encounters that changed, and publishes them; with `follow` until SIGTERM or SIGINT."""
    settings.tables.create()
    stop = stop_on_signals()
    spark = start_spark("waybill-proximity", settings.spark)
    try:
        if not follow:
            proximity_once(spark, settings)
            return
        run_repeatedly(
            lambda: proximity_once(spark, settings),
            interval_s=settings.proximity.interval_s,
            on_error=lambda error: _log.warning("not published", error=str(error)),
            stop=stop,
        )
    finally:
        spark.stop()


def proximity_once(spark: SparkSession, settings: CloudSettings) -> ProximityRun:
    """One run: encounters, and whatever of them was not published yet."""
    lake = settings.tables
    run = compute_encounters(spark, lake, settings.tracks, settings.proximity)
    outbox = Outbox(lake, TABLE, settings.checkpoints / "published" / TABLE)
    published = outbox.flush(topic_sender(settings.service_urls, settings.proximity.topic, encounter_message))
    if run.touched_slices or published:
        _log.info(
            "proximity",
            touched_slices=run.touched_slices,
            in_crowds=run.in_crowds,
            revisions=run.revisions,
            published=published,
            records=run.to_version,
        )
    return run
