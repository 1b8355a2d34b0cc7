"""`make bench-gateway`: what a gateway holds for 100,000 devices, and what goes through it on real servers."""

from benchmarks.gateway import memory, revocation, speed

if __name__ == "__main__":
    memory.main()
    speed.main()
    revocation.main()
