"""Visits: from entering a fence to leaving it, with hysteresis, so that jitter at a border makes no visit.

Metering counts every metre exactly (`pieces`); visits are what is reported to people. A device is taken to be on the
other side of a border only once it is there for sure: at least `min_stay_s` long and, at one place of it, at least
`buffer_m` (or the accuracy that the fix reported, if that is worse) away from the border. The time of an entry or
exit stays the exact crossing that began it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geo.spatial.fence_set import FenceSet
from geo.spatial.ragged import Bools, Floats, Ints, run_starts
from geo.spatial.sides import Course, Sides, VisitSettings, far_away, find_sides, joined_sides, lasting
from geo.spatial.tracks import Tracks

__all__ = ["VisitSettings", "Visits", "find_visits", "joined_visits"]


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """One row a visit, sorted by device, fence and time; `fence` indexes the set's `names`.

    `entered`: it began with a crossing; else the track began (or went on after a break) inside, or the fence came
    into force. `left`: it ended with a crossing; else the track ended or broke, or the fence went out of force.
    """

    device: Ints
    fence: Ints
    start_ms: Floats
    end_ms: Floats
    entered: Bools
    left: Bools

    def __len__(self) -> int:
        return len(self.device)


def find_visits(tracks: Tracks, fences: FenceSet, settings: VisitSettings | None = None) -> Visits:
    """The visits of all devices to all fences."""
    settings, course = settings or VisitSettings(), Course(tracks)
    sides = find_sides(course, fences)
    # The cheap question first: only what lasts long enough is measured against the border.
    sure = lasting(sides, settings)
    ask = np.flatnonzero(sure)
    sure[ask] = far_away(course, sides, ask, fences, settings)
    # the first side is where the track began: there is nothing to compare it with
    return joined_visits(course, sides.rows(sure | run_starts(sides.course)))


def joined_visits(course: Course, sides: Sides) -> Visits:
    """Visits from the stretches that count: neighbours on the same side are one."""
    joined = joined_sides(course, sides)
    left = joined.followed() & np.append(joined.crossed[1:], False)[: len(joined)]
    device = course.device(joined.track)
    order = np.flatnonzero(joined.inside)
    order = order[np.lexsort((joined.start_ms[order], joined.fence[order], device[order]))]
    return Visits(
        device[order],
        joined.fence[order],
        joined.start_ms[order],
        joined.end_ms[order],
        joined.crossed[order],
        left[order],
    )
