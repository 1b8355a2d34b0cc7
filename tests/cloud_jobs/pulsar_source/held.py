"""What a process holds while it plans, reads and acknowledges, with a token that is replaced again and again."""

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.range_reader import read_range
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster


class Held(NamedTuple):
    threads: int
    sockets: int
    memory_bytes: int


def what_is_held() -> Held:
    gc.collect()
    own = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    sockets = sum(1 for link in (own / "fd").iterdir() if link.is_symlink() and "socket:" in str(link.readlink()))
    return Held(int(status["Threads"]), sockets, int(status["VmRSS"].split()[0]) * 1024)


def guarded_options(cluster: GuardedCluster, token: Path, topic: str) -> PulsarOptions:
    """Batches of one message of a topic, through the subscription of its name."""
    return PulsarOptions.parse(
        {
            "clusters": cluster.text,
            "topics": topic,
            "subscription": "held",
            "tokenFile": str(token),
            "tlsCa": str(cluster.certificate),
            "maxMessagesPerTrigger": "1",
        }
    )


def held_over(cluster: GuardedCluster, folder: Path, batches: int, rotations: int) -> Iterator[Held]:
    """What this process holds after each of `batches` batches, over which the token is replaced `rotations` times."""
    topic, file = f"persistent://public/default/held-{batches}", folder / "token"
    cluster.fill(topic, batches)
    until_s = time.time() + 7200
    file.write_text(cluster.token("reader", until_s))
    options = guarded_options(cluster, file, topic)
    driver = Driver(options)
    start = driver.begin()
    for batch in range(batches):
        if batch % (batches // rotations) == 0:
            file.write_text(cluster.token("reader", until_s + batch + 1))
        end = driver.choose_end(start, limited=True)
        assert sum(rows.num_rows for planned in driver.plan(start, end) for rows in read_range(options, planned)) == 1
        driver.commit(end)
        start = end
        yield what_is_held()
    driver.close()


def halves(held: Sequence[Held]) -> tuple[Held, Held]:
    middle = len(held) // 2
    first, second = (Held(*map(max, zip(*part, strict=True))) for part in (held[:middle], held[middle:]))
    return first, second
