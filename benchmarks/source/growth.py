"""`make bench-source-growth`: what a process holds over many micro-batches and rotations of its token."""

import sys

from benchmarks.harness import benchmark_folder
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster
from tests.cloud_jobs.pulsar_source.held import Held, halves, held_over

BATCHES = 1000
ROTATIONS = 100
_MB = 1 << 20


def main() -> None:
    with benchmark_folder("source-growth") as folder:
        server = GuardedCluster(folder)
        server.start()
        server.wait()
        try:
            server.allow_reader()
            report(list(held_over(server, folder, BATCHES, ROTATIONS)))
        finally:
            server.stop()


def report(held: list[Held]) -> None:
    first, second = halves(held)
    write = sys.stdout.write
    write(f"{BATCHES:,} micro-batches with {ROTATIONS} rotations of the token, the most held in each half\n\n")
    write("| what | first half | second half |\n|---|---|---|\n")
    write(f"| threads | {first.threads} | {second.threads} |\n")
    write(f"| sockets | {first.sockets} | {second.sockets} |\n")
    write(f"| memory | {first.memory_bytes / _MB:.0f} MiB | {second.memory_bytes / _MB:.0f} MiB |\n\n")
    at = range(BATCHES // 10 - 1, BATCHES, BATCHES // 10)
    write("memory after each tenth, MiB: " + ", ".join(f"{held[batch].memory_bytes / _MB:.0f}" for batch in at) + "\n")


if __name__ == "__main__":
    main()
