"""`make bench-gateway`: what goes through a gateway on real servers, also with 100,000 devices.

Exit status 1: a limit is missed.
"""

import sys

from benchmarks.gateway import revocation, speed
from benchmarks.harness import run_parts

PARTS = {"fleet": speed.fleet, "speed": speed.main, "noisy": speed.noisy, "revocation": revocation.main}

if __name__ == "__main__":
    sys.exit(run_parts(__doc__, PARTS))
