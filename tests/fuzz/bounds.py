"""What a parser may take for one input, and the measuring of it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

MAX_BYTES = 64 << 10
MAX_SECONDS = 0.05
"""The bound, which benchmarks hold; tests run beside other work, and allow BUSY times as much. A parser of files that
people write says another one, as `MAX_SECONDS` of its module."""
BUSY = 5
MAX_MEMORY_BYTES = 64 << 20
MAX_REASON_CHARACTERS = 2000
_TRIES = 5


class OutOfTime(AssertionError):
    """An input took more processor time than is allowed, in the best of several tries."""


class OutOfMemory(AssertionError):
    """An input took more than MAX_MEMORY_BYTES."""


def bounded(module: Any) -> Callable[[bytes], object]:
    """What of a registered parser is held against the bounds."""
    parser: Callable[[bytes], object] = getattr(module, "bounded", module.judge)
    return parser


def max_seconds(module: Any) -> float:
    """How long a registered parser may take."""
    seconds: float = getattr(module, "MAX_SECONDS", MAX_SECONDS)
    return seconds


def fuzzed_bytes(module: Any) -> int:
    """The longest input that a registered parser is fuzzed with."""
    length: int = getattr(module, "FUZZED_BYTES", MAX_BYTES)
    return length


def check_bounds(judge: Callable[[bytes], object], data: bytes, max_seconds: float = BUSY * MAX_SECONDS) -> None:
    """Judges the input in bounded time and memory. Raises OutOfTime, OutOfMemory, and whatever `judge` raises."""
    best_s = min(_seconds(judge, data, max_seconds))
    if best_s > max_seconds:
        raise OutOfTime(f"{len(data)} bytes took {best_s * 1000:.0f} ms, {max_seconds * 1000:.0f} are allowed")
    tracemalloc.start()
    try:
        judge(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > MAX_MEMORY_BYTES:
        raise OutOfMemory(f"{len(data)} bytes took {peak >> 20} MiB, {MAX_MEMORY_BYTES >> 20} are allowed")


def check_refusal(error: BaseException, most: int = MAX_REASON_CHARACTERS) -> None:
    """The text of a typed error is for a log and a screen: bounded, however long the input is."""
    assert str(error).isprintable(), f"a refusal that moves the cursor: {error!s:.200}"
    assert len(str(error)) <= most, f"a refusal of {len(str(error))} characters: {error!s:.200}"


def _seconds(judge: Callable[[bytes], object], data: bytes, enough_s: float) -> list[float]:
    """How long it took: tried again only while it is too slow, for the machine may be busy."""
    taken: list[float] = []
    while len(taken) < _TRIES and (not taken or taken[-1] > enough_s):
        start = time.process_time()
        judge(data)
        taken.append(time.process_time() - start)
    return taken
