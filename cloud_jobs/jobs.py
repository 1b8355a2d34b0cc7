"""The jobs that need Spark, run once or repeatedly: usage, geofence, proximity and close."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from secrets import token_hex
from threading import Event
from typing import Final

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.billing.register.close import TakeDevices, close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.config import CloudSettings
from cloud_jobs.derived.incremental import next_increment
from cloud_jobs.derived.outbox import encounter_message, event_message, publish_rows
from cloud_jobs.geofence import job as geofence
from cloud_jobs.geofence.job import GeofenceRun
from cloud_jobs.lake.snapshots import Snapshot, read_snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake, checked_time
from cloud_jobs.proximity import job as proximity
from cloud_jobs.proximity.job import ProximityRun
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.reference.tables import CollectionResult, collect
from cloud_jobs.run_metrics import RunMetrics, served_metrics
from cloud_jobs.run_result import PeriodicTrigger, Report, ignore_result, result_of, run_repeatedly
from cloud_jobs.spark import run_as_made, start_spark, terminal_log
from cloud_jobs.usage import job as usage
from cloud_jobs.usage.job import UsageRun
from waybill.daemon.signals import stop_on_signals

# The closing of a period as one Spark job: groups of payers on executors, three commits by the driver.

_TASKS_PER_CORE: Final = 4


def run_close(
    settings: CloudSettings,
    days: Days,
    payers: Collection[str] | None,
    snapshot_id: str | None,
    *,
    against_records: bool = True,
    unbilled: TakeDevices | None = None,
) -> list[Closing]:
    """Closes days for some payers, or for all, at a snapshot or at a new one; returns the closings by payer.

    `against_records`, `unbilled`: see `close_period`. Raises LakeError, UnknownPayer, NoPayer,
    CommitConflict, CommitFailed, StoreUnavailable.
    """
    lake = settings.tables
    with settings.location.errors_named():
        # before Spark, which takes seconds to start
        lake.check("records")
        lake.create()
        now = checked_time(lake)
        snapshot = take_snapshot(lake, now) if snapshot_id is None else read_snapshot(lake, snapshot_id)
        run = ClosingRun(name=token_hex(8), snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
        spark = start_spark(
            "waybill-close", settings.spark, settings.location, log=terminal_log(settings.checkpoints, "close")
        )
        try:
            return close_on_spark(
                spark, lake, snapshot, days, payers, run=run, against_records=against_records, unbilled=unbilled
            )
        finally:
            spark.stop()


def close_on_spark(
    spark: SparkSession,
    lake: Lake,
    snapshot: Snapshot,
    days: Days,
    payers: Collection[str] | None,
    *,
    run: ClosingRun,
    against_records: bool = True,
    unbilled: TakeDevices | None = None,
) -> list[Closing]:
    """As `run_close`, in an existing session. Raises as `close_period`."""
    # more tasks than cores: a payer with a great fleet holds up no other
    tasks = spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
    on_executors = partial(run_as_made, spark)
    return close_period(
        lake,
        snapshot,
        days,
        payers,
        run=run,
        run_tasks=on_executors,
        tasks=tasks,
        against_records=against_records,
        unbilled=unbilled,
    )


_REFERENCE_INTERVAL_S: Final = 60.0
_Run = UsageRun | GeofenceRun | ProximityRun
_Compute = Callable[[SparkSession], tuple[_Run, CollectionResult | None]]


def run_usage(settings: CloudSettings, report: Report = ignore_result, *, follow: bool = False) -> None:
    """Collects reference data and updates usage; with `follow`, again and again until a signal."""

    def compute(spark: SparkSession) -> tuple[UsageRun, CollectionResult]:
        collected = collect(spark, settings.tables, settings.source_options, settings.reference.trust())
        structlog.get_logger("usage", job="usage").info(
            "reference data taken",
            publications=collected.publications,
            added=collected.added,
            quarantined=len(collected.quarantined),
        )
        return usage.compute_usage(spark, settings.tables, settings.tracks), collected

    # each run reads them anew; what is wrong with them is said before Spark, which takes seconds to start
    settings.reference.trust()
    every_s = settings.usage.interval_s if follow else None
    _run("usage", settings, usage.TABLE, compute, every_s=every_s, report=report)


def run_geofence(settings: CloudSettings, report: Report = ignore_result, *, follow: bool = False) -> None:
    """Collects fences, computes changed events and publishes them; with `follow`, again and again until a signal."""
    rules = settings.geofence
    reference_trigger = PeriodicTrigger(_REFERENCE_INTERVAL_S)

    def compute(spark: SparkSession) -> tuple[GeofenceRun, CollectionResult | None]:
        due = reference_trigger.fire()
        collected = (
            collect(spark, settings.tables, settings.source_options, settings.reference.trust()) if due else None
        )
        return geofence.compute_events(spark, settings.tables, settings.tracks, rules), collected

    publish = partial(publish_rows, settings, geofence.TABLE, rules.topic, event_message)
    settings.reference.trust()
    every_s = rules.interval_s if follow else None
    _run("geofence", settings, geofence.TABLE, compute, publish, every_s=every_s, report=report)


def run_proximity(settings: CloudSettings, report: Report = ignore_result, *, follow: bool = False) -> None:
    """Computes changed encounters and publishes them; with `follow`, again and again until a signal."""
    rules = settings.proximity

    def compute(spark: SparkSession) -> tuple[ProximityRun, None]:
        return proximity.compute_encounters(spark, settings.tables, settings.tracks, rules), None

    publish = partial(publish_rows, settings, proximity.TABLE, rules.topic, encounter_message)
    every_s = rules.interval_s if follow else None
    _run("proximity", settings, proximity.TABLE, compute, publish, every_s=every_s, report=report)


def _run(
    job: str,
    settings: CloudSettings,
    table: str,
    compute: _Compute,
    publish: Callable[[], int] | None = None,
    *,
    every_s: float | None = None,
    report: Report = ignore_result,
) -> None:
    """Computes and publishes once, or every `every_s` seconds until a signal."""
    log, lake = structlog.get_logger(job, job=job), settings.tables
    with settings.location.errors_named(), nullcontext() if every_s is None else stop_on_signals() as stop:
        # before Spark, which takes seconds to start: a lake of another version is refused at once, and so is one that
        # is not there: only the ingest begins a lake
        lake.check("records")
        settings.bound_checkpoints.bind()
        lake.create()
        increment = next_increment(lake, table)
        log.info("started", lake=str(settings.lake), ingest_number=increment.until, covers=increment.since)
        with _measured(job, settings, stop) as metrics, _session(job, settings, stop) as spark:

            def once() -> None:
                with metrics.run() as measured:
                    with settings.location.errors_named():
                        run, collected = compute(spark)
                    result = result_of(job, run, collected)
                    measured.did(result.counts, work=bool(run))
                    try:
                        if publish is not None:
                            result = result.with_published(publish())
                    finally:
                        # Committed, published or not; of a job that follows most runs have nothing to do.
                        if stop is None or run or result.counts.get("published"):
                            log.info("computed", **result.counts)
                            report(result)
                    measured.did(result.counts, work=bool(result.counts.get("published")))

            if stop is None or every_s is None:
                once()
            else:
                run_repeatedly(
                    once,
                    interval_s=every_s,
                    on_error=lambda error: log.warning("tried again", error=str(error)),
                    stop=stop,
                )
    log.info("stopped")


@contextmanager
def _measured(job: str, settings: CloudSettings, stop: Event | None) -> Iterator[RunMetrics]:
    """The metrics of a job's runs, served while it follows."""
    metrics = RunMetrics(job, settings.status.max_behind_s)
    served = served_metrics(settings.metrics, job, metrics.registry, metrics.health)
    with nullcontext() if stop is None else served:
        yield metrics


@contextmanager
def _session(job: str, settings: CloudSettings, stop: Event | None) -> Iterator[SparkSession]:
    """A Spark session with the source `pulsar`; SIGTERM and SIGINT set `stop`."""
    spark = start_spark(
        f"waybill-{job}", settings.spark, settings.location, log=terminal_log(settings.checkpoints, job)
    )
    # Only now: Spark takes SIGINT for itself, and raises where the loop is to end in order.
    with stop_on_signals(stop) if stop is not None else nullcontext():
        try:
            spark.dataSource.register(PulsarDataSource)
            yield spark
        finally:
            spark.stop()
