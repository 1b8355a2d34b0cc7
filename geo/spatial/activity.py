"""When a fence is in force: stretches of time, as sorted instants at which it switches, and hours of each week."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.hours import DAY_MS, Hours, instants
from geo.spatial.ragged import Bools, Floats, Ints, distinct

FOREVER_MS: Final = 1 << 62
# no hour of a week is skipped so many weeks in a row
_SURELY_OPEN_MS: Final = 63 * DAY_MS


class Activity:
    """Half-open stretches [from, until) of Unix milliseconds; immutable, in order, without overlap.

    With `hours` it is in force in those of them only.
    """

    __slots__ = ("hours", "switches")

    def __init__(self, stretches: Iterable[tuple[int | None, int | None]], hours: Hours | None = None) -> None:
        known = sorted((-FOREVER_MS if a is None else a, FOREVER_MS if b is None else b) for a, b in stretches)
        united: list[list[int]] = []
        for start, end in known:
            # Two that touch are one: between them there is no switch.
            if united and start <= united[-1][1]:
                united[-1][1] = max(united[-1][1], end)
            elif start < end:
                united.append([start, end])
        self.hours = hours
        self.switches: Ints = np.array(united, dtype=np.int64).reshape(-1)

    def stretches(self) -> list[tuple[int, int]]:
        """The stretches, with ±`FOREVER_MS` for an open end, whatever the hours are."""
        return [(int(a), int(b)) for a, b in self.switches.reshape(-1, 2)]

    def at(self, t_ms: NDArray[np.integer] | Floats) -> Bools:
        """Is it in force at these times?"""
        whole = whole_ms(t_ms)
        force = np.searchsorted(self.switches, whole, side="right") % 2 == 1
        if self.hours is not None:
            force &= self.hours.at(whole)
        return np.asarray(force, dtype=np.bool_)

    def ever(self) -> bool:
        """Is it in force at any time?"""
        if self.hours is None:
            return len(self.switches) > 0
        if not len(self.hours.switches):
            return False
        return any(until - start > _SURELY_OPEN_MS or self._open_in(start, until) for start, until in self.stretches())

    def _open_in(self, start: int, until: int) -> bool:
        assert self.hours is not None
        limits = np.array([start]), np.array([until])
        moments = np.append(instants(self.hours.timezone, self.hours.switches, *limits), start)
        return bool(self.hours.at(moments[moments < until]).any())

    def __and__(self, other: Activity) -> Activity:
        """When both are in force. Raises ValueError if both have hours: there is no need for two clocks."""
        if self.hours is not None and other.hours is not None:
            raise ValueError("both have weekly hours")
        ends = distinct(np.concatenate([self.switches, other.switches]))
        force = np.searchsorted(self.switches, ends, side="right") % 2 == 1
        force &= np.searchsorted(other.switches, ends, side="right") % 2 == 1
        changed = np.flatnonzero(np.diff(np.concatenate([[False], force, [False]]).astype(np.int8)))
        both = Activity((), other.hours if self.hours is None else self.hours)
        # past the last instant neither is in force, except for ever
        both.switches = np.append(ends, FOREVER_MS)[changed]
        return both

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Activity)
            and bool(np.array_equal(self.switches, other.switches))
            and self.hours == other.hours
        )

    def __hash__(self) -> int:
        return hash((self.switches.tobytes(), self.hours))


ALWAYS: Final = Activity([(None, None)])


def whole_ms(t_ms: NDArray[np.integer] | Floats) -> Ints:
    """Times in whole milliseconds: as switches are at such, nothing changes within one."""
    # A cast alone rounds towards zero: times before 1970 would be a millisecond late.
    return np.floor(t_ms).astype(np.int64) if t_ms.dtype.kind == "f" else t_ms.astype(np.int64, copy=False)


def begin_ms(active: Activity) -> int:
    """When the first stretch begins; it is `FOREVER_MS` where there is none."""
    return int(active.switches[0]) if len(active.switches) else FOREVER_MS
