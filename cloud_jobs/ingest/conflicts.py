"""Records that came again under their name, with another content than the one that is in the table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.ingest.admission import Place
from cloud_jobs.ingest.coverage import Buffer
from cloud_jobs.lake import Lake
from cloud_jobs.tables import CONTENT
from telemetry import IntervalSet

MAX_CONFLICTS = 10_000
"""The most conflicts of one micro-batch that are kept one by one; a device that sends more is broken."""

_NAME = ["device", "epoch", "seq"]


def conflicts(
    spark: SparkSession,
    lake: Lake,
    again: DataFrame,
    buffers: Sequence[Buffer],
    duplicates: Mapping[Place, IntervalSet],
) -> list[dict[str, Any]]:
    """Rows for the quarantine: of the records that came `again`, those that differ from the one in the table.

    `buffers` and `duplicates` bound what is read of the table.
    """
    bounds = [names.ranges for names in duplicates.values()]
    lowest = min(ranges[0][0] for ranges in bounds)
    highest = max(ranges[-1][1] for ranges in bounds)
    stored = (
        spark.read.format("delta")
        .load(lake.path("records"))
        .where(f.col("device").isin(sorted({buffer.device for buffer in buffers})))
        .where(f.col("epoch").isin(sorted({buffer.epoch for buffer in buffers})))
        .where(f.col("seq").between(lowest, highest))
        .select(*_NAME, *(f.col(name).alias(f"stored_{name}") for name in CONTENT))
    )
    same: Column = reduce(
        Column.__and__, (f.col(name).eqNullSafe(f.col(f"stored_{name}")) for name in CONTENT), f.lit(True)
    )
    differing = (
        again.join(stored, _NAME)
        .where(~same)
        .select(*_NAME, f.to_json(f.struct(*CONTENT)).alias("detail"))
        .limit(MAX_CONFLICTS)
    )
    now = datetime.now(UTC)
    return [_row(found.asDict(), now) for found in differing.collect()]


def _row(found: dict[str, Any], now: datetime) -> dict[str, Any]:
    text = "|".join(str(found[name]) for name in (*_NAME, "detail"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return {"cause": "conflict", "fingerprint": fingerprint, "quarantined_at": now, **found}
