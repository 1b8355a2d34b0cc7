"""What a parser may take for one input, and the measuring of it."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

MAX_BYTES = 64 << 10
MAX_SECONDS = 0.05
"""The bound, which benchmarks hold; tests run beside other work, and allow BUSY times as much. A parser of files that
people write says another one."""
BUSY = 5
MAX_MEMORY_BYTES = 64 << 20
MAX_REASON_CHARACTERS = 2000
_TRIES = 5


class OutOfTime(AssertionError):
    """An input took more processor time than is allowed, in the best of several tries."""


class OutOfMemory(AssertionError):
    """An input took more than MAX_MEMORY_BYTES."""


class Target(NamedTuple):
    """A parser. `judge` parses, and returns whether the bytes were read or refused with the typed error; any other
    exception, and any law that does not hold, is a finding. `bounded`, if `judge` does more than to parse: what is held
    against the bounds of time and memory. `fuzzed_bytes`: the longest input that coverage finds its way with.
    """

    seeds: tuple[bytes, ...]
    judge: Callable[[bytes], object]
    bounded: Callable[[bytes], object] | None = None
    max_seconds: float = MAX_SECONDS
    fuzzed_bytes: int = MAX_BYTES

    def check(self, data: bytes, times: float = BUSY) -> None:
        check_bounds(self.bounded or self.judge, data, times * self.max_seconds)


def by_first_byte(*judges: Callable[[bytes], object]) -> Callable[[bytes], object]:
    return lambda data: judges[data[0] % len(judges)](data[1:]) if data else None


def tagged(kind: int, *contents: bytes) -> tuple[bytes, ...]:
    return tuple(bytes([kind]) + content for content in contents)


@contextmanager
def refused_as(*errors: type[Exception], most: int = MAX_REASON_CHARACTERS) -> Iterator[None]:
    try:
        yield
    except errors as error:
        check_refusal(error, most)


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
