"""What all benchmarks share: a folder that goes, and the table of figures beside what is asked of them."""

import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog


@contextmanager
def benchmark_folder(name: str) -> Iterator[Path]:
    """A folder that is removed at the end; after an error it stays, for the logs of the servers."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        yield folder
    except Exception:
        sys.stderr.write(f"what the servers wrote is kept: {folder}\n")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


class Figure(NamedTuple):
    """One row of a table. `met`: whether the limit is kept; None where the table does not judge it."""

    what: str
    measured: str
    asked: str = ""
    met: bool | None = None


def print_figures(title: str, figures: Iterable[Figure]) -> bool:
    """Prints each figure as it comes; False where a limit was not kept."""
    print(f"\n{title}\n\n| what | asked | measured |\n|---|---|---|")
    kept = True
    for one in figures:
        word = {None: "", True: " (met)", False: " (NOT MET)"}[one.met]
        print(f"| {one.what} | {one.asked} | {one.measured}{word} |", flush=True)
        kept &= one.met is not False
    return kept


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share does not exceed; infinite without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.inf


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
