"""What is not let in is kept beside the records, once, with the reason: messages that cannot be decoded, and records
that came again under their id with another content than the one in the table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.ingest.deduplication import MessageRef
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.frames import read_table
from cloud_jobs.lake.schemas import CONTENT, QUARANTINE
from cloud_jobs.lake.tables import Lake
from telemetry import IntervalSet

MAX_CONFLICTS = 10_000
"""The most conflicts of one micro-batch that are kept one by one; a device that sends more is broken."""

_RECORD_ID = ["device", "epoch", "seq"]


def malformed_rows(malformed: Sequence[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Rows for messages that are no consistent batch, from header rows of `decoding.DECODED`."""
    return [
        {
            "cause": "malformed",
            "fingerprint": row["fingerprint"],
            "detail": row["malformed"],
            "payload": row["payload"],
            "topic": row["topic"],
            "message_id": row["message_id"],
            "quarantined_at": now,
        }
        for row in malformed
    ]


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
        read_table(spark, lake, "records")
        .where(f.col("device").isin(sorted({stream.device for stream in streams})))
        .where(f.col("epoch").isin(sorted({stream.epoch for stream in streams})))
        .where(f.col("seq").between(lowest, highest))
        .select(*_RECORD_ID, *(f.col(name).alias(f"stored_{name}") for name in CONTENT))
    )
    # null-safe: with `=` two nulls are neither the same nor different, and a conflict would be missed
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
    return [_conflict_row(found.asDict(), now) for found in differing.collect()]


def _conflict_row(found: dict[str, Any], now: datetime) -> dict[str, Any]:
    text = "|".join(str(found[name]) for name in (*_RECORD_ID, "detail"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return {"cause": "conflict", "fingerprint": fingerprint, "quarantined_at": now, **found}


def quarantine(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows whose fingerprint is not there yet: the replay of a micro-batch adds nothing."""
    if not rows:
        return
    # the merge sees only what the table holds: of two that are the same here it would insert both
    once = {row["fingerprint"]: row for row in rows}
    source = pa.Table.from_pylist(list(once.values()), schema=QUARANTINE)
    (
        lake.open("quarantine")
        .merge(source, "old.fingerprint = new.fingerprint", source_alias="new", target_alias="old")
        .when_not_matched_insert_all()
        .execute()
    )
