"""How many devices moved in a span of time: their tracks, and the events of the span. Read from few files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.tables import Condition
from cloud_jobs.lake.values import encoded
from console.asked import Box, Span
from console.errors import BadQuery, Busy
from console.fixes import column_text, degrees_text
from console.lake import OpenLake
from geo.spatial import Fixes, Tracks, TrackSettings, build_tracks, valid_positions

MOST_RECORDS: Final = 3_000_000
"""A span whose files hold more records is refused."""
TRACK_COLUMNS: Final = (
    *("tenant", "device", "device_time", "latitude", "longitude", "speed_mps", "accuracy_m"),
    *("epoch", "seq"),
)
"""What movements are made of. Without the last two, of equal times of a device any may be kept."""
NO_ROWS: Final = pa.table({name: [] for name in TRACK_COLUMNS})

MOST_ROWS: Final = 400_000
MOST_FILES: Final = 400
MOST_POINTS: Final = 60_000
"""The most that is read and drawn of the tracks of a day."""
_KEPT_S: Final = 60.0
_LARGE: Final = 2_000_000
"""Of spans with more records one is read at a time: each takes hundreds of megabytes."""
_WAIT_S: Final = 30.0
_one_large = threading.Lock()

Visible = Callable[[Collection[TenantDevice]], Collection[TenantDevice]]
"""Which devices of some may be shown."""


def newest_span(lake: OpenLake, length: timedelta, now: datetime) -> Span:
    """The span up to the newest record of the newest usual day: one with a twentieth of the records of the fullest day.

    A lone canary, or a device without a clock, does not decide it.
    """
    end = now
    if lake.has("records"):
        stored = lake.stored("records").of_days(last=(now + timedelta(days=1)).date())
        of_day: dict[date, int] = {}
        days = stored.actions["partition.device_date"].to_pylist()
        for day, count in zip(days, stored.row_counts, strict=True):
            of_day[day] = of_day.get(day, 0) + count
        usual = [day for day, count in of_day.items() if 20 * count >= max(of_day.values())]
        if usual:
            bounds = stored.on_days([max(usual)]).bounds("device_time")
            end = max((newest for _, newest in bounds if newest is not None), default=now)
    end = (end + timedelta(seconds=1)).astimezone(UTC).replace(microsecond=0)
    return Span(end - length, end)


# Tracks.


@dataclass(frozen=True, slots=True)
class Movements:
    """Tracks of devices: `tracks.fixes.device` indexes `devices`. `speed_mps`: of each row of the fixes.

    `files_read` of `files`: what was opened of the table. `outside`: positions outside the world, which are no fixes.
    """

    devices: tuple[TenantDevice, ...]
    tracks: Tracks
    speed_mps: NDArray[np.float64]
    outside: int
    files_read: int
    files: int

    @property
    def longitude(self) -> NDArray[np.float64]:
        """Of each place of the tracks, as `latitude`, `time_ms` and `device`."""
        return self.tracks.fixes.lon[self.tracks.row]

    @property
    def latitude(self) -> NDArray[np.float64]:
        return self.tracks.fixes.lat[self.tracks.row]

    @property
    def time_ms(self) -> NDArray[np.int64]:
        return self.tracks.fixes.t_ms[self.tracks.row]

    @property
    def device(self) -> NDArray[np.int64]:
        return self.tracks.fixes.device[self.tracks.row]

    def left_out(self) -> dict[str, int]:
        """Positions that no track has, by the reason."""
        counts = {name: count for name, count in self.tracks.counts().items() if name != "kept" and count}
        return counts | ({"outside_the_world": self.outside} if self.outside else {})

    def read_note(self) -> str:
        """What was read and what is not shown, for the note of a table."""
        left_out = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self.left_out().items())
        read = f"{self.files_read:,} of {self.files:,} files read."
        return f"{read} Not drawn: {left_out}." if left_out else read


def movements_of(
    rows: pa.Table, rules: TrackSettings, visible: Visible = tuple, files: tuple[int, int] = (0, 0)
) -> Movements:
    """The movements of rows (TRACK_COLUMNS) of the devices of them that may be shown. Pure."""
    rows, devices, device = _numbered(rows, visible)
    # the engine keeps the first of equal times, in the order of epoch and seq
    if rows.num_rows and "seq" in rows.column_names:
        order = pc.sort_indices(rows, [(name, "ascending") for name in ("device_time", "epoch", "seq")])
        rows, device = rows.take(order), device[order.to_numpy()]
    latitude, longitude = (_numbers(rows[name]) for name in ("latitude", "longitude"))
    usable = valid_positions(latitude, longitude)
    rows, device = rows.filter(pa.array(usable, pa.bool_())), device[usable]
    speed = _numbers(rows["speed_mps"])
    fixes = Fixes(
        device=device,
        t_ms=rows["device_time"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy(),
        lat=latitude[usable],
        lon=longitude[usable],
        accuracy_m=_numbers(rows["accuracy_m"]),
        speed_mps=speed,
    )
    return Movements(devices, build_tracks(fixes, rules), speed, int(np.count_nonzero(~usable)), *files)


def read_movements(
    lake: OpenLake,
    span: Span,
    rules: TrackSettings,
    visible: Visible,
    *,
    tenant: str = "",
    near: Box | None = None,
) -> Movements:
    """The tracks of all visible devices in a span.

    `near`: fixes far from a box are not read. A segment is at most as long as the rules let a device drive within a
    gap; three times that around the box, tracks inside it are the same. Raises BadQuery for a span with too many
    records, LakeError, StoreUnavailable.
    """
    if not lake.has("records"):
        return movements_of(NO_ROWS, rules)
    stored = lake.stored("records")
    wanted = stored.between("device_time", span.start, span.end)
    if tenant:
        wanted = wanted.between("tenant", tenant, tenant)
    if (records := sum(wanted.row_counts)) > MOST_RECORDS:
        raise BadQuery("end", f"files of the span hold {records:,} records, at most {MOST_RECORDS:,} are read")
    where: list[Condition] = [
        ("kind", "=", "position"),
        ("device_time", ">=", span.start),
        ("device_time", "<", span.end),
        *([("tenant", "=", tenant)] if tenant else []),
        *_near(near, rules),
    ]
    with _turn(records):
        rows = lake.rows_in(wanted, TRACK_COLUMNS, where=where)
        return movements_of(rows, rules, visible, (len(wanted), len(stored)))


@contextmanager
def _turn(records: int) -> Iterator[None]:
    """Waits until no other large span is read. Raises Busy."""
    if records <= _LARGE:
        yield
    elif _one_large.acquire(timeout=_WAIT_S):
        try:
            yield
        finally:
            _one_large.release()
    else:
        raise Busy("another large span is being read; choose a shorter one, or ask again in a minute")


def _near(box: Box | None, rules: TrackSettings) -> Iterator[Condition]:
    if box is None or rules.max_speed_mps is None:
        return
    reach_deg = 3 * rules.max_speed_mps * rules.max_gap_s / 110_500.0
    south, north = box.south - reach_deg, box.north + reach_deg
    yield from (("latitude", ">=", south), ("latitude", "<=", north))
    steepest = max(abs(south), abs(north))
    if steepest > 85 or box.west > box.east:
        return
    wide_deg = reach_deg / float(np.cos(np.radians(steepest)))
    if box.west - wide_deg > -180 and box.east + wide_deg < 180:
        yield from (("longitude", ">=", box.west - wide_deg), ("longitude", "<=", box.east + wide_deg))


def _numbered(rows: pa.Table, visible: Visible) -> tuple[pa.Table, tuple[TenantDevice, ...], NDArray[np.int64]]:
    """Rows of visible devices, the devices in order, and the number of each row's device."""
    tenant, device = (encoded(rows[name].cast(pa.string())) for name in ("tenant", "device"))
    names = device.dictionary.to_pylist()
    both = tenant.indices.to_numpy().astype(np.int64) * max(len(names), 1) + device.indices.to_numpy()
    codes, inverse = np.unique(both, return_inverse=True)
    tenants = tenant.dictionary.to_pylist()
    there = [TenantDevice(tenants[code // len(names)], names[code % len(names)]) for code in codes.tolist()]
    seen = sorted({*visible(there)})
    number = {one: at for at, one in enumerate(seen)}
    of_code = np.array([number.get(one, -1) for one in there], dtype=np.int64)
    numbers = of_code[inverse] if there else np.zeros(0, np.int64)
    keep = numbers >= 0
    return rows.filter(pa.array(keep, pa.bool_())), tuple(seen), numbers[keep]


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    made: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
    return made


# The tracks of all devices on a day, thinned out: on a map they draw the roads of a fleet.


@dataclass(frozen=True, slots=True)
class DayTracks:
    """Places of tracks of a day. `begins`: whether a piece begins at a place. `device`: its number among `devices`."""

    longitude: NDArray[np.float64]
    latitude: NDArray[np.float64]
    begins: NDArray[np.bool_]
    device: NDArray[np.int64]
    devices: tuple[TenantDevice, ...]

    @classmethod
    def of(cls, moved: Movements) -> DayTracks:
        """The tracks with at most about MOST_POINTS places; ends of pieces stay."""
        begins = ~moved.tracks.linked
        ends = np.r_[begins[1:], True][: len(begins)]
        every = max(-(-len(begins) // MOST_POINTS), 1)
        # a piece of one point is no line
        kept = ((np.arange(len(begins)) % every == 0) | begins | ends) & ~(begins & ends)
        return cls(moved.longitude[kept], moved.latitude[kept], begins[kept], moved.device[kept], moved.devices)

    def document(self, visible: Collection[TenantDevice]) -> dict[str, str]:
        """The places of some devices as columns for a browser, and at which of them pieces begin."""
        seen = {*visible}
        shown = np.array([one in seen for one in self.devices], np.bool_)[self.device]
        return {
            "longitude": degrees_text(self.longitude[shown]),
            "latitude": degrees_text(self.latitude[shown]),
            "begins": column_text(np.flatnonzero(self.begins[shown])),
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
        rows = NO_ROWS
        if self._lake.has("records"):
            stored = self._lake.stored("records").between("device_time", start, end)
            counts = np.cumsum(np.array(stored.row_counts, np.int64))
            most = min(int(np.searchsorted(counts, MOST_ROWS, side="right")), MOST_FILES)
            # a single file may have more rows
            files = StoredFiles("records", stored.actions.slice(0, max(most, 1)))
            where: list[Condition] = [
                *(("kind", "=", "position"), ("device_time", ">=", start), ("device_time", "<", end)),
            ]
            rows = self._lake.rows_in(files, TRACK_COLUMNS[:-2], where=where).slice(0, 2 * MOST_ROWS)
        return DayTracks.of(movements_of(rows, self._tracks.as_reported()))
