"""`python -m benchmarks.spatial.jobs`: a hot cell and a skewed device in the real jobs, wall time on `local[2]`."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import shapely
from pyspark.sql import SparkSession

from benchmarks.harness import Figure, benchmark_folder, parser_of, print_figures
from benchmarks.lakes import fix_rows
from cloud_jobs.geofence.event_revisions import GeofenceSettings
from cloud_jobs.geofence.job import compute_events
from cloud_jobs.job_settings import ProximitySettings, SparkSettings
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, next_number
from cloud_jobs.proximity.job import compute_encounters
from cloud_jobs.spark import start_spark
from geo.spatial import TrackSettings
from tests.cloud_jobs.publications import rows_of

START_MS = 1_767_603_600_000  # 2026-01-05T09:00:00Z
DEGREE_M = 111_195.0


def fixes(device: np.ndarray, t_ms: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> pa.Table:
    order = np.lexsort((t_ms, device))
    device, t_ms, lat, lon = device[order], t_ms[order], lat[order], lon[order]
    seq = np.arange(len(device)) - np.searchsorted(device, device) + 1
    rows = fix_rows(device, seq, t_ms * 1000, lat, lon, prefix="eu")
    first = pa.array(np.ones(len(device), np.int64))
    return rows.set_column(rows.schema.get_field_index("ingest_number"), RECORDS.field("ingest_number"), first)


def yard(parked: int, elsewhere: int, each: int = 6, seed: int = 3) -> pa.Table:
    """Vehicles that shunt within 50 m, a fix every 30 s, and others spread over a country, on the same beat."""
    rng = np.random.default_rng(seed)
    count = parked + elsewhere
    far = np.arange(count) >= parked
    lat = np.where(far, 48 + rng.uniform(0, 3, count), 50.0 + rng.uniform(0, 25, count) / DEGREE_M)
    lon = np.where(far, 8 + rng.uniform(0, 4, count), 8.0 + rng.uniform(0, 25, count) / DEGREE_M)
    t_ms = START_MS + rng.integers(0, 30_000, (count, 1)) + 30_000 * np.arange(each)
    step = np.where(far, 300.0, 3.0)[:, None] / DEGREE_M
    lats, lons = (place[:, None] + np.cumsum(step * rng.normal(0, 1, (count, each)), axis=1) for place in (lat, lon))
    device = np.repeat(np.arange(count), each)
    return fixes(device, t_ms.ravel(), lats.ravel(), lons.ravel())


def drives(share: float, total: int = 1_000_000, devices: int = 100, days: int = 2, seed: int = 4) -> pa.Table:
    """Vehicles that drive round a town for some days; the first of them has this share of all fixes."""
    rng = np.random.default_rng(seed)
    first = round(total * share)
    counts = np.array([first, *[(total - first) // (devices - 1)] * (devices - 1)])
    device = np.repeat(np.arange(devices), counts)
    position = np.arange(len(device)) - np.repeat(np.cumsum(counts) - counts, counts)
    t_ms = START_MS + position * (days * 86_400_000 // counts[device])
    turn = (t_ms - START_MS) / 600_000.0 + device
    lat, lon = 50.0 + 0.05 * np.sin(turn) + 0.01 * np.sin(7 * turn), 8.0 + 0.08 * np.cos(turn) + 0.01 * np.cos(5 * turn)
    return fixes(device, t_ms, lat + rng.normal(0, 3e-6, len(position)), lon)


def town(count: int = 400) -> Iterator[dict[str, object]]:
    """Rectangles of 500 m all over the town."""
    for number in range(count):
        x, y = 7.9 + 0.01 * (number % 20), 49.93 + 0.007 * (number // 20)
        shape = shapely.geometry.mapping(shapely.box(x, y, x + 0.007, y + 0.005))
        yield {"type": "Feature", "properties": {"id": f"zone-{number:03}"}, "geometry": shape}


def run(spark: SparkSession, folder: Path, rows: pa.Table, job: str) -> tuple[float, int]:
    """Seconds of one run of a job over these records, and the revisions that it wrote."""
    lake = Lake(folder)
    lake.create()
    lake.append("reference", rows_of("fence", [*town()]))
    files = write_data_files(lake.files("records"), rows, datetime.now(UTC))
    commit_files(lake.open("records"), "records", files, writer=INGEST, previous=None, number=next_number(None))
    begin = time.monotonic()
    if job == "proximity":
        revisions = compute_encounters(spark, lake, TrackSettings(), ProximitySettings()).revisions
    else:
        revisions = compute_events(spark, lake, TrackSettings(), GeofenceSettings()).revisions
    return time.monotonic() - begin, revisions


WORLDS: dict[str, tuple[str, Callable[[], pa.Table]]] = {
    "proximity: 12,000 devices spread over a country": ("proximity", lambda: yard(0, 12_000)),
    "proximity: 10,000 of them within 50 m": ("proximity", lambda: yard(10_000, 2_000)),
    "proximity: 20,000 of 22,000 within 50 m": ("proximity", lambda: yard(20_000, 2_000)),
    "geofence: 100 devices with as many fixes each": ("geofence", lambda: drives(0.01)),
    "geofence: one of them has 90 % of the fixes": ("geofence", lambda: drives(0.9)),
}


def measured(spark: SparkSession, folder: Path, only: str) -> Iterator[Figure]:
    for job in ("proximity", "geofence"):
        run(spark, folder / f"warm-{job}", yard(50, 50), job)
    for number, (name, (job, world)) in enumerate(WORLDS.items()):
        if only in name:
            rows = world()
            seconds, revisions = run(spark, folder / str(number), rows, job)
            yield Figure(name, f"{seconds:.1f} s, {rows.num_rows:,} fixes, {revisions:,} revisions")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("only", nargs="?", default="", help="only the rows whose name holds this")
    options = parser.parse_args()
    with start_spark("waybill-bench", SparkSettings()) as spark, benchmark_folder("jobs") as folder:
        print_figures("Spatial jobs, `local[2]`", measured(spark, folder, options.only))


if __name__ == "__main__":
    main()
