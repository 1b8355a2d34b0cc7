"""`make bench-gateway`: what a gateway holds for 100,000 devices, and what goes through it on real servers."""

import sys

from benchmarks.gateway import memory, noisy, revocation, speed

if __name__ == "__main__":
    if sys.argv[1:] == ["noisy"]:
        noisy.main()
    else:
        memory.main()
        speed.main()
        revocation.main()
