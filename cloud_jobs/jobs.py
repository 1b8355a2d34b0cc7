"""`cloud-jobs usage`, `geofence` and `proximity`: one run over what is new in the lake, or run after run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import Any

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.config import CloudSettings
from cloud_jobs.geofence import job as geofence
from cloud_jobs.geofence.fence_changes import AppliedFences
from cloud_jobs.outbox import Outbox, topic_sender
from cloud_jobs.proximity import job as proximity
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference import collect
from cloud_jobs.revisions import encounter_message, event_message
from cloud_jobs.run_loop import PeriodicTrigger, run_repeatedly
from cloud_jobs.spark import start_spark
from cloud_jobs.usage.job import compute_usage
from runtime.signals import stop_on_signals


def run_usage(settings: CloudSettings) -> None:
    """Takes the reference data that was published, then brings usage up to date."""

    def once(spark: SparkSession) -> None:
        lake = settings.tables
        collected = collect(spark, lake, settings.source_options)
        run = compute_usage(spark, lake, settings.tracks)
        structlog.get_logger("usage").info(
            "usage",
            reference_rows=collected.rows,
            messages_refused=collected.refused_messages,
            fences_refused=run.fences_refused,
            touched_hours=run.touched_hours,
            rows=run.rows,
            records=run.to_version,
        )

    _run("usage", settings, once)


def run_geofence(settings: CloudSettings, *, follow: bool = False) -> None:
    """Takes the fences that were published, tells the events that changed, and publishes them.

    With `follow` again and again, until SIGTERM or SIGINT.
    """
    fences_due = PeriodicTrigger(settings.geofence.reference_interval_s)
    applied = AppliedFences(settings.checkpoints / "applied" / "fences.geojson")

    def once(spark: SparkSession) -> None:
        lake = settings.tables
        if fences_due():
            collect(spark, lake, settings.source_options)
        run = geofence.compute_events(spark, lake, settings.tracks, settings.geofence, applied)
        published = _publish(settings, geofence.TABLE, settings.geofence.topic, event_message)
        if run.touched_days or published:
            structlog.get_logger("geofence").info(
                "geofence",
                fence_changes=run.fence_changes,
                touched_days=run.touched_days,
                revisions=run.revisions,
                published=published,
                fences_refused=run.fences_refused,
                records=run.to_version,
            )

    _run("geofence", settings, once, every_s=settings.geofence.interval_s if follow else None)


def run_proximity(settings: CloudSettings, *, follow: bool = False) -> None:
    """Tells the encounters that changed, and publishes them; with `follow` until SIGTERM or SIGINT."""

    def once(spark: SparkSession) -> None:
        run = proximity.compute_encounters(spark, settings.tables, settings.tracks, settings.proximity)
        published = _publish(settings, proximity.TABLE, settings.proximity.topic, encounter_message)
        if run.touched_slices or published:
            structlog.get_logger("proximity").info(
                "proximity",
                touched_slices=run.touched_slices,
                in_crowds=run.in_crowds,
                revisions=run.revisions,
                published=published,
                records=run.to_version,
            )

    _run("proximity", settings, once, every_s=settings.proximity.interval_s if follow else None)


def _run(
    name: str, settings: CloudSettings, once: Callable[[SparkSession], None], *, every_s: float | None = None
) -> None:
    """Runs once, or again and again until a signal."""
    if every_s is None:
        with _session(name, settings) as spark:
            once(spark)
        return
    log = structlog.get_logger(name)
    with stop_on_signals() as stop, _session(name, settings, stop) as spark:
        run_repeatedly(
            lambda: once(spark),
            interval_s=every_s,
            on_error=lambda error: log.warning("not published", error=str(error)),
            stop=stop,
        )


@contextmanager
def _session(name: str, settings: CloudSettings, stop: Event | None = None) -> Iterator[SparkSession]:
    """The lake's tables, and a Spark session that can read them and the topics; SIGTERM and SIGINT set `stop`."""
    # before Spark, which takes seconds to start: a lake of another version is refused at once
    settings.tables.create()
    spark = start_spark(f"waybill-{name}", settings.spark)
    # Only now: Spark takes SIGINT for itself, and raises where the loop is to end in order.
    with stop_on_signals(stop) if stop is not None else nullcontext():
        try:
            spark.dataSource.register(PulsarDataSource)
            yield spark
        finally:
            spark.stop()


def _publish(
    settings: CloudSettings, table: str, topic: str, message: Callable[[dict[str, Any]], dict[str, Any]]
) -> int:
    """Publishes what was not published yet of a table, and returns how many rows that were."""
    outbox = Outbox(settings.tables, table, settings.checkpoints / "published" / table)
    return outbox.flush(topic_sender(settings.service_urls, topic, message, settings.access))
