"""Hard worlds for published events: visits with hysteresis, corrections of late and changed fixes.

`python -m tests.geo.spatial.event_fuzz --pairs N --seed S --seconds T`. A pair is one track and one fence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
import shapely

from geo.spatial import (
    EventSettings,
    Fence,
    FenceSet,
    Fixes,
    GeofenceEvent,
    Revision,
    Tracks,
    VisitSettings,
    find_events,
    find_visits,
    in_force,
    new_revisions,
)
from geo.spatial.clip import RESOLUTION_DEG
from tests.geo.spatial.exact import ExactFence, bits_of
from tests.geo.spatial.exact_fuzz import ExactWorld, Spot, world
from tests.geo.spatial.exact_visits import VisitRules, sides_of, visits_of
from tests.geo.spatial.seeded import command, compared
from tests.geo.spatial.worlds import START_MS, every_fix, identified

_STEPS_MS = (1, 1_000, 10_000, 60_000, 300_000)
_DEGREE_M = 111_000.0


@dataclass
class EventCounts:
    """What was compared, and what differed."""

    pairs: int = 0
    unsure: int = 0
    visits: int = 0
    jitter: int = 0
    corrected: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """In a line."""
        return (
            f"{self.pairs:,} tracks in fences, {len(self.faults)} differ; {self.unsure:,} next to a limit,"
            f" {self.visits:,} visits, {self.jitter:,} changes of sides that are none, {self.corrected:,} corrections"
        )


def tracks_of(track: list[Spot], t_ms: list[int], accuracy_m: list[float]) -> Tracks:
    return every_fix(
        Fixes(
            device=[0] * len(track),
            t_ms=t_ms,
            lat=[y for _, y in track],
            lon=[x for x, _ in track],
            accuracy_m=accuracy_m,
        )
    )


def compare(made: ExactWorld, counts: EventCounts) -> None:
    """Every fence's visits, by the engine and by their definition; and corrections."""
    random = Random(f"events of {made.seed}")
    shapes = [shape for shape in made.shapes if _plain(shape.bounds)]
    track = made.track[:20]
    if not shapes or not _plain(shapely.LineString(track).bounds):
        return
    t_ms = [START_MS]
    while len(t_ms) < len(track):
        t_ms.append(t_ms[-1] + random.choice(_STEPS_MS))
    size_m = _DEGREE_M * max(np.ptp(np.array(track), axis=0))
    rules = VisitRules(
        random.choice((0.0, size_m * 10 ** random.uniform(-3, 0))),
        random.choice((0.0, 10 ** random.uniform(0, 2.7))),
        [random.choice((math.nan, size_m * 10 ** random.uniform(-3, 0))) for _ in track],
    )
    _visits(made.seed, shapes, (track, t_ms), rules, counts)
    _corrected(made.seed, shapes, (track, t_ms), counts)


def _plain(bounds: tuple[float, float, float, float]) -> bool:
    west, south, east, north = bounds
    return max(-west, east) < 179.0 and max(-south, north) < 85.0


def _visits(
    seed: int, shapes: list[shapely.Geometry], way: tuple[list[Spot], list[int]], rules: VisitRules, counts: EventCounts
) -> None:
    track, t_ms = way
    fences = FenceSet([Fence(f"{number:03}", shape) for number, shape in enumerate(shapes)])
    asked = VisitSettings(buffer_m=rules.buffer_m, min_stay_s=rules.min_stay_s)
    found = find_visits(tracks_of(track, t_ms, list(rules.accuracy_m)), fences, asked)
    steps = np.hypot(*np.diff(np.array(track), axis=0).T)
    # a meeting is where it is within the resolution, which on a slow way is a while
    blur_ms = float((8 * RESOLUTION_DEG / np.maximum(steps, 1e-9) * np.diff(t_ms))[steps > 0].max(initial=0.0))
    bits = bits_of([*np.ravel(track).tolist(), *np.ravel(shapely.get_coordinates(shapes)).tolist()])
    for number, shape in enumerate(shapes):
        sides, finest = sides_of(ExactFence(shape, bits), track, t_ms)
        expected, sure = visits_of(sides, shape, track, t_ms, rules)
        counts.pairs += 1
        if not sure or finest <= 1e-11:
            counts.unsure += 1
            continue
        counts.visits += len(expected)
        counts.jitter += len(sides) - 1 - sum(entered + left for _, _, entered, left in expected)
        mine = np.flatnonzero(found.fence == number)
        columns = (found.start_ms, found.end_ms, found.entered, found.left)
        got = list(zip(*(column[mine].tolist() for column in columns), strict=True))
        if [row[2:] for row in got] != [row[2:] for row in expected] or any(
            abs(a - b) > 0.01 + blur_ms
            for one, other in zip(got, expected, strict=True)
            for a, b in zip(one, other, strict=True)
        ):
            counts.faults.append(f"seed {seed}: fence {number}, {rules}: {got} for {expected}")


def _corrected(
    seed: int, shapes: list[shapely.Geometry], way: tuple[list[Spot], list[int]], counts: EventCounts
) -> None:
    """Fixes come late and are changed afterwards: what is in force in the end is what they say in the end."""
    (track, t_ms), random = way, Random(f"arrival of {seed}")
    fences, asked = FenceSet([Fence(f"f{at}", shape) for at, shape in enumerate(shapes)]), EventSettings(dwell_s=30.0)
    unknown = [math.nan] * len(track)
    known: dict[int, Spot] = {}
    emitted: list[Revision[GeofenceEvent]] = []
    order = [*random.sample(range(len(track)), len(track)), *random.choices(range(len(track)), k=5)]
    for at, row in enumerate(order):
        # some are computed somewhere else first
        known[row] = random.choice(track) if at < len(track) and random.random() < 0.3 else track[row]
        if at % 4 == 3 or at >= len(track):
            rows = sorted(known)
            tracks = tracks_of([known[one] for one in rows], [t_ms[one] for one in rows], unknown[: len(rows)])
            emitted += new_revisions(emitted, identified(tracks, find_events(tracks, fences, settings=asked)))
    tracks = tracks_of(track, t_ms, unknown)
    whole = identified(tracks, find_events(tracks, fences, settings=asked))
    news = new_revisions(emitted, whole)
    emitted += news
    counts.corrected += sum(one.revision > 0 for one in emitted)
    names = [(one.id, one.revision) for one in emitted]
    gaps = [one for one in emitted if one.revision and (one.id, one.revision - 1) not in names]
    if in_force(emitted) != whole or len(set(names)) < len(names) or gaps:
        counts.faults.append(f"seed {seed}: what is in force is not what the fixes say")
    if new_revisions(emitted, whole):
        counts.faults.append(f"seed {seed}: the same is published again")


def run(seed: int, pairs: int, seconds: float = math.inf) -> tuple[EventCounts, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    return compared(EventCounts(), lambda number, counts: compare(world(number), counts), seed, pairs, seconds)


if __name__ == "__main__":
    command(run, __doc__, pairs=100_000)
