"""Fixes of many devices as columns, in the order in which they arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from geo.spatial.ragged import Floats, Ints
from waybill.record.columns import RecordColumns
from waybill.record.record import Kind

_US_PER_MS = 1000


class FixSource(NamedTuple):
    """Who numbered a fix: with its `seq` that is a record id."""

    tenant: str
    device: str
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class FixColumns:
    """One row a fix, in the order of arrival; `sources[source[i]]` made row i. A source may be there several times.

    Every array has one entry for each row: `source`, `seq`, `t_ms` (device time) and `received_ms` (when the region's
    cluster had its batch) int64; `latitude`, `longitude`, `accuracy_m` and `speed_mps` float64, NaN for *not reported*.
    Positions need not be valid.
    """

    sources: Sequence[FixSource]
    source: Ints
    seq: Ints
    t_ms: Ints
    latitude: Floats
    longitude: Floats
    accuracy_m: Floats
    speed_mps: Floats
    received_ms: Ints

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def of(cls, batches: Iterable[tuple[str, RecordColumns, int]]) -> FixColumns:
        """The fixes of decoded batches, each with its tenant and when the region's cluster had it; other kinds of
        records are left out.
        """
        sources: list[FixSource] = []
        counts: list[int] = []
        received: list[int] = []
        columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        for tenant, records, received_ms in batches:
            is_fix = records.kind == Kind.POSITION
            whole = bool(is_fix.all())
            for name, values in columns.items():
                column = getattr(records, name)
                values.append(column if whole else column[is_fix])
            sources.append(FixSource(tenant, records.header.device, records.header.epoch))
            counts.append(len(columns["seq"][-1]))
            received.append(received_ms)
        none: dict[str, np.ndarray] = {name: np.zeros(0, dtype=kind) for name, kind in _COLUMNS.items()}
        joined = {name: np.concatenate([none[name], *values]) for name, values in columns.items()}
        # floor, as the centre's milliseconds of a time
        t_ms = joined.pop("device_time_us") // _US_PER_MS
        source = np.repeat(np.arange(len(counts)), counts)
        return cls(sources, source, t_ms=t_ms, received_ms=np.array(received, dtype=np.int64)[source], **joined)


_COLUMNS = {
    "seq": np.int64,
    "device_time_us": np.int64,
    "latitude": np.float64,
    "longitude": np.float64,
    "accuracy_m": np.float64,
    "speed_mps": np.float64,
}
