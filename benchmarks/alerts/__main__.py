"""`make bench-alerts`: one evaluation, the way of an alert, a killed process. Exit status 1: a limit is missed."""

import sys

from benchmarks.alerts import evaluation, path

PARTS = {"evaluation": evaluation.main, "path": path.path, "failover": path.failover}

if __name__ == "__main__":
    kept = [PARTS[name]() for name in sys.argv[1:] or PARTS]
    sys.exit(0 if all(kept) else 1)
