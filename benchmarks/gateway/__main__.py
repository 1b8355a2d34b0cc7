"""`make bench-gateway`: what a gateway holds for 100,000 devices, and what goes through it on real servers."""

import sys

from benchmarks.gateway import memory, noisy, revocation, speed

if __name__ == "__main__":
    for part in (memory, speed, noisy, revocation):
        if not sys.argv[1:] or part.__name__.rpartition(".")[2] in sys.argv[1:]:
            part.main()
