"""Usage from fixes: a pure function of one device's records in one UTC hour and the fixes around it. Knows no Spark.

A segment, from one fix to the next, belongs wholly to the hour of the fix that ends it. Sums are rounded once, here,
half to even, to whole millimetres and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import FIX, USAGE, without
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.usage.reading import Arrays, Devices
from cloud_jobs.usage.touched_hours import HOUR_MS
from geo.spatial import OUTSIDE, Fixes, Pieces, Tracks, TrackSettings, ZoneSet, build_tracks
from telemetry import IntervalSet

FIXES = pa.schema([pa.field("tenant", pa.string()), *FIX, pa.field("touched", pa.bool_())])
"""Fixes of whole neighbourhoods of hours, each device's in ascending (epoch, seq). `touched`: its hour is asked for."""

METERED = without(USAGE, "computed_at", "commit_number")
"""One row for each device, touched hour and zone in which the device was."""


def meter(fixes: pa.Table, zones: ZoneSet, settings: TrackSettings) -> pa.Table:
    """Usage (schema METERED) of the touched hours, from fixes (schema FIXES) with their margin on both sides."""
    names = sorted({TenantDevice(**row) for row in fixes.select(["tenant", "device"]).to_pylist()})
    columns = {name: fixes[name].to_numpy() for name in FIXES.names if name not in ("tenant", "device")}
    columns["device"] = Devices(names).places(fixes)
    return pa.Table.from_pylist([*meter_arrays(columns, names, zones, settings).values()], schema=METERED)


def meter_arrays(
    columns: Arrays, names: Sequence[TenantDevice], zones: ZoneSet, settings: TrackSettings
) -> dict[tuple[int, int, str], dict[str, Any]]:
    """The rows (as METERED) of the touched hours by device, hour since 1970 and zone; a device is its place in `names`.

    `columns` are those of FIXES as arrays.
    """
    if not len(columns["t_ms"]):
        return {}
    track = build_tracks(
        Fixes(
            device=columns["device"],
            t_ms=columns["t_ms"],
            lat=columns["latitude"],
            lon=columns["longitude"],
            accuracy_m=columns["accuracy_m"],
        ),
        settings,
    )
    groups = _Grouped(track, zones.split(track), columns)
    return dict(groups.row(at, names, zones) for at in range(len(groups)))


@dataclass(frozen=True, slots=True)
class _Key:
    device: int
    hour: int
    zone: int


class _Grouped:
    """The pieces of touched hours, together by device, hour and zone."""

    def __init__(self, track: Tracks, pieces: Pieces, columns: dict[str, NDArray[Any]]) -> None:
        self._columns = columns
        self._pieces = pieces
        self._before = _fix_before(track)
        mine = np.flatnonzero(columns["touched"][pieces.end_fix].astype(bool))
        hour = columns["t_ms"][pieces.end_fix[mine]] // HOUR_MS
        device = track.fixes.device[pieces.end_fix[mine]]
        order = np.lexsort((mine, pieces.zone[mine], hour, device))
        keys = np.stack([device, hour, pieces.zone[mine]])[:, order]
        # not -1, which is OUTSIDE: the first row must open a group
        opens = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-2), axis=0))
        self._members = np.split(mine[order], opens[1:]) if len(mine) else []
        self._keys = [_Key(*(int(part) for part in keys[:, at])) for at in opens]

    def __len__(self) -> int:
        return len(self._keys)

    def row(
        self, at: int, names: Sequence[TenantDevice], zones: ZoneSet
    ) -> tuple[tuple[int, int, str], dict[str, Any]]:
        key, members = self._keys[at], self._members[at]
        zone = "" if key.zone == OUTSIDE else zones.names[key.zone]
        return (key.device, key.hour, zone), names[key.device]._asdict() | {
            "hour": key.hour * HOUR_MS * 1000,
            "zone": zone,
            # fsum is exact until its one rounding: the order of the pieces does not matter
            "distance_mm": round(fsum(self._pieces.metres[members]) * 1000),
            "duration_ms": round(fsum(self._pieces.ms[members])),
            "entries": int(self._pieces.entry[members].sum()),
            "seq_ranges": self._seq_ranges(members),
            "day": key.hour // 24,
        }

    def _seq_ranges(self, members: NDArray[np.int64]) -> str:
        """The ids of the fixes at both ends of the pieces' segments."""
        ends = self._pieces.end_fix[members]
        rows = np.unique(np.concatenate([ends, self._before[ends]]))
        epochs, seqs = self._columns["epoch"][rows], self._columns["seq"][rows]
        sets = {epoch: IntervalSet.of(seqs[epochs == epoch].tolist()) for epoch in np.unique(epochs).tolist()}
        return SeqRanges.of(sets).text()


def _fix_before(track: Tracks) -> NDArray[np.int64]:
    """For each row of the fixes the row before it in its track; itself where there is none."""
    before = np.arange(len(track.fixes), dtype=np.int64)
    before[track.row[1:]] = track.row[:-1]
    return before
