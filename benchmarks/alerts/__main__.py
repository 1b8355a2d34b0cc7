"""`make bench-alerts`: one evaluation, the way of an alert, a killed process. Exit status 1: a limit is missed."""

import sys

from benchmarks.alerts import evaluation, path
from benchmarks.harness import run_parts

PARTS = {"evaluation": evaluation.main, "path": path.path, "failover": path.failover}

if __name__ == "__main__":
    sys.exit(run_parts(__doc__, PARTS))
