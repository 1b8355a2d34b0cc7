"""The last fix of each device, kept up to date from new files of the lake; and where a device was on a day."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.erasures import TABLE as ERASURES
from cloud_jobs.lake.erasures import Erasure, Erasures, is_erased
from cloud_jobs.lake.tables import INGEST, Condition
from console.lake import OpenLake
from geo.spatial import TrackSettings, valid_positions

_COLUMNS: Final = (
    *("tenant", "device", "region", "device_time", "received_at", "latitude", "longitude"),
    *("speed_mps", "heading_deg", "accuracy_m", "kind", "device_date", "ingested_at"),
)
FIRST: Final = datetime(1971, 1, 1, tzinfo=UTC)
"""A fix before it has the time of a clock that was never set."""
AHEAD: Final = timedelta(minutes=10)
"""A fix whose device time is this far after its receipt is left out: its clock is wrong. It replaces no other."""


class LastFix(NamedTuple):
    """A device's newest usable position. `speed_mps`, `heading_deg`, `accuracy_m`: None if it did not state them."""

    tenant: str
    device: str
    region: str | None
    time: datetime
    received_at: datetime | None
    latitude: float
    longitude: float
    speed_mps: float | None
    heading_deg: float | None
    accuracy_m: float | None

    @property
    def of_device(self) -> TenantDevice:
        return TenantDevice(self.tenant, self.device)

    def is_in(self, erasures: Erasures) -> bool:
        """Whether it is erased. The moment of receipt decides for a clock that is far off."""
        moments = [self.time, *([self.received_at] if self.received_at else [])]
        return any(erasures.include(self.tenant, self.device, one) for one in moments)


@dataclass(frozen=True, slots=True)
class LastFixes:
    """`of`: by device. `left_out`: fixes of the files that were read that cannot be used: at 0°/0°, outside the world,
    ahead of the clock, or before FIRST. `files`: how many were read; 0 if there are no records. `ahead`: how many of
    each device are ahead of the clock.
    """

    of: dict[TenantDevice, LastFix]
    left_out: int
    files: int
    ahead: Mapping[TenantDevice, int] = field(default_factory=dict)


