"""A lake with a past in which a vehicle's month can be taken apart: many records, commits and fences, and its usage.

The records come in few big commits upon very many small ones. Usage of one vehicle is what the usage job makes of its
records, that of the others has the same rows under their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.centre.batches import EPOCH, TENANT
from benchmarks.centre.lakes import DAY_US, add_records, fixes, new_lake
from benchmarks.centre.small_commits import add_small_commits
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.explain import meter_again
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.data_files import StoredFiles, write_data_files
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshots import LakeState, note_fences, note_tracks
from cloud_jobs.lake.tables import FENCES, TRACKS, Lake
from cloud_jobs.maintenance.job import Maintenance
from cloud_jobs.reference.tables import fences_in
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, kind_of, legal_entity, price, tariff
from tests.cloud_jobs.billing.contracts.makers import device as assigned
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import cover, square
from waybill.record import IntervalSet

EXPLAINED: Final = TenantDevice(TENANT, "van-00000")
FIRST_DAY: Final = datetime(2026, 3, 1, tzinfo=UTC)
DAYS: Final = 31
FIXES_A_DAY: Final = 5_000
"""Of each vehicle, over the whole day."""
_AT_ONCE: Final = 1_000
_HOUR: Final = timedelta(hours=1)
_ZONES_A_SIDE: Final = 1_000
_GROUND: Final = (9.0, 52.0)
"""Where the vehicles are: longitude and latitude."""


class Past(NamedTuple):
    """How much there is in a lake. `vehicles`: each with DAYS times FIXES_A_DAY records."""

    vehicles: int
    commits: int
    fences: int

    @classmethod
    def of(cls, records: int, commits: int, fences: int) -> Past:
        return cls(max(records // (DAYS * FIXES_A_DAY), 1), commits, fences)

    @property
    def records(self) -> int:
        return self.vehicles * DAYS * FIXES_A_DAY


def metered_lake(folder: Path, past: Past) -> Lake:
    """A lake in which March 2026 is over, all of it is there, and the payer `acme` has the first vehicle."""
    lake = new_lake(folder)
    add_small_commits(lake, past.commits)
    add_records(lake, _commits(past.vehicles))
    Maintenance(lake, MaintenanceSettings()).run()
    lake.append("reference", [*_publications(past.fences)])
    end_us = int((FIRST_DAY + timedelta(days=DAYS + 1)).timestamp()) * 1_000_000
    head = DAYS * FIXES_A_DAY
    stated = Coverage(IntervalSet([(1, head)]), (), head, end_us, head, end_us)
    cover(lake, {DeviceStream(*EXPLAINED, EPOCH): stated})
    _add_usage(lake, past.vehicles)
    return lake


def _publications(fences: int) -> Iterator[dict[str, Any]]:
    bodies = [
        legal_entity(),
        tariff(price("0.45"), price("0.30", zone="*")),
        account("acme", assigned(EXPLAINED.device, tenant=EXPLAINED.tenant)),
    ]
    for at, body in enumerate(bodies):
        yield row_of(kind_of(body), body["id"], body, at, commit_number=1)
    west, south = _GROUND
    for at in range(fences):
        # a grid that goes on over the vehicles' ground and far beyond it, half of it free
        row, column = divmod(at, _ZONES_A_SIDE)
        body = square(f"zone-{at:06}", west - 1 + column * 0.02, south - 1 + row * 0.02)
        yield row_of("fence", body["properties"]["id"], body, len(bodies) + at, commit_number=1)


def _commits(vehicles: int) -> Iterator[pa.Table]:
    for day in range(DAYS):
        for first in range(0, vehicles, _AT_ONCE):
            yield _fixes_of_day(first, min(_AT_ONCE, vehicles - first), day)


def _fixes_of_day(first: int, vehicles: int, day: int) -> pa.Table:
    number = np.arange(vehicles * FIXES_A_DAY)
    within = number % FIXES_A_DAY
    latitude, longitude = (way[: len(number)] for way in _ways())
    return fixes(
        first + number // FIXES_A_DAY,
        day * FIXES_A_DAY + within + 1,
        int(FIRST_DAY.timestamp()) * 1_000_000 + day * DAY_US + within * (DAY_US // FIXES_A_DAY),
        latitude,
        longitude,
        prefix="van",
    )


@cache
def _ways() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    random = np.random.default_rng(1)
    count = _AT_ONCE * FIXES_A_DAY
    west, south = _GROUND
    return south + np.cumsum(random.normal(0, 5e-4, count)), west + np.cumsum(random.normal(0, 5e-4, count))


def _add_usage(lake: Lake, vehicles: int) -> None:
    increment = next_increment(lake, "usage")
    features, tracks = fences_in(lake).features, TrackSettings()
    rules = note_tracks(lake, tracks.model_dump())
    hours = [FIRST_DAY + at * _HOUR for at in range(DAYS * 24)]
    state = LakeState(ingest_commit=increment.newest, covers=increment.until)
    reference = lake.rows("reference")
    stored = StoredFiles.of(lake.open("records"), "records")
    metered = meter_again(lake, state, stored, EXPLAINED, hours, tracks=tracks, reference=reference).rows
    count, now = metered.num_rows, datetime.now(UTC)
    stamps = {
        "computed_at": pa.repeat(pa.scalar(now, USAGE.field("computed_at").type), count),
        "commit_number": pa.array(np.full(count, increment.commit_number)),
        "rules_number": pa.array(np.full(count, rules)),
    }
    columns = [stamps[name] if name in stamps else metered[name] for name in USAGE.names]
    mine = pa.table(columns, schema=USAGE)
    files = []
    for first in range(0, vehicles, _AT_ONCE):
        names = [f"van-{at:05}" for at in range(first, min(first + _AT_ONCE, vehicles))]
        for day in range(DAYS):
            of_day = mine.filter(pc.equal(mine["day"], (FIRST_DAY + timedelta(days=day)).date()))
            files += write_data_files(lake.files("usage"), _under(names, of_day), now, table="usage")
    commit_written(increment, files, states={FENCES: note_fences(lake, features), TRACKS: rules})


def _under(names: Sequence[str], rows: pa.Table) -> pa.Table:
    many = pa.concat_tables([rows] * len(names)).combine_chunks()
    of = pa.array(names).take(pa.array(np.repeat(np.arange(len(names)), rows.num_rows)))
    return many.set_column(USAGE.names.index("device"), USAGE.field("device"), of)
