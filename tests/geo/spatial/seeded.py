"""Worlds from seeds, compared one after the other: in a test for a number of pairs, by a command for hours."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest


class Comparison(Protocol):
    """What was compared so far."""

    pairs: int
    faults: list[str]

    def summary(self) -> str: ...


Tally = TypeVar("Tally", bound=Comparison)


def compared(
    tally: Tally, compare: Callable[[int, Tally], None], seed: int, pairs: int, seconds: float = math.inf
) -> tuple[Tally, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    until = time.monotonic() + seconds
    while tally.pairs < pairs and time.monotonic() < until:
        try:
            compare(seed, tally)
        except Exception as fault:
            fault.add_note(f"the world's seed: {seed}")
            raise
        seed += 1
    return tally, seed - 1


def compared_for_long(
    run: Callable[[int, int, float], tuple[Tally, int]], pairs: int, seconds: float, capsys: pytest.CaptureFixture[str]
) -> Tally:
    """What many worlds from a seed of today gave, none of which differed; the seeds are told."""
    seed = time.time_ns() // 1_000_000_000 * 1000
    tally, last = run(seed, pairs, seconds)
    with capsys.disabled():
        sys.stdout.write(f"seeds {seed} to {last}: {tally.summary()}\n")  # what was tried is part of the result
    assert tally.faults == []
    return tally


def command(run: Callable[[int, int, float], tuple[Comparison, int]], what: str | None, pairs: int) -> None:
    """Runs from the command line; ends with 1 if anything differed."""
    parser = argparse.ArgumentParser(description=(what or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--seed", type=int, default=0, help="that of the first world; the next has the next")
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    tally, last = run(options.seed, options.pairs, options.seconds)
    sys.stdout.write("".join(f"{fault}\n" for fault in tally.faults))
    sys.stdout.write(f"seeds {options.seed} to {last}: {tally.summary()}\n")
    raise SystemExit(bool(tally.faults))
