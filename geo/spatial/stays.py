"""Stretches of time inside fences, joined as they come: a day in many fences is a few rows, not its fixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.ragged import Bools, Floats, Ints, lexical, run_starts, stacked

MAX_ROWS_HELD: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Stays:
    """Stretches inside `fence` (a name), sorted by group, fence and time; what follows on in one group is one row.

    `group`: an unbroken track, or a device. `segment`: where a stretch begins. `entry`: it begins with a crossing;
    `leaves`: it ends with one. `speed`: the highest on it, m/s.
    """

    group: Ints
    fence: Ints
    segment: Ints
    start_ms: Floats
    end_ms: Floats
    entry: Bools
    leaves: Bools
    speed: Floats

    def __len__(self) -> int:
        return len(self.group)


def joined_stays(parts: Iterable[Stays]) -> Stays:
    """All stretches of some parts, joined: those of a segment and fence are given in order of time.

    Holds at most about `MAX_ROWS_HELD` rows more than there are in the end.
    """
    whole, waiting, held = _none(), list[Stays](), 0
    for part in parts:
        waiting.append(_joined([part]))
        held += len(waiting[-1])
        # As much again as there is: joined at every part, a long result would be sorted over and over.
        if held > max(MAX_ROWS_HELD, len(whole)):
            whole, waiting, held = _joined([whole, *waiting]), [], 0
    return waiting[0] if len(waiting) == 1 and not len(whole) else _joined([whole, *waiting])


def _none() -> Stays:
    whole, real, flag = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.bool_)
    return Stays(whole, whole, whole, real, real, flag, flag, real)


def _joined(parts: list[Stays]) -> Stays:
    group, fence, segment, start, end, entry, leaves, speed = stacked(parts)
    if not len(group):
        return _none()
    order = lexical(group, fence, segment)
    group, fence, segment, speed = (part[order] for part in (group, fence, segment, speed))
    start, end, entry, leaves = start[order], end[order], entry[order], leaves[order]
    opens = run_starts(group, fence)
    opens[1:] |= (start[1:] != end[:-1]) | leaves[:-1] | entry[1:]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(opens)) - 1
    most = np.maximum.reduceat(speed, first)
    return Stays(group[first], fence[first], segment[first], start[first], end[last], entry[first], leaves[last], most)