class LastFixReader:
    """Keeps the last fixes of a lake; each read opens only files with later ingest numbers than the one before.

    The first read goes back in time until no older file can hold a later fix of a device of the coverage, or until
    `most_files` were opened. A new erasure removes what it includes, also before the records are rewritten.
    """

    def __init__(self, lake: OpenLake, tracks: TrackSettings, most_files: int, *, rows_at_once: int = 200_000) -> None:
        self._lake = lake
        self._tracks = tracks
        self._most_files = most_files
        self._rows_at_once = rows_at_once
        self._lock = threading.Lock()
        self._number = -1
        self._state = LastFixes({}, 0, 0)
        self._earlier: tuple[datetime, int, int, dict[TenantDevice, LastFix | None]] | None = None
        self._erasures_version = -1
        self.erasures = Erasures([])

    def read(self, now: datetime) -> LastFixes:
        """Raises LakeError, StoreUnavailable."""
        with self._lock:
            if not self._lake.has("records"):
                return self._state
            stored = self._lake.stored("records")
            has_new_erasures = self._read_erasures()
            number = max((high for _, high in stored.bounds("ingest_number") if high is not None), default=-1)
            if number < self._number:
                # the lake was restored from an older copy
                self._number, self._state, self._earlier = -1, LastFixes({}, 0, 0), None
            if number > self._number:
                if self._number < 0:
                    self._look_back(stored, now)
                else:
                    self._add(stored.between("ingest_number", low=self._number + 1), now)
                self._number = number
            if has_new_erasures and self.erasures:
                self._leave_erased()
            return self._state

    def at(self, moment: datetime, newest: LastFixes) -> LastFixes:
        """The last fix of each device at or before a moment, given the newest ones; a later fix stays if there is none
        in `most_files`. Raises LakeError, StoreUnavailable.
        """
        later = {device for device, fix in newest.of.items() if fix.time > moment}
        if not later or not self._lake.has("records"):
            return newest
        with self._lock:
            version, known = self._lake.version("records"), self._earlier
            if known is None or known[:2] != (moment, version) or not later <= known[3].keys():
                known = self._earlier = moment, version, *self._before(moment, later)
        found = {device: fix for device in later if (fix := known[3][device]) is not None}
        return replace(newest, of=newest.of | found, files=newest.files + known[2])

    def _read_erasures(self) -> bool:
        version = self._lake.version(ERASURES) if self._lake.has(ERASURES) else -1
        if version == self._erasures_version:
            return False
        self.erasures = Erasures(Erasure(**row) for row in self._lake.rows(ERASURES, Erasure._fields).to_pylist())
        self._erasures_version, self._earlier = version, None
        return True

    def _leave_erased(self) -> None:
        """Replaces erased fixes by the newest ones that are left."""
        erased = {device: fix for device, fix in self._state.of.items() if fix.is_in(self.erasures)}
        if erased:
            newest = max(fix.time for fix in erased.values())
            count, found = self._before(newest, {*erased})
            known = {device: fix for device, fix in (self._state.of | found).items() if fix is not None}
            self._state = replace(self._state, of=known, files=self._state.files + count)

    def _rows(self, files: StoredFiles, where: list[Condition]) -> pa.Table:
        """Positions that are not erased."""
        rows = self._lake.rows_in(files, _COLUMNS, where=[("kind", "=", "position"), *where])
        return rows.filter(pc.invert(is_erased(rows, self.erasures))) if self.erasures else rows

    def _before(self, moment: datetime, devices: set[TenantDevice]) -> tuple[int, dict[TenantDevice, LastFix | None]]:
        """How many files were read, and the last fix of each device at or before a moment."""
        found: dict[TenantDevice, LastFix | None] = dict.fromkeys(devices)
        before, count = moment + timedelta(microseconds=1), 0
        names = sorted({one.device for one in devices})
        files = self._lake.stored("records").of_days(last=moment.astimezone(UTC).date())
        files = files.within("device", [(one, one) for one in names])
        for some, until in self._back(files.between("device_time", high=moment)):
            count += len(some)
            for fix in newest_fixes(self._rows(some, [("device_time", "<", before)]), before, self._tracks).of.values():
                if fix.of_device in found:
                    held = found[fix.of_device]
                    found[fix.of_device] = fix if held is None or fix.time > held.time else held
            if until and all(fix is not None and fix.time >= until for fix in found.values()):
                break
        return count, found

    def _look_back(self, stored: StoredFiles, now: datetime) -> None:
        """Records without a day have a wrong clock."""
        lake = self._lake.lake
        rows = lake.coverage_rows(lake.coverage_manifest(self._lake.newest_number("records", INGEST)))
        expected = {*map(TenantDevice, rows["tenant"].to_pylist(), rows["device"].to_pylist())}
        for some, until in self._back(stored.of_days()):
            self._add(some, now)
            known = self._state.of
            if until and all((fix := known.get(one)) is not None and fix.time >= until for one in expected):
                break

    def _back(self, files: StoredFiles) -> Iterator[tuple[StoredFiles, datetime | None]]:
        """At most `most_files`, newest first, a few at a time, each with the newest time of all that follow."""
        order = pc.array_sort_indices(files.actions["max.device_time"], "descending", null_placement="at_start")
        files = StoredFiles("records", files.actions.take(order.slice(0, self._most_files)))
        newest = [high for _, high in files.bounds("device_time")]
        ends, begin = np.cumsum(files.row_counts), 0
        while begin < len(files):
            read = ends[begin - 1] if begin else 0
            end = max(int(np.searchsorted(ends, read + self._rows_at_once, side="right")), begin + 1)
            yield (
                StoredFiles("records", files.actions.slice(begin, end - begin)),
                newest[end] if end < len(files) else None,
            )
            begin = end

    def _add(self, files: StoredFiles, now: datetime) -> None:
        rows = self._rows(files, [("ingest_number", ">", self._number)])
        found, state = newest_fixes(rows, now, self._tracks), self._state
        known = dict(state.of)
        for device, fix in found.of.items():
            held = known.get(device)
            if held is None or fix.time >= held.time:
                known[device] = fix
        ahead = Counter(state.ahead) + Counter(found.ahead) if found.ahead else state.ahead
        self._state = LastFixes(known, state.left_out + found.left_out, state.files + len(files), ahead)


