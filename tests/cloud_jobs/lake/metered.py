"""Usage that was computed by nobody: rows with given quantities, committed as a run of `usage` commits its own."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.tables import Lake

HOUR = datetime(2026, 1, 5, 12, tzinfo=UTC)
DEVICE = TenantDevice("acme", "d")


def meter(lake: Lake, *rows: Mapping[str, Any]) -> None:
    """One run: it covers all records that are there, and these are its rows."""
    increment = next_increment(lake, "usage")
    made = [usage_row(**{"commit_number": increment.commit_number, **row}) for row in rows]
    files = write_data_files(lake.files("usage"), pa.Table.from_pylist(made, USAGE), HOUR, table="usage")
    commit_written(increment, files)


def usage_row(**given: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "tenant": DEVICE.tenant,
        "device": DEVICE.device,
        "hour": HOUR,
        "zone": "",
        "computed_at": HOUR,
    }
    usual |= given
    usual["day"] = usual["hour"].date()
    return {field.name: usual.get(field.name, _nothing(field)) for field in USAGE}


def _nothing(field: pa.Field) -> Any:
    if field.nullable:
        return None
    if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type):
        return [0, 0, 0, 0]
    return "{}" if pa.types.is_string(field.type) else 0
