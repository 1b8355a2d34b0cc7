"""`make bench-alerts`: one evaluation, the whole way of an alert hop by hop, and a killed alert process.

Exit status: 0 all limits are kept, 1 one is not.
"""

import sys

from benchmarks.alerts import evaluation, failover, path

if __name__ == "__main__":
    kept = [
        part.main()
        for part in (evaluation, path, failover)
        if not sys.argv[1:] or part.__name__.rpartition(".")[2] in sys.argv[1:]
    ]
    sys.exit(0 if all(kept) else 1)
