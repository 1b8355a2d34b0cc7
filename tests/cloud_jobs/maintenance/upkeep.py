"""Maintenance of a real lake in this process: settings, runs, and positions to be erased."""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.erasures import Erasure
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import MaintenancePoint
from cloud_jobs.maintenance.job import Maintenance, MaintenanceRun
from tests.cloud_jobs.ingest.centre import DAY_US, NOON_US
from waybill.record import Batch, Position, Raw, Record, encode


def run(
    lake: Lake,
    *erasures: Erasure,
    now: datetime | None = None,
    store_now: datetime | None = None,
    reached: Callable[[MaintenancePoint], None] = lambda _: None,
    **settings: object,
) -> MaintenanceRun:
    """One run of the maintenance, at a moment that is given or now; `store_now`: if the store has another time."""
    clock = (lambda: now) if now else (lambda: datetime.now(UTC))
    stored = (lambda: store_now) if store_now else clock
    # most lakes here are of the ingest alone, and runs follow each other
    made = MaintenanceSettings.model_validate({"erase_after_jobs": False, "log_interval_s": 0} | settings)
    maintenance = Maintenance(lake, made, now=clock, store_now=stored, reached=reached)
    return maintenance.run(erasures)


def positions(*seqs: int, device: str = "d", day: int = -1, latitude: float = 48.0) -> bytes:
    records = tuple(
        Record(seq, NOON_US + day * DAY_US + seq * 1000, Position(latitude=latitude + seq / 1000, longitude=9.0))
        for seq in seqs
    )
    return encode(Batch(device, 7, max(seqs), records, ()))


def raw(*seqs: int, payload: bytes) -> bytes:
    records = tuple(Record(seq, NOON_US + seq, Raw(topic="can", payload=payload)) for seq in seqs)
    return encode(Batch("d", 7, max(seqs), records, ()))


def folder_of(lake: Lake) -> Path:
    return Path(lake.path("records")).parent


def parquet_files(lake: Lake, table: str = "records") -> list[Path]:
    """All that lie in the folder of a table, named by a commit or not."""
    return sorted(path for path in Path(lake.path(table)).rglob("*.parquet") if "_delta_log" not in path.parts)


def keys_of(path: Path) -> list[tuple[object, ...]]:
    """Tenant, device, epoch and seq of the rows of a file, as they stand in it."""
    rows = pq.read_table(path, partitioning=None).select(["tenant", "device", "epoch", "seq"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def make_older(paths: Iterable[Path], seconds: float) -> None:
    for path in paths:
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))
