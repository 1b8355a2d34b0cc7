"""The closing of a period as one Spark job: groups of payers on executors, three commits by the driver."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from secrets import token_hex
from typing import Final

from pyspark.sql import SparkSession

from cloud_jobs.billing.register.close import TakeDevices, close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.frames import run_on_executors
from cloud_jobs.lake.snapshots import Snapshot, read_snapshot, take_snapshot
from cloud_jobs.lake.store_clock import checked_time
from cloud_jobs.lake.tables import Lake
from cloud_jobs.spark import start_spark

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
    """Closes some days for some payers, or for all, at a snapshot or at a new one; the closings, by payer.

    `against_records`, `unbilled`: see `close_period`.

    Raises LakeError, UnknownSnapshot, UnknownPayer, NoPayer, CommitConflict, CommitFailed, StoreUnavailable.
    """
    lake = settings.tables
    with settings.location.errors_named():
        # before Spark, which takes seconds to start
        lake.check("records")
        lake.create()
        now = checked_time(lake)
        snapshot = take_snapshot(lake, now) if snapshot_id is None else read_snapshot(lake, snapshot_id)
        run = ClosingRun(name=token_hex(8), snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
        spark = start_spark("waybill-close", settings.spark, settings.location)
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
    """The same in a session that is there. Raises as `close_period`."""
    # more tasks than cores: a payer with a great fleet holds up no other
    tasks = spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
    on_executors = partial(run_on_executors, spark)
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