def newest_fixes(rows: pa.Table, now: datetime, tracks: TrackSettings) -> LastFixes:
    """The newest usable position of each device of some rows. Of the clocks that a row was received by, of its ingest,
    and `now`, the one in the middle decides, so one of them may be wrong.
    """
    latitude = pc.fill_null(rows["latitude"], float("nan")).to_numpy()
    longitude = pc.fill_null(rows["longitude"], float("nan")).to_numpy()
    usable = usable_positions(latitude, longitude, tracks)
    kind = rows["device_time"].type
    read_us = round(now.timestamp() * 1_000_000)
    time_us, received_us, ingested_us = (
        pc.fill_null(rows[name].cast(pa.int64()), read_us).to_numpy()
        for name in ("device_time", "received_at", "ingested_at")
    )
    later_us = np.minimum(np.maximum(received_us, ingested_us), read_us)
    middle_us = np.maximum(np.minimum(received_us, ingested_us), later_us)
    is_ahead = time_us > middle_us + AHEAD // timedelta(microseconds=1)
    ahead = rows.filter(pa.array(is_ahead)).group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist()
    usable &= ~is_ahead
    usable &= pc.greater_equal(rows["device_time"], pa.scalar(FIRST, kind)).to_numpy(zero_copy_only=False)
    left_out = int(len(usable) - np.count_nonzero(usable))
    kept = rows.filter(pa.array(usable)).sort_by([("device_time", "ascending")])
    asked = [name for name in _COLUMNS if name not in ("tenant", "device", "kind", "device_date", "ingested_at")]
    last = kept.group_by(["tenant", "device"], use_threads=False).aggregate([(name, "last") for name in asked])
    return LastFixes(
        {fix.of_device: fix for fix in map(_fix, last.to_pylist())},
        left_out,
        0,
        {TenantDevice(row["tenant"], row["device"]): row["count_all"] for row in ahead},
    )


def usable_positions(
    latitude: NDArray[np.float64], longitude: NDArray[np.float64], tracks: TrackSettings
) -> NDArray[np.bool_]:
    """Which positions are in the world and not at 0°/0°, where a receiver without a fix is."""
    usable: NDArray[np.bool_] = valid_positions(latitude, longitude)
    if tracks.null_island_deg is not None:
        usable &= np.maximum(np.abs(latitude), np.abs(longitude)) >= tracks.null_island_deg
    return usable


def _fix(row: dict[str, Any]) -> LastFix:
    return LastFix(
        row["tenant"],
        row["device"],
        row["region_last"],
        row["device_time_last"],
        row["received_at_last"],
        row["latitude_last"],
        row["longitude_last"],
        _finite(row["speed_mps_last"]),
        _finite(row["heading_deg_last"]),
        _finite(row["accuracy_m_last"]),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


DEGREES: Final = 10_000_000
"""Positions are sent to a browser in 1e-7 degrees, as on the wire."""


def column_text(column: ArrayLike, kind: str = "<i4") -> str:
    """Numbers as base64 of the bytes of integers, for a typed array of a browser: `<i4` or `<i2`."""
    return base64.b64encode(np.rint(column).astype(kind).tobytes()).decode()


def degrees_text(degrees: NDArray[np.float64]) -> str:
    """Degrees as a column of 1e-7 degrees, an `Int32Array`."""
    return column_text(degrees * DEGREES)


_FIX_COLUMNS: Final = {"longitude": "<i4", "latitude": "<i4", "time": "<i4", "speed": "<i2", "heading": "<i2"}


def fix_numbers(fix: LastFix) -> tuple[int, ...]:
    """A fix as integers for a browser: 1e-7 degrees, seconds, 0.1 m/s and degrees; -1: it states none."""
    return (
        round(fix.longitude * DEGREES),
        round(fix.latitude * DEGREES),
        min(int(fix.time.timestamp()), 2**31 - 1),
        -1 if fix.speed_mps is None else min(round(fix.speed_mps * 10), 32_767),
        -1 if fix.heading_deg is None else round(fix.heading_deg) % 360,
    )


def fix_columns(numbers: NDArray[np.int32]) -> dict[str, str]:
    """Columns of `fix_numbers`, for a page and the live stream."""
    return {name: column_text(one, kind) for one, (name, kind) in zip(numbers, _FIX_COLUMNS.items(), strict=True)}


def day_span(day: datetime) -> tuple[datetime, datetime]:
    """The span of a local day, given by its midnight."""
    return day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC)
