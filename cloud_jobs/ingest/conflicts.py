"""Records that came again under their name, with another content than the one that is in the table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.ingest.coverage import DeviceStream
from cloud_jobs.ingest.deduplication import MessageRef
from cloud_jobs.lake import Lake
from cloud_jobs.tables import CONTENT
from telemetry import IntervalSet

MAX_CONFLICTS = 10_000
"""The most conflicts of one micro-batch that are kept one by one; a device that sends more is broken."""

_RECORD_ID = ["device", "epoch", "seq"]


def find_conflicts(
    spark: SparkSession,
    lake: Lake,
    again: DataFrame,
    streams: Sequence[DeviceStream],
    duplicates: Mapping[MessageRef, IntervalSet],
) -> list[dict[str, Any]]:
    """Rows for the quarantine: of the records that came `again`, those that differ from the one in the table.

    `streams` and `duplicates` bound what is read of the table.
    """
    bounds = [seqs.ranges for seqs in duplicates.values()]
    lowest = min(ranges[0][0] for ranges in bounds)
    highest = max(ranges[-1][1] for ranges in bounds)
    stored = (
        spark.read.format("delta")
        .load(lake.path("records"))
        .where(f.col("device").isin(sorted({stream.device for stream in streams})))
        .where(f.col("epoch").isin(sorted({stream.epoch for stream in streams})))
        .where(f.col("seq").between(lowest, highest))
        .select(*_RECORD_ID, *(f.col(name).alias(f"stored_{name}") for name in CONTENT))
    )
    same: Column = reduce(
        Column.__and__, (f.col(name).eqNullSafe(f.col(f"stored_{name}")) for name in CONTENT), f.lit(True)
    )
    differing = (
        again.join(stored, _RECORD_ID)
        .where(~same)
        .select(*_RECORD_ID, f.to_json(f.struct(*CONTENT)).alias("detail"))
        .limit(MAX_CONFLICTS)
    )
    now = datetime.now(UTC)
    return [_row(found.asDict(), now) for found in differing.collect()]


def _row(found: dict[str, Any], now: datetime) -> dict[str, Any]:
    text = "|".join(str(found[name]) for name in (*_RECORD_ID, "detail"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return {"cause": "conflict", "fingerprint": fingerprint, "quarantined_at": now, **found}
