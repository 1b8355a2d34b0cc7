"""`make bench-alerts`: what the evaluation of a region does in a second."""

import sys

from benchmarks.alerts import evaluation

if __name__ == "__main__":
    for part in (evaluation,):
        if not sys.argv[1:] or part.__name__.rpartition(".")[2] in sys.argv[1:]:
            part.main()
