"""What age costs: the same 100 batches after many commits, many buffers, many records. Without Spark."""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks import lakes
from benchmarks.harness import Figure, peak_mib, quiet
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import MicroBatchWriter
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.job import Maintenance

ROUNDS = 40
BATCHES = 100
ALLOWED = 1.3
RECORDS_A_COMMIT = 5_000_000


def take_in(lake: Lake, writer: MicroBatchWriter, values: Sequence[bytes]) -> float:
    messages = lakes.as_messages(values).to_batches()
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
        made = [lakes.batch_of_fixes(name, first, self._size, self._start_us) for name, first in self._next.items()]
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
        lake = lakes.built(kept / f"{name.replace(' ', '-')}-{count}", lambda place: build(place, count))  # noqa: B023
        young, found = measured(lakes.new_lake(folder / f"young-{number}")), measured(lake)
        times = found.median_s / young.median_s
        shown = (
            f"{found.median_s * 1000:.0f} ms, {times:.2f} times; {found.peak_mb:,.0f} MB, {found.open_s:.1f} s to open"
        )
        asked, met = f"at most {ALLOWED} times as long, driver at most 1 GB", times <= ALLOWED and found.peak_mb <= 1000
        yield Figure(f"{count:,} {name}", shown, asked, met)


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
    return AgeResult(statistics.median(times[5:]), opened, peak_mib())


def with_buffers(folder: Path, buffers: int, gaps: int) -> Lake:
    """A lake that knows so many device streams, each with `gaps`; they came in one commit."""
    lake, begin = lakes.new_lake(folder), np.arange(buffers)[:, None] + 1000 * np.arange(gaps + 1)
    ranges = np.stack([begin + 1, begin + 900], axis=2).reshape(buffers, -1)
    names = [f"us-{number:07}" for number in range(buffers)]
    lakes.add_streams(lake, names, ranges, stated_us=1_767_600_000_000_000, complete_us=0, tenant=lakes.TENANT)
    return lake


def with_records(folder: Path, count: int) -> Lake:
    """A lake of so many fixes of thirty days, in files as maintenance leaves them."""
    lake = lakes.new_lake(folder)
    commits = range(-(-count // RECORDS_A_COMMIT))
    lakes.add_records(lake, (_history(at, min(RECORDS_A_COMMIT, count - at * RECORDS_A_COMMIT)) for at in commits))
    return lake


def _history(at: int, count: int) -> pa.Table:
    each = -(-count // 1000)
    number = np.arange(count)
    day_us = int(time.time() // 86_400 - 31 + at % 30) * lakes.DAY_US
    latitude, longitude = lakes.random_ways(count, 52, 9, 1e-5)
    return lakes.fix_rows(
        number // each,
        number % each + 1,
        day_us + (number % each + 1) * 1_000_000 % lakes.DAY_US,
        latitude,
        longitude,
        epoch=at,
        prefix=f"de-{at // 30:03}",
    )


def with_commits(folder: Path, commits: int) -> Lake:
    lake = lakes.new_lake(folder)
    lakes.add_small_commits(lake, commits)
    Maintenance(lake, MaintenanceSettings()).run()
    return lake
