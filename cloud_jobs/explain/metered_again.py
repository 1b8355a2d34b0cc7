"""Usage of a device computed again from the records and fences of a snapshot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from cloud_jobs.billing.contracts.published import EPOCH
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.snapshot_reads import publications
from cloud_jobs.lake.snapshots import LakeState, engine_at
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.devices import DeviceGroup, group_records, record_files
from cloud_jobs.usage.metering import MeterRules, meter_table, track_of
from cloud_jobs.usage.reading import MOST_HOURS, Arrays, Devices, device_hours
from geo.reference.in_force import published_fences
from geo.spatial import ENGINE_VERSION, TrackSettings
from geo.spatial.ragged import Floats, Ints

# Fences that a track may touch, by bounding boxes. Pure.

_LEAST_METRES_A_DEGREE: Final = 110_000.0
"""No degree of latitude is shorter."""
_SLACK_DEG: Final = 1e-6
"""A border this near may be met: coordinates are compared after rounding."""
_WIDTH: Final = re.compile(r'"(?:radius_m|width_m)"\s*:\s*"?([0-9.eE+-]+)')


class TrackBox(NamedTuple):
    """Degrees between which all fixes of a track lie, and so the straight lines between them."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def around(cls, longitudes: Floats, latitudes: Floats) -> TrackBox | None:
        """The box of some fixes; None for a track across the antimeridian."""
        if not len(longitudes):
            # nothing is near an empty track
            return cls(inf, inf, -inf, -inf)
        low, high = (longitudes.min(), latitudes.min()), (longitudes.max(), latitudes.max())
        found = cls(*(float(one) - _SLACK_DEG for one in low), *(float(one) + _SLACK_DEG for one in high))
        is_around_the_world = found.east - found.west >= 180 or found.west <= -180 or found.east >= 180
        return None if is_around_the_world else found


def ids_near(bodies: Sequence[tuple[str, str]], track: TrackBox) -> set[str]:
    """The ids, of pairs of a fence's id and a published text, of which any publication may lie near a track.

    All publications of an id belong together: one decides from when to when another one is in force.
    """
    texts = [body for _, body in bodies]
    west, south, east, north = shapely.bounds(shapely.from_geojson(texts, on_invalid="ignore")).reshape(-1, 4).T
    margin = np.array([_margin_deg(body) for body in texts])
    south, north = south - margin, north + margin
    # a degree of longitude is shortest where the latitude is highest
    narrowest = np.cos(np.radians(np.minimum(np.maximum(abs(south), abs(north)), 90.0)))
    around = np.minimum(margin / np.maximum(narrowest, 1e-9), 360.0)
    west, east = west - around, east + around
    is_apart = (west > track.east) | (east < track.west) | (south > track.north) | (north < track.south)
    # texts that GEOS cannot read have NaN bounds and count as near
    is_near = ~is_apart | (east - west >= 180) | (west <= -180) | (east >= 180)
    return {name for (name, _), near in zip(bodies, is_near.tolist(), strict=True) if near}


def _margin_deg(body: str) -> float:
    """How far a circle or a corridor reaches beyond its positions, in degrees of latitude; other fences: 0."""
    found = _WIDTH.search(body)
    return float(found.group(1)) / _LEAST_METRES_A_DEGREE if found else 0.0


MAX_HOURS: Final = 31 * 24 + 1
"""The most hours that are computed again: a month with an hour for the change of clocks."""


class MeteredAgain(NamedTuple):
    """Rows (schema METERED) of the requested hours, computed by the installed engine.

    `engine_version`: of the engine that computed the usage; the rows state it.
    """

    rows: pa.Table
    engine_version: int

    @property
    def is_of_other_engine(self) -> bool:
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
    """Computes usage of some hours again, from the records that usage covers at a snapshot and the fences in force.

    `stored`: files of records. `reference`: rows of the table `reference`. Raises LakeError.
    """
    assert 0 < len(hours) <= MAX_HOURS, "some hours, and no more than are held at once"
    records = _records(lake, snapshot, stored, device, hours, tracks=tracks)
    fences = reference.filter(pc.equal(reference["kind"], "fence"))
    box = _box(records, tracks)
    near = None
    if box is not None:
        near = ids_near([*zip(fences["id"].to_pylist(), fences["body"].to_pylist(), strict=True)], box)
    rules = MeterRules(published_fences(publications(fences, ids=near)).features, tracks)
    # rows state the engine of the usage, so that only other differences show
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
    """The box of the fixes that are part of the track."""
    track = track_of(records, np.flatnonzero(records["is_position"]), tracks)
    return TrackBox.around(track.fixes.lon[track.row], track.fixes.lat[track.row])
