"""Rows of the usage table, and records as the metering takes them, as tests write them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS
from cloud_jobs.lake.values import NUMBER_BYTES, ODOMETER, RECORD_BYTES, row_digest
from cloud_jobs.usage.metering import MeterRules, meter
from cloud_jobs.usage.reading import NOT_RAW, Arrays, reason_number
from geo.spatial import ENGINE_VERSION, TrackSettings

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def usage_row(
    device: str,
    hour: datetime,
    zone: str = "",
    *,
    tenant: str = "acme",
    seq_ranges: str = "{}",
    fence_version: str = "",
    computed_at: datetime = NOON,
    commit_number: int = 1,
    **quantities: int | Sequence[int],
) -> dict[str, Any]:
    """A row whose digest fits it. A quantity is that of each quarter, or a number, which is that of the first one."""
    amounts = {name: _quarters(quantities.pop(name, 0)) for name in QUANTITIES}
    assert not quantities, quantities
    seconds = int(hour.timestamp())
    assert seconds % 3600 == 0
    digest = row_digest(
        (tenant, device), seconds // 3600, zone, amounts.values(), (seq_ranges, fence_version, ENGINE_VERSION)
    )
    return {
        "tenant": tenant,
        "device": device,
        "hour": hour,
        "zone": zone,
        **amounts,
        "seq_ranges": seq_ranges,
        "fence_version": fence_version,
        "engine_version": ENGINE_VERSION,
        "digest": digest,
        "day": hour.date(),
        "computed_at": computed_at,
        "commit_number": commit_number,
    }


def _quarters(value: int | Sequence[int]) -> list[int]:
    found = [value] + [0] * (QUARTERS - 1) if isinstance(value, int) else [*value]
    assert len(found) == QUARTERS
    return found


def metered_rows(
    rows: Iterable[Mapping[str, Any]], features: Sequence[str] = (), settings: TrackSettings | None = None
) -> list[dict[str, Any]]:
    """Rows of METERED from records with `device`, `seq` and `t_ms`, and what else they have, in any order."""
    given = [dict(row) for row in rows]
    names = sorted({_name(row) for row in given})
    rules = MeterRules(features, settings or TrackSettings())
    found = meter(record_arrays(given, names), rules).table(names, rules.versions)
    made: list[dict[str, Any]] = found.to_pylist()
    return made


def record_arrays(rows: Sequence[Mapping[str, Any]], names: Sequence[TenantDevice]) -> Arrays:
    """Records as arrays, in the order that the metering asks for; each is touched unless it says otherwise."""
    place = {name: at for at, name in enumerate(names)}
    ordered = sorted(rows, key=lambda row: (place[_name(row)], row.get("epoch", 7), row["seq"]))
    kinds = [row.get("kind", "position") for row in ordered]
    usual = RECORD_BYTES + 2 * NUMBER_BYTES
    return {
        "device": np.array([place[_name(row)] for row in ordered], np.int64),
        "t_ms": np.array([row["t_ms"] for row in ordered], np.int64),
        "is_position": np.array([kind == "position" for kind in kinds], np.bool_),
        "is_event": np.array([kind == "event" for kind in kinds], np.bool_),
        "is_readable": np.array([kind in {"position", "event", "signal"} for kind in kinds], np.bool_),
        "is_odometer": np.array([row.get("name") == ODOMETER for row in ordered], np.bool_),
        "reason": np.array([_reason(row) for row in ordered], np.int32),
        "counter": np.array([row.get("counter", 0) for row in ordered], np.int64),
        "epoch": np.array([row.get("epoch", 7) for row in ordered], np.int64),
        "seq": np.array([row["seq"] for row in ordered], np.int64),
        "content_bytes": np.array([row.get("content_bytes", usual) for row in ordered], np.int32),
        "touched": np.array([row.get("touched", True) for row in ordered], np.bool_),
    } | {
        name: np.array([_float(row.get(name)) for row in ordered], np.float64)
        for name in ("latitude", "longitude", "accuracy_m", "speed_mps")
    }


def _name(row: Mapping[str, Any]) -> TenantDevice:
    return TenantDevice(row.get("tenant", "acme"), row["device"])


def _reason(row: Mapping[str, Any]) -> int:
    return reason_number(row.get("name") or "", row.get("text") or "") if row.get("kind") == "raw" else NOT_RAW


def _float(value: float | None) -> float:
    return np.nan if value is None else value
