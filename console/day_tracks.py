"""The tracks of all devices on a day, thinned out: on a map they draw the roads of a fleet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.values import encoded
from console.fixes import column_text, degrees_text, usable_positions
from console.lake import OpenLake
from geo.spatial import Fixes, TrackSettings, build_tracks

MOST_ROWS: Final = 400_000
MOST_FILES: Final = 400
MOST_POINTS: Final = 60_000
_KEPT_S: Final = 60.0
_COLUMNS: Final = ("tenant", "device", "device_time", "latitude", "longitude", "accuracy_m")


@dataclass(frozen=True, slots=True)
class DayTracks:
    """Pieces of tracks of a day. `begins`: the point at which each piece begins, `device`: the number of its device
    among `devices`. `files`: how many were read, `of`: of how many.
    """

    longitude: NDArray[np.float64]
    latitude: NDArray[np.float64]
    begins: NDArray[np.int64]
    device: NDArray[np.int64]
    devices: tuple[TenantDevice, ...]
    files: int
    of: int

    @classmethod
    def none(cls) -> DayTracks:
        floats, ints = np.zeros(0), np.zeros(0, np.int64)
        return cls(floats, floats, ints, ints, (), 0, 0)

    def document(self, visible: Collection[TenantDevice]) -> dict[str, Any]:
        """The pieces of some devices as columns for a browser."""
        seen = {*visible}
        may_see = np.array([one in seen for one in self.devices], np.bool_)
        ends = np.r_[self.begins[1:], len(self.longitude)]
        lengths = ends - self.begins
        of_piece = may_see[self.device] if len(self.device) else np.zeros(0, np.bool_)
        points = np.repeat(of_piece, lengths)
        begins = np.r_[0, np.cumsum(lengths[of_piece])][:-1]
        return {
            "longitude": degrees_text(self.longitude[points]),
            "latitude": degrees_text(self.latitude[points]),
            "begins": column_text(begins.astype("<i4")),
            "files": self.files,
            "of": self.of,
        }


class DayTracksReader:
    """Keeps the tracks of the day that was asked for last, for a minute."""

    def __init__(self, lake: OpenLake, tracks: TrackSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._lake = lake
        self._tracks = tracks
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[datetime, float, DayTracks] | None = None

    def read(self, start: datetime, end: datetime) -> DayTracks:
        """The tracks from `start` until before `end`. Raises LakeError, StoreUnavailable."""
        with self._lock:
            known = self._known
            if known is None or known[0] != start or self._clock() - known[1] > _KEPT_S:
                known = self._known = start, self._clock(), self._made(start, end)
            return known[2]

    def _made(self, start: datetime, end: datetime) -> DayTracks:
        if not self._lake.has("records"):
            return DayTracks.none()
        stored = self._lake.stored("records").between("device_time", start, end)
        counts = np.cumsum(np.array(stored.row_counts, np.int64))
        most = min(int(np.searchsorted(counts, MOST_ROWS, side="right")), MOST_FILES)
        # a single file may have more rows
        files = StoredFiles("records", stored.actions.slice(0, max(most, 1)))
        if not len(files):
            return DayTracks.none()
        rows = self._lake.rows_in(
            files, _COLUMNS, where=[("kind", "=", "position"), ("device_time", ">=", start), ("device_time", "<", end)]
        )
        return _tracks_of(rows.slice(0, 2 * MOST_ROWS), self._tracks, len(files), len(stored))


def _tracks_of(rows: pa.Table, tracks: TrackSettings, files: int, of: int) -> DayTracks:
    latitude, longitude = (pc.fill_null(rows[name], float("nan")).to_numpy() for name in ("latitude", "longitude"))
    rows = rows.filter(pa.array(usable_positions(latitude, longitude, tracks)))
    tenants, devices = encoded(rows["tenant"]), encoded(rows["device"])
    width = max(len(devices.dictionary), 1)
    codes, place = np.unique(
        tenants.indices.to_numpy().astype(np.int64) * width + devices.indices.to_numpy(), return_inverse=True
    )
    names = tuple(
        TenantDevice(tenants.dictionary[code // width].as_py(), devices.dictionary[code % width].as_py())
        for code in codes.tolist()
    )
    fixes = Fixes(
        device=place.astype(np.int64),
        t_ms=rows["device_time"].cast(pa.int64()).to_numpy() // 1000,
        lat=rows["latitude"].to_numpy(),
        lon=rows["longitude"].to_numpy(),
        accuracy_m=pc.fill_null(rows["accuracy_m"], float("nan")).to_numpy(),
    )
    made = build_tracks(fixes, tracks.as_reported())
    is_begin = ~made.linked
    is_end = np.r_[is_begin[1:], True] if len(is_begin) else is_begin
    every = max(-(-len(made.row) // MOST_POINTS), 1)
    # a piece of one point is no line
    kept = ((np.arange(len(made.row)) % every == 0) | is_begin | is_end) & ~(is_begin & is_end)
    row, begins = made.row[kept], np.flatnonzero(is_begin[kept])
    return DayTracks(fixes.lon[row], fixes.lat[row], begins, fixes.device[row][begins], names, files, of)
