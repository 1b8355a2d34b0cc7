"""Python's search for cycles of objects, put off while much is made that has none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycles() -> Iterator[None]:
    """Nothing that the block makes is in a cycle: it is freed by its counts alone, and not looked through again and
    again. For bounded work: a cycle that it makes all the same is held until the block ends."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
