"""What usage costs: a first run over everything by one executor and by two, and one late fix after three histories."""

import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from benchmarks.harness import Figure, limited
from benchmarks.lakes import add_records, fix_rows, new_lake
from benchmarks.stacks import running
from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.spark import start_spark
from cloud_jobs.usage.job import compute_usage
from deploy.local import PortBook, SparkCluster
from geo.spatial import TrackSettings
from tests.cloud_jobs.publications import rows_of
from tests.system.lake_of_fixes import square

DEVICES = 200
FENCES = 400
FIXES = 4_000_000
WARM_FIXES = 400_000
"""More than the driver computes itself, in more groups than there are executors: each has begun its Python."""
HISTORIES = (400_000, 1_600_000, 6_400_000)
LATE_RUNS = 5
LACKING = [100 + 360 * number for number in range(LATE_RUNS)]
"""The fixes, one in each of the first hours, that the first device sends late."""
_BEGIN_US = 1_767_571_200_000_000  # 2026-01-05T00:00:00Z
_RATE = 150_000


def rows(folder: Path) -> Iterator[Figure]:
    lake = history(folder / "whole", FIXES)
    warm = history(folder / "warm", WARM_FIXES)
    took = {}
    for executors in (1, 2):
        with executors_of(folder / f"cluster-{executors}", executors) as spark:
            run(spark, copied(warm, folder / f"warm-{executors}"))
            took[executors] = run(spark, copied(lake, folder / f"whole-{executors}"))
    rate, ratio = FIXES / took[1], took[1] / took[2]
    yield limited(f"usage of {FIXES:,} fixes, one executor of one core", rate, ">=", _RATE, "{:,.0f} fixes/s")
    shown = f"{ratio:.2f} times ({took[1]:.1f} s, {took[2]:.1f} s)"
    yield Figure("usage, two executors against one", shown, "at least 1.7 times", ratio >= 1.7)
    yield from late_fixes(folder)


def late_fixes(folder: Path) -> Iterator[Figure]:
    """One fix of an hour long computed, after histories of three sizes: on this machine, without executors."""
    with start_spark("bench-usage", SparkSettings(master="local[2]")) as spark:
        for count in HISTORIES:
            lake = history(folder / f"late-{count}", count)
            run(spark, lake)
            taken = []
            for number in range(LATE_RUNS):
                add_records(lake, [late_fix(number)])
                taken.append(run(spark, lake))
            what = f"usage after one late fix, {count:,} fixes before"
            yield Figure(what, f"{statistics.median(taken):.2f} s", "as long for each")


def run(spark: SparkSession, lake: Lake) -> float:
    began = time.perf_counter()
    done = compute_usage(spark, lake, TrackSettings())
    taken = time.perf_counter() - began
    assert done.rows > 0
    return taken


@contextmanager
def executors_of(folder: Path, executors: int) -> Iterator[SparkSession]:
    folder.mkdir(parents=True)
    cluster = SparkCluster(folder, PortBook(folder / "ports.json"), workers=executors)
    with running(cluster.master, *cluster.workers) as master:
        settings = SparkSettings(
            master=master.url,
            secret_file=master.secret_file,
            driver_host="127.0.0.1",
            python=str(master.python),
            executor_memory="700m",
            executor_cores=1,
            max_cores=executors,
        )
        with start_spark("bench-usage", settings) as spark:
            yield spark


def copied(lake: Lake, folder: Path) -> Lake:
    assert lake.location.folder is not None
    shutil.copytree(lake.location.folder, folder)
    return Lake(folder)


def history(folder: Path, count: int) -> Lake:
    """A lake in which vehicles drive round a town of fences, a fix every 10 s, a day after the other."""
    lake = new_lake(folder)
    lake.append("reference", rows_of("fence", [*town()]))
    a_day = 8_640
    each = max(count // DEVICES, 1)
    add_records(lake, (_driven(first, min(a_day, each - first)) for first in range(0, each, a_day)))
    return lake


def _driven(first: int, count: int) -> pa.Table:
    device, at = np.repeat(np.arange(DEVICES), count), np.tile(np.arange(first, first + count), DEVICES)
    there = (device > 0) | ~np.isin(at, LACKING)
    return _rows(device[there], at[there])


def _rows(device: NDArray[np.int64], at: NDArray[np.int64]) -> pa.Table:
    angle = at / 180 + device
    latitude, longitude = 50 + 0.09 * np.sin(angle), 8 + 0.09 * np.cos(angle * 1.1)
    return fix_rows(device, at + 1, _BEGIN_US + at * 10_000_000, latitude, longitude)


def late_fix(number: int) -> pa.Table:
    return _rows(np.zeros(1, np.int64), np.array([LACKING[number]]))


def town() -> Iterator[dict[str, Any]]:
    side = 0.2 / 20
    for number in range(FENCES):
        yield square(f"f{number}", 7.9 + number % 20 * side, 49.9 + number // 20 * side, side)
