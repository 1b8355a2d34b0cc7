"""What age costs a micro-batch: the same 100 batches after many commits, many buffers, many records. Without Spark.

Each state is in a lake as the ingest and maintenance leave it, but that nothing was synced while it was built. Commits:
see `small_commits`. Buffers: rows of coverage under a commit of their own. Records: written by the ingest's own writer
of files, five million in a commit, with their coverage.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.centre.batches import TENANT, as_messages, fixes
from benchmarks.centre.lakes import DAY_US, add_records, new_lake, unsynced
from benchmarks.centre.lakes import fixes as fixes_of
from benchmarks.centre.small_commits import add_small_commits
from benchmarks.harness import Figure, quiet
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import MicroBatchWriter
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage_log import COVERAGE_ROWS, Manifest
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, next_number
from cloud_jobs.maintenance.job import Maintenance

ROUNDS = 40
BATCHES = 100
ALLOWED = 1.3
RECORDS_A_COMMIT = 5_000_000


def take_in(lake: Lake, writer: MicroBatchWriter, values: Sequence[bytes]) -> float:
    messages = as_messages(values).to_batches()
    began = time.perf_counter()
    attempt = writer.begin()
    decoded = decode_messages(messages)
    parts = [write_part(lake, one, attempt.ingest_number, attempt.now) for one in decoded]
    writer.write(attempt, parts)
    return time.perf_counter() - began


class TravellingFleet:
    """Devices that go on where they were."""

    def __init__(self, devices: int, size: int, prefix: str = "eu") -> None:
        self._size = size
        self._next = dict.fromkeys((f"{prefix}-{number:05}" for number in range(devices)), 1)
        self._start_us = int((time.time() - 40 * 86_400) * 1e6)

    def batches(self) -> list[bytes]:
        made = [fixes(name, first, self._size, self._start_us) for name, first in self._next.items()]
        self._next = {name: first + self._size for name, first in self._next.items()}
        return made


def rows(folder: Path, options: Namespace) -> Iterator[Figure]:
    """The same micro-batch after each kind of age, each beside a young centre that is measured right before it."""
    kept = options.keep or folder
    ages: tuple[tuple[str, int, Callable[[Path, int], Lake]], ...] = (
        ("buffers", options.buffers, partial(with_buffers, gaps=0)),
        ("buffers with two gaps each", options.buffers, partial(with_buffers, gaps=2)),
        ("commits", options.commits, with_commits),
        ("records", options.records, with_records),
    )
    for number, (name, count, build) in enumerate(ages):
        lake = built(kept / f"{name.replace(' ', '-')}-{count}", build, count)
        young, found = measured(new_lake(folder / f"young-{number}")), measured(lake)
        yield Figure(
            f"{count:,} {name}",
            f"at most {ALLOWED} times as long, driver at most 1 GB",
            f"{found.median_s * 1000:.0f} ms, {found.median_s / young.median_s:.2f} times (young"
            f" {young.median_s * 1000:.0f} ms); Python process at most {found.peak_mb:,.0f} MB,"
            f" {found.open_s:.1f} s to open",
        )


class AgeResult(NamedTuple):
    """The median of micro-batches, how long an ingest takes to begin, and the most memory that its process held."""

    median_s: float
    open_s: float
    peak_mb: float


def measured(lake: Lake) -> AgeResult:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measure, lake).result()


def _measure(lake: Lake) -> AgeResult:
    quiet()
    # devices of its own, so that a lake that is kept can be measured again
    fleet = TravellingFleet(BATCHES, 200, f"m{time.time_ns():x}")
    began = time.perf_counter()
    writer = MicroBatchWriter(lake)
    opened = time.perf_counter() - began
    times = [take_in(lake, writer, fleet.batches()) for _ in range(ROUNDS)]
    return AgeResult(statistics.median(times[5:]), opened, _peak_mb())


def _peak_mb() -> float:
    # not `ru_maxrss`: a process that was started begins with that of the one which started it
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def with_buffers(folder: Path, buffers: int, gaps: int) -> Lake:
    """A lake that knows so many device streams, each with `gaps`; they came in one commit."""
    lake = new_lake(folder)
    ranges = gaps + 1
    firsts = np.arange(buffers)[:, None] + 1000 * np.arange(ranges)
    last = firsts[:, -1] + 900
    received = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 2 * ranges * buffers + 1, 2 * ranges, dtype=np.int32)),
        pa.array(np.stack([firsts + 1, firsts + 900], axis=2).ravel()),
    )
    nothing = np.zeros(buffers + 1, np.int32)
    columns = {
        "tenant": pa.repeat(TENANT, buffers),
        "device": pa.array([f"us-{number:07}" for number in range(buffers)]),
        "epoch": pa.array(np.full(buffers, 7)),
        "head": pa.array(last),
        "stated_us": pa.array(np.full(buffers, 1_767_600_000_000_000)),
        "stated_head": pa.array(last),
        "complete_until_us": pa.array(np.zeros(buffers, np.int64)),
        "received": received,
        "lost": pa.ListArray.from_arrays(pa.array(nothing), pa.array([], pa.int64())),
        "reasons": pa.ListArray.from_arrays(pa.array(nothing), pa.array([], pa.string())),
    }
    known = pa.table([columns[name] for name in COVERAGE_ROWS.names], schema=COVERAGE_ROWS)
    log = lake.coverage_log
    number = next_number(None)
    # of a level that was merged often enough for so many
    log.write_manifest(Manifest(number, (log.write(known, level=6),)))
    commit_files(lake.open("records"), "records", [], writer=INGEST, previous=None, number=number)
    return lake


def with_records(folder: Path, count: int) -> Lake:
    """A lake of so many fixes of thirty days, in files as maintenance leaves them."""
    lake = new_lake(folder)
    commits = range(-(-count // RECORDS_A_COMMIT))
    add_records(lake, (_history(at, min(RECORDS_A_COMMIT, count - at * RECORDS_A_COMMIT)) for at in commits))
    return lake


def _history(at: int, count: int) -> pa.Table:
    each = -(-count // 1000)
    number = np.arange(count)
    day_us = int(time.time() // 86_400 - 31 + at % 30) * DAY_US
    latitude, longitude = _ways(count)
    return fixes_of(
        number // each,
        number % each + 1,
        day_us + (number % each + 1) * 1_000_000 % DAY_US,
        latitude,
        longitude,
        epoch=at,
        prefix=f"de-{at // 30:03}",
    )


@cache
def _ways(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    random = np.random.default_rng(1)
    return 52 + np.cumsum(random.normal(0, 1e-5, count)), 9 + np.cumsum(random.normal(0, 1e-5, count))


def with_commits(folder: Path, commits: int) -> Lake:
    lake = new_lake(folder)
    add_small_commits(lake, commits)
    Maintenance(lake, MaintenanceSettings()).run()
    return lake


def built(folder: Path, build: Callable[[Path, int], Lake], count: int) -> Lake:
    done = folder.with_suffix(".built")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        with unsynced():
            build(folder, count)
        done.touch()
    return Lake(folder)
