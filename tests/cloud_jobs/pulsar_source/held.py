"""What a process holds while it plans, reads and acknowledges batches, with a token that is replaced again and again."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading import read_range
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster


class Held(NamedTuple):
    """What this process holds."""

    threads: int
    sockets: int
    memory_bytes: int


def what_is_held() -> Held:
    gc.collect()
    own = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    sockets = sum(1 for link in (own / "fd").iterdir() if link.is_symlink() and "socket:" in str(link.readlink()))
    return Held(int(status["Threads"]), sockets, int(status["VmRSS"].split()[0]) * 1024)


def held_after_each(driver: Driver, options: PulsarOptions, file: Path, tokens: Iterator[str], every: int) -> Iterator[Held]:
    """Batches of the driver, one after the other, without end; the token in the file is replaced before every n-th."""
    start = None
    number = 0
    while True:
        if number % every == 0:
            file.write_text(next(tokens))
        start = start or driver.initial()
        end = driver.latest(start, limited=True)
        for planned in driver.plan(start, end):
            assert sum(batch.num_rows for batch in read_range(options, planned)) == 1
        driver.commit(end)
        start = end
        number += 1
        yield what_is_held()


def tokens_of(cluster: GuardedCluster) -> Iterator[str]:
    """Tokens of the role that reads, no two the same."""
    until_s = time.time() + 7200
    while True:
        until_s += 1
        yield cluster.token("reader", until_s)
