"""A Pulsar cluster for a load: with the room of a big one, and TLS, tokens and rights as in production."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from deploy.local import LocalStack, PulsarSettings, StackSettings
from tests.cloud_jobs.pulsar_source.world import LiveCluster

# Where a benchmark keeps what it writes: gigabytes, which nobody wants afterwards.


@contextmanager
def benchmark_folder(name: str) -> Iterator[Path]:
    """A folder that is gone when the benchmark has ended; one that failed keeps it, and says where, for its logs."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        yield folder
    except Exception:
        sys.stderr.write(f"what the servers wrote is kept: {folder}\n")
        raise
    except BaseException:  # interrupted: nothing is to be looked for in it
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


# The table that a benchmark prints: each figure beside the one that is asked.


class Figure(NamedTuple):
    """One figure."""

    what: str
    asked: str
    measured: str


def print_rows(title: str, rows: Iterable[Figure]) -> None:
    write = sys.stdout.write
    write(f"\n{title}\n\n| what | asked | measured |\n|---|---|---|\n")
    for row in rows:
        write(f"| {row.what} | {row.asked} | {row.measured} |\n")
    sys.stdout.flush()


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))


# What was asked of a gateway beside what was measured; a benchmark that misses any of it ends with exit status 1.


@dataclass(frozen=True, slots=True)
class Target:
    """One figure. `asked` and `measured`: with their units, as they are shown."""

    what: str
    asked: str
    measured: str
    is_met: bool


def are_met(targets: list[Target]) -> bool:
    for one in targets:
        word = "met" if one.is_met else "NOT MET"
        print(f"{one.what:58} {one.measured:>16}   asked {one.asked:16} {word}", flush=True)
    return all(one.is_met for one in targets)


_TOPOLOGY = """
centre = "bench"
[clusters.bench]
[regions.bench]
cluster = "bench"
[tenants.fleet]
"""


@contextmanager
def loaded_cluster(folder: Path) -> Iterator[LiveCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    topology = folder / "topology.toml"
    topology.write_text(_TOPOLOGY)
    settings = StackSettings(pulsar=PulsarSettings(heap_mb=768, direct_mb=768, full_compiler=True))
    with LocalStack(folder / "stack", topology=topology, settings=settings) as stack:
        place = LiveCluster.of(stack.pulsar["bench"])
        try:
            yield place
        finally:
            place.close()
