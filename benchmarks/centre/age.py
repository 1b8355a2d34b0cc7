"""What age costs a micro-batch: the same 100 batches after many commits, many buffers, many records. Without Spark.

The state is what the ingest itself would have left. Commits are made by the ingest's own writer, one small batch each,
with maintenance now and then; buffers are rows of coverage under a commit of their own; records are written by the
ingest's own writer of files, a million in one commit.
"""

from __future__ import annotations

import re
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.centre.batches import TENANT, as_messages, fixes
from benchmarks.centre.lakes import DAY_US, add_records, new_lake
from benchmarks.centre.lakes import fixes as fixes_of
from benchmarks.centre.table import Figure, quiet
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import MicroBatchWriter
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.lake.coverage_log import Manifest
from cloud_jobs.lake.coverage_rows import COVERAGE_ROWS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, next_number
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.job import Maintenance

ROUNDS = 40
BATCHES = 100
ALLOWED = 1.3
RECORDS_A_COMMIT = 5_000_000
COMMITS_BETWEEN_MAINTENANCE = 100
"""A run of maintenance each minute, and a commit or two a second."""


def take_in(lake: Lake, writer: MicroBatchWriter, values: Sequence[bytes]) -> float:
    """One micro-batch in one part; the seconds from its begin to its end."""
    messages = as_messages(values).to_batches()
    began = time.perf_counter()
    attempt = writer.begin()
    decoded = decode_messages(messages)
    parts = [write_part(lake.files("records"), one, attempt.ingest_number, attempt.now) for one in decoded]
    writer.write(attempt, parts)
    return time.perf_counter() - began


class TravellingFleet:
    """Devices that go on where they were."""

    def __init__(self, devices: int, size: int) -> None:
        self._size = size
        self._next = dict.fromkeys((f"eu-{number:05}" for number in range(devices)), 1)
        self._start_us = int((time.time() - 40 * 86_400) * 1e6)

    def batches(self) -> list[bytes]:
        """The next batch of each."""
        made = [fixes(name, first, self._size, self._start_us) for name, first in self._next.items()]
        self._next = {name: first + self._size for name, first in self._next.items()}
        return made


def rows(folder: Path, options: Namespace) -> Iterator[Figure]:
    """A young centre, and the same micro-batch after each kind of age."""
    young = measured(new_lake(folder / "young"))
    yield Figure("nothing", "", f"{young.median_s * 1000:.0f} ms, {young.peak_mb:,.0f} MB")
    aged = (
        (f"{options.buffers:,} buffers", with_buffers(folder / "buffers", options.buffers)),
        (f"{options.records:,} records", with_records(folder / "records", options.records)),
        (f"{options.commits:,} commits", with_commits(folder / "commits", options.commits)),
    )
    for what, lake in aged:
        found = measured(lake)
        yield Figure(
            what,
            f"at most {ALLOWED} times as long, driver at most 1 GB",
            f"{found.median_s * 1000:.0f} ms, {found.median_s / young.median_s:.2f} times; {found.peak_mb:,.0f} MB,"
            f" {found.open_s:.1f} s to open",
        )


class AgeResult(NamedTuple):
    """The median of micro-batches, how long an ingest takes to begin, and the most memory that its process held."""

    median_s: float
    open_s: float
    peak_mb: float


def measured(lake: Lake) -> AgeResult:
    """AgeResult in a process of its own, which holds nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measure, lake).result()


def _measure(lake: Lake) -> AgeResult:
    quiet()
    fleet = TravellingFleet(BATCHES, 200)
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


def with_buffers(folder: Path, buffers: int) -> Lake:
    """A lake that knows so many device streams, most of one range; they came in one commit."""
    lake = new_lake(folder)
    last = np.arange(1000, 1000 + buffers)
    received = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 2 * buffers + 1, 2, dtype=np.int32)),
        pa.array(np.column_stack([np.ones(buffers, np.int64), last]).ravel()),
    )
    nothing = np.zeros(buffers + 1, np.int32)
    columns = {
        "tenant": pa.repeat(TENANT, buffers),
        "device": pa.array([f"us-{number:07}" for number in range(buffers)]),
        "epoch": pa.array(np.full(buffers, 7)),
        "head": pa.array(last),
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
    """Fixes of one day of 1,000 devices."""
    each = -(-count // 1000)
    number = np.arange(count)
    day_us = int(time.time() // 86_400 - 31 + at % 30) * DAY_US
    random = np.random.default_rng(at)
    return fixes_of(
        number // each,
        number % each + 1,
        day_us + (number % each + 1) * 1_000_000 % DAY_US,
        52 + np.cumsum(random.normal(0, 1e-5, count)),
        9 + np.cumsum(random.normal(0, 1e-5, count)),
        epoch=at,
        prefix=f"de-{at // 30:03}",
    )


def with_commits(folder: Path, commits: int) -> Lake:
    """A lake with so many commits of the ingest's own writer, a small batch each."""
    lake = new_lake(folder)
    writer = MicroBatchWriter(lake)
    fleet = TravellingFleet(1, 10)
    maintenance = Maintenance(lake, MaintenanceSettings())
    for number in range(commits):
        take_in(lake, writer, fleet.batches())
        if number % COMMITS_BETWEEN_MAINTENANCE == 0:
            maintenance.run()
    maintenance.run()
    return lake
