"""What the lake knows of one device on one day: records by quarter of an hour, holes between them, and its track."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.snapshots import covering
from console.fixes import column_text, degrees_text
from console.lake import OpenLake
from console.movements import TRACK_COLUMNS, Movements, movements_of
from geo.spatial import TrackSettings, Verdict, ZoneSet, valid_positions
from waybill.record import IntervalSet

QUARTER: Final = timedelta(minutes=15)
MOST_RECORDS: Final = 300_000
MOST_HOLES: Final = 200
_COLUMNS: Final = (*TRACK_COLUMNS, "received_at", "kind", "ingest_number")


class Quarter(NamedTuple):
    """Records of a quarter of an hour, by the device's clock."""

    begin: datetime
    records: int
    positions: int


class Hole(NamedTuple):
    """Seqs that are not there. `begin`, `end`: times of the records around them on this day; None: there is none.

    `reason`: of a declared loss; "": they are missing.
    """

    epoch: int
    first: int
    last: int
    begin: datetime | None
    end: datetime | None
    reason: str

    @property
    def records(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class DeviceDay:
    """The records of a device in a span, by epoch and seq. `is_cut`: there are more than MOST_RECORDS."""

    start: datetime
    end: datetime
    rows: pa.Table
    is_cut: bool

    @classmethod
    def read(cls, lake: OpenLake, device: TenantDevice, start: datetime, end: datetime) -> DeviceDay:
        """Raises LakeError, StoreUnavailable."""
        stored = lake.stored("records").within("device", [(device.device, device.device)])
        rows = lake.rows_in(
            stored,
            _COLUMNS,
            where=[
                ("tenant", "=", device.tenant),
                ("device", "=", device.device),
                ("device_time", ">=", start),
                ("device_time", "<", end),
            ],
        ).sort_by([("epoch", "ascending"), ("seq", "ascending")])
        return cls(start, end, rows.slice(0, MOST_RECORDS), rows.num_rows > MOST_RECORDS)

    def positions(self) -> pa.Table:
        """The positions of the day in the order of their time."""
        there = self.rows.filter(pc.equal(self.rows["kind"], "position"))
        return there.sort_by([("device_time", "ascending"), ("epoch", "ascending"), ("seq", "ascending")])

    def track(self, tracks: TrackSettings) -> Movements:
        """Positions as reported: usage cleans them of noise when it meters them."""
        return movements_of(self.positions(), tracks.as_reported())

    def drawn(self, track: Movements) -> list[str]:
        """Of each position in the order of time: whether the track has it, why not, and whether it begins anew."""
        positions = self.positions()
        places = (positions[name].cast("double").fill_null(float("nan")) for name in ("latitude", "longitude"))
        usable = valid_positions(*(one.to_numpy() for one in places))
        words = ["yes", *(f"no: {one.name.lower().replace('_', ' ')}" for one in Verdict if one is not Verdict.KEPT)]
        of_fix = np.array(words, object)[track.tracks.verdict]
        anew = np.flatnonzero(~track.tracks.linked)[1:]
        of_fix[track.tracks.row[anew]] = "yes, after a gap or a jump"
        said = np.full(len(usable), "no: outside the world", object)
        said[usable] = of_fix
        return list(said)

    def quarters(self) -> list[Quarter]:
        """Each quarter of the day, also those without records: 92 to 100, as clocks change."""
        count = -(-(self.end - self.start) // QUARTER)
        at = self._quarter_of(self.rows)
        position = self._quarter_of(self.positions())
        records, positions = (np.bincount(one, minlength=count).tolist() for one in (at, position))
        return [Quarter(self.start + n * QUARTER, records[n], positions[n]) for n in range(count)]

    def _quarter_of(self, rows: pa.Table) -> NDArray[np.int64]:
        since = rows["device_time"].cast(pa.int64()).to_numpy() - round(self.start.timestamp() * 1_000_000)
        found: NDArray[np.int64] = since // (QUARTER // timedelta(microseconds=1))
        return found

    def holes(self, streams: Mapping[int, Coverage]) -> list[Hole]:
        """Missing and lost seqs beside a record of the day, in the order of their times; at most MOST_HOLES."""
        found: list[Hole] = []
        for epoch, coverage in sorted(streams.items(), reverse=True):
            rows = self.rows.filter(pc.equal(self.rows["epoch"], epoch))
            if not rows.num_rows:
                continue
            seqs, times = rows["seq"].to_numpy(), rows["device_time"].to_pylist()
            ranges = [(first, last, "") for first, last in coverage.missing.ranges]
            lost = coverage.declared_lost
            ranges += [one for one in coverage.tombstones if lost & IntervalSet([one[:2]])]
            for first, last, reason in ranges:
                after = int(np.searchsorted(seqs, first))
                has_before = after > 0 and int(seqs[after - 1]) == first - 1
                has_after = after < len(seqs) and int(seqs[after]) == last + 1
                if has_before or has_after:
                    begin, end = times[after - 1] if has_before else None, times[after] if has_after else None
                    found.append(Hole(epoch, first, last, begin, end, reason))
        found.sort(key=lambda one: (one.begin or self.start, one.first))
        return found[:MOST_HOLES]

    def not_covered(self, lake: OpenLake) -> tuple[int | None, int | None]:
        """How many records of the day usage does not cover yet, and how many commits it is behind; None: no usage."""
        if not lake.has("usage"):
            return None, None
        # derived tables first: later commits then exceed what they cover
        with lake.lake.damage_as_error("usage"):
            state = covering(lake.opened("usage"), "usage", lake.opened("records"))
        if state.since is None:
            return None, None
        behind = int(pc.sum(pc.greater(self.rows["ingest_number"], state.since)).as_py() or 0)
        return behind, state.until - state.since


def track_columns(track: Movements, zones: ZoneSet | None) -> dict[str, Any]:
    """A track as columns for a browser: places, seconds since 1970, speed in 0.1 m/s (-1: unknown), and the number of
    the zone among `zones` (-1: outside). The speed is the stated one, or that of the way to the place if it is greater.
    """
    time_ms = track.time_ms
    took_s = np.diff(time_ms, prepend=time_ms[:1]) / 1000
    way_mps = np.where(track.tracks.linked, track.tracks.metres / np.maximum(took_s, 0.001), np.nan)
    speed_mps = np.fmax(track.speed_mps[track.tracks.row], way_mps)
    speed = np.where(np.isfinite(speed_mps), np.clip(speed_mps * 10, 0, 32_767), -1)
    zone = np.full(len(time_ms), -1)
    if zones is not None and len(time_ms):
        zone = zones.zone_at(track.longitude, track.latitude, time_ms)
    return {
        "longitude": degrees_text(track.longitude),
        "latitude": degrees_text(track.latitude),
        "time": column_text(time_ms // 1000),
        "speed": column_text(speed, "<i2"),
        "zone": column_text(zone, "<i2"),
        "begins": column_text(np.flatnonzero(~track.tracks.linked)),
        "zones": [] if zones is None else [*zones.names],
    }
