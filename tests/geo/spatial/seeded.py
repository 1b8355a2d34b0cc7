"""Worlds from seeds, compared one after the other: in a test for a number of pairs, by a command for hours."""

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest


class Comparison(Protocol):
    pairs: int
    faults: list[str]

    def summary(self) -> str: ...


Counts = TypeVar("Counts", bound=Comparison)


def compared(
    counts: Counts, compare: Callable[[int, Counts], None], seed: int, pairs: int, seconds: float = math.inf
) -> tuple[Counts, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    until = time.monotonic() + seconds
    while counts.pairs < pairs and time.monotonic() < until:
        try:
            compare(seed, counts)
        except Exception as fault:
            fault.add_note(f"the world's seed: {seed}")
            raise
        seed += 1
    return counts, seed - 1


def compared_for_long(
    run: Callable[[int, int, float], tuple[Counts, int]], pairs: int, seconds: float, capsys: pytest.CaptureFixture[str]
) -> Counts:
    """What many worlds from a seed of today gave, none of which differed; the seeds are printed."""
    seed = time.time_ns() // 1_000_000_000 * 1000
    counts, last = run(seed, pairs, seconds)
    with capsys.disabled():
        sys.stdout.write(f"seeds {seed} to {last}: {counts.summary()}\n")  # what was tried is part of the result
    assert counts.faults == []
    return counts


def command(run: Callable[[int, int, float], tuple[Comparison, int]], what: str | None, pairs: int) -> None:
    """Runs from the command line; ends with 1 if anything differed."""
    parser = argparse.ArgumentParser(description=(what or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--seed", type=int, default=0, help="that of the first world; the next has the next")
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    counts, last = run(options.seed, options.pairs, options.seconds)
    sys.stdout.write("".join(f"{fault}\n" for fault in counts.faults))
    sys.stdout.write(f"seeds {options.seed} to {last}: {counts.summary()}\n")
    raise SystemExit(bool(counts.faults))
