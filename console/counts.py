"""What was metered of devices in a span, and how many alerts they raised."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import LATE_POSITIONS, QUANTITIES, QUARTERS, TABLES, WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import of_devices, rows_in_force
from cloud_jobs.lake.transactions import COMMITTED, stated
from console.lake import OpenLake

_HOUR: Final = timedelta(hours=1)
_FRESH: Final = timedelta(minutes=5)
_QUARTER_US: Final = 900_000_000
_KEY: Final = ("tenant", "device", "hour", "zone", "commit_number")
OUTSIDE: Final = ""
"""The zone of usage outside of all zones."""


@dataclass(slots=True)
class DayUsage:
    """Metered quantities of a device in a span. `zones`: by zone, OUTSIDE included; `whole`: of the device anywhere."""

    zones: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)

    @property
    def distance_m(self) -> float | None:
        """The driven distance: a place belongs to one zone at most, so zones add up. None: nothing of it is metered."""
        return None if not self.zones else sum(one["distance_mm"] for one in self.zones.values()) / 1000


def usage_of(
    lake: OpenLake, devices: Collection[TenantDevice], start: datetime, end: datetime
) -> dict[TenantDevice, DayUsage]:
    """The usage in force of devices from `start` until before `end`, both on quarters of an hour.

    A device without usage in the span is left out. Raises LakeError, StoreUnavailable.
    """
    if not devices or not lake.has("usage") or not len(lake.stored("usage")):
        return {}
    begin, last = start.astimezone(UTC), end.astimezone(UTC)
    names = sorted({one.device for one in devices})
    stored = (
        lake.stored("usage")
        .of_days((begin - _HOUR).date(), last.date())
        .within("device", [(name, name) for name in names])
    )
    found = lake.rows_in(
        stored,
        (*_KEY, *QUANTITIES),
        where=[("hour", ">", begin - _HOUR), ("hour", "<", last), ("device", "in", names)],
    )
    rows = rows_in_force(of_devices(found, devices))
    hour = rows["hour"].cast(pa.int64()).to_numpy()[:, None]
    quarter = hour + np.arange(QUARTERS) * _QUARTER_US
    within = (quarter >= micros(begin)) & (quarter < micros(last))
    sums = {name: (_quarters(rows[name]) * within).sum(axis=1).tolist() for name in QUANTITIES}
    usage: dict[TenantDevice, DayUsage] = {}
    keys = zip(*(rows[name].to_pylist() for name in ("tenant", "device", "zone")), strict=True)
    for at, (tenant, device, zone) in enumerate(keys):
        if zone == LATE_POSITIONS or not within[at].any():
            continue
        of_device = usage.setdefault(TenantDevice(tenant, device), DayUsage())
        into = of_device.whole if zone == WHOLE_DEVICE else of_device.zones.setdefault(zone, {})
        for name, values in sums.items():
            into[name] = into.get(name, 0) + values[at]
    return usage


def _quarters(column: pa.ChunkedArray) -> NDArray[np.int64]:
    flat = pc.list_flatten(column).to_numpy() if len(column) else np.zeros(0, np.int64)
    found: NDArray[np.int64] = flat.reshape(-1, QUARTERS)
    return found


@dataclass(frozen=True, slots=True)
class AlertCounts:
    """Alerts of a span by device. `until`: when the job of the verdicts last wrote; None: never. `is_known`: whether
    that was near the end of the span, or after it: if not, more may have been raised.
    """

    of: dict[TenantDevice, int]
    until: datetime | None
    is_known: bool

    def count(self, device: TenantDevice) -> int | None:
        """The alerts that were collected; None if there is none, and some may have been raised."""
        return self.of.get(device, 0 if self.is_known else None)


def alerts_of(lake: OpenLake, start: datetime, end: datetime) -> AlertCounts:
    """The alerts of crossings from `start` until `end`, both included. Raises LakeError, StoreUnavailable."""
    if not lake.has("alerts") or not len(lake.stored("alerts")):
        return AlertCounts({}, None, is_known=False)
    begin, last = start.astimezone(UTC), end.astimezone(UTC)
    days = lake.stored("alerts").of_days(begin.date(), last.date())
    kind = TABLES["alerts"].schema.field("time").type
    rows = lake.rows_in(days, ("tenant", "device", "time", "collected_at"))
    moments = [pc.max(rows["collected_at"]).as_py()] if rows.num_rows else []
    # a run collects alerts before it decides
    written = [stated(lake.opened(table), COMMITTED) for table in ("alerts", "verdicts") if lake.has(table)]
    moments += [datetime.fromtimestamp(one / 1_000_000, UTC) for one in written if one is not None]
    until = max(moments, default=None)
    during = pc.and_(
        pc.greater_equal(rows["time"], pa.scalar(begin, kind)), pc.less_equal(rows["time"], pa.scalar(last, kind))
    )
    counted = rows.filter(during).group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist()
    return AlertCounts(
        {TenantDevice(one["tenant"], one["device"]): one["count_all"] for one in counted},
        until,
        until is not None and until >= end - _FRESH,
    )
