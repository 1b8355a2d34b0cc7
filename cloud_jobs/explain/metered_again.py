"""Usage of a device computed once more, from the records and fences of a snapshot: what the usage job made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import cos, inf, radians
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts.published import EPOCH
from cloud_jobs.billing.usage import engine_at
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.snapshot_reads import publications
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.devices import DeviceGroup, group_records, record_files
from cloud_jobs.usage.metering import MeterRules, meter_table, track_of
from cloud_jobs.usage.reading import MOST_HOURS, Arrays, Devices, device_hours
from geo.reference.in_force import published_fences
from geo.spatial import ENGINE_VERSION, TrackSettings
from geo.spatial.ragged import Floats, Ints

# Fences that a track may touch, by bounding boxes. Pure.

_LEAST_METRES_A_DEGREE: Final = 110_000.0
"""Of latitude there is no degree that is shorter."""
_SLACK_DEG: Final = 1e-6
"""A border that is so near may be met: coordinates are compared after rounding."""
_WIDTHS: Final = {"Point": "radius_m", "LineString": "width_m"}
"""What says how far beside its positions a circle or a corridor reaches."""
_DECODER: Final = json.JSONDecoder()


class TrackBox(NamedTuple):
    """Between which degrees all fixes of a track lie, and so the straight ways between them."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def around(cls, longitudes: Floats, latitudes: Floats) -> TrackBox | None:
        """That of some fixes; None: of a way over the antimeridian, which has all of the world around it."""
        if not len(longitudes):
            # nothing is near no track
            return cls(inf, inf, -inf, -inf)
        low, high = (longitudes.min(), latitudes.min()), (longitudes.max(), latitudes.max())
        found = cls(*(float(one) - _SLACK_DEG for one in low), *(float(one) + _SLACK_DEG for one in high))
        return None if _is_around_the_world(found.west, found.east) else found


def ids_near(bodies: Iterable[tuple[str, str]], track: TrackBox) -> set[str]:
    """Of pairs of a fence's id and the text of a publication the ids of which any publication may lie near a track.

    All publications of an id belong together: one decides from when to when another one holds, and whether it does.
    """
    return {name for name, body in bodies if _may_be_near(body, track)}


def _may_be_near(body: str, track: TrackBox) -> bool:
    """Also a text that cannot be read may be: whether it can be used is for others to say."""
    try:
        feature, _ = _DECODER.raw_decode(body)
        geometry = feature["geometry"]
        kind, positions = geometry["type"], geometry["coordinates"]
        if kind == "Polygon":
            positions = [one for ring in positions for one in ring]
        elif kind == "MultiPolygon":
            positions = [one for rings in positions for ring in rings for one in ring]
        elif kind == "Point":
            positions = [positions]
        latitudes = [one[1] for one in positions]
        south, north = min(latitudes), max(latitudes)
        longitudes = [one[0] for one in positions]
        west, east = min(longitudes), max(longitudes)
        if kind in _WIDTHS and (width_m := (feature.get("properties") or {}).get(_WIDTHS[kind])):
            margin = float(width_m) / _LEAST_METRES_A_DEGREE
            south, north = south - margin, north + margin
            # a degree of longitude is the shortest where the latitude is highest
            narrowest = cos(radians(min(max(abs(south), abs(north)), 90.0)))
            around = margin / narrowest if narrowest > margin / 180.0 else 360.0
            west, east = west - around, east + around
        is_apart = west > track.east or east < track.west or south > track.north or north < track.south
        return not is_apart or _is_around_the_world(west, east)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, AttributeError):
        return True


def _is_around_the_world(west: float, east: float) -> bool:
    return east - west >= 180.0 or west <= -180.0 or east >= 180.0


MAX_HOURS: Final = 31 * 24 + 1
"""The most hours that are computed again at once: those of a month, also of one in which clocks are put back."""


class MeteredAgain(NamedTuple):
    """Rows (schema METERED) of the requested hours, computed by the installed engine.

    `engine_version`: of the engine that computed the usage; the rows state it.
    """

    rows: pa.Table
    engine_version: int

    @property
    def is_of_other_engine(self) -> bool:
        """Whether usage was computed by another engine than the one that is installed."""
        return self.engine_version != ENGINE_VERSION


def meter_again(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    device: TenantDevice,
    hours: Sequence[datetime],
    *,
    tracks: TrackSettings,
    reference: pa.Table,
) -> MeteredAgain:
    """Usage of some hours of a device, of the records (`stored`) that usage covers at a snapshot and of the fences in
    force by the rows of `reference`. Raises LakeError."""
    assert 0 < len(hours) <= MAX_HOURS, "some hours, and no more than are held at once"
    records = _records(lake, snapshot, stored, device, hours, tracks=tracks)
    fences = reference.filter(pc.equal(reference["kind"], "fence"))
    box = _box(records, tracks)
    near = None
    if box is not None:
        near = ids_near(zip(fences["id"].to_pylist(), fences["body"].to_pylist(), strict=True), box)
    rules = MeterRules(published_fences(publications(fences, ids=near)).features, tracks)
    # rows of two engines are alike where all that they say is, but for which of them says it
    engine = engine_at(snapshot) or ENGINE_VERSION
    return MeteredAgain(meter_table(records, [device], rules, engine), engine)


def _records(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    device: TenantDevice,
    hours: Sequence[datetime],
    *,
    tracks: TrackSettings,
) -> Arrays:
    """The records of the hours, with the fixes around them."""
    numbers = np.unique([(hour - EPOCH) // timedelta(hours=1) for hour in hours])
    margin = timedelta(milliseconds=tracks.margin_ms) + timedelta(hours=1)
    with lake.damage_as_error("records"):
        first = min(hours) - max(margin, timedelta(hours=MOST_HOURS))
        stored = stored.of_days(first.date(), (max(hours) + margin).date())
        stored = stored.between("ingest_number", high=snapshot.covers)
        stored = stored.between("device", device.device, device.device).between("tenant", device.tenant, device.tenant)
        group = DeviceGroup((device,), (0, snapshot.covers), (), (), tuple(record_files(stored)), (), {})
        touched = device_hours(np.zeros(len(numbers), np.int64), numbers)
        before = device_hours(np.zeros(len(numbers) * MOST_HOURS, np.int64), _hours_before(numbers))
        return group_records(lake.files("records"), Devices([device]), group, touched, tracks, before=before)


def _hours_before(numbers: Ints) -> Ints:
    """All hours in which a gap may begin that ends in one of these."""
    return (numbers[:, None] - np.arange(1, MOST_HOURS + 1)).reshape(-1)


def _box(records: Arrays, tracks: TrackSettings) -> TrackBox | None:
    """Around the fixes that are part of the track: one at 0°/0°, and what is no fix, has no fence near it."""
    track = track_of(records, np.flatnonzero(records["is_position"]), tracks)
    return TrackBox.around(track.fixes.lon[track.row], track.fixes.lat[track.row])
