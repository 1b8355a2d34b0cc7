"""When a fence is in force: stretches of time, as sorted instants at which it switches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from geo.spatial.ragged import Bools, Floats, Ints, distinct

FOREVER_MS = 1 << 62


class Activity:
    """Half-open stretches [from, until) of Unix milliseconds; immutable, in order, without overlap."""

    __slots__ = ("switches",)

    def __init__(self, stretches: Iterable[tuple[int | None, int | None]]) -> None:
        known = sorted((-FOREVER_MS if a is None else a, FOREVER_MS if b is None else b) for a, b in stretches)
        merged: list[list[int]] = []
        for start, end in known:
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif start < end:
                merged.append([start, end])
        self.switches: Ints = np.array(merged, dtype=np.int64).reshape(-1)

    @classmethod
    def of_columns(cls, start: Ints, until: Ints) -> Activity:
        """The union of the stretches [start, until), in any order; empty ones are passed over."""
        some = np.flatnonzero(start < until)
        some = some[np.argsort(start[some], kind="stable")]
        begins, reach = start[some], np.maximum.accumulate(until[some])
        opens = np.ones(len(some), dtype=np.bool_)
        opens[1:] = begins[1:] > reach[:-1]
        made = cls(())
        made.switches = np.column_stack([begins[opens], reach[np.append(opens[1:], True)[: len(some)]]]).reshape(-1)
        return made

    def stretches(self) -> list[tuple[int, int]]:
        """The stretches, with ±`FOREVER_MS` for an open end."""
        return [(int(a), int(b)) for a, b in self.switches.reshape(-1, 2)]

    def at(self, t_ms: NDArray[np.integer] | Floats) -> Bools:
        """Is it in force at these times?"""
        return np.asarray(np.searchsorted(self.switches, t_ms, side="right") % 2 == 1, dtype=np.bool_)

    def instants(self) -> Ints:
        """The switches that are not at the ends of time."""
        return self.switches[np.abs(self.switches) < FOREVER_MS]

    def __and__(self, other: Activity) -> Activity:
        instants = distinct(np.concatenate([self.switches, other.switches]))
        force = self.at(instants) & other.at(instants)
        changed = np.flatnonzero(np.diff(np.concatenate([[False], force, [False]]).astype(np.int8)))
        both = Activity(())
        # past the last instant neither is in force, except for ever
        both.switches = np.append(instants, FOREVER_MS)[changed]
        return both

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activity) and bool(np.array_equal(self.switches, other.switches))

    def __hash__(self) -> int:
        return hash(self.switches.tobytes())


ALWAYS = Activity([(None, None)])


def begin_ms(active: Activity) -> int:
    """When something first comes into force; it is `FOREVER_MS` for what never does."""
    return int(active.switches[0]) if len(active.switches) else FOREVER_MS
