"""Hard worlds for published events: visits with hysteresis, corrections of late and changed fixes.

`python -m tests.geo.spatial.event_fuzz --pairs N --seed S --seconds T`. A pair is one track and one fence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
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
from tests.geo.spatial.exact import ExactFence, bits_of, place_at
from tests.geo.spatial.exact_fuzz import ExactWorld, Spot, world
from tests.geo.spatial.seeded import command, compared
from tests.geo.spatial.worlds import START_MS, every_fix, identified

_STEPS_MS = (1, 1_000, 10_000, 60_000, 300_000)
_DEGREE_M = 111_000.0
_AXIS_M, _FLATTENING = 6_378_137.0, 1 / 298.257223563


@dataclass(frozen=True)
class Side:
    inside: bool
    start_ms: Fraction
    end_ms: Fraction
    crossed: bool


@dataclass(frozen=True)
class VisitRules:
    """When a change of sides counts. `accuracy_m`: what each fix reported, NaN for nothing."""

    buffer_m: float
    min_stay_s: float
    accuracy_m: Sequence[float]


def sides_of(fence: ExactFence, track: Sequence[Spot], t_ms: Sequence[int]) -> tuple[list[Side], float]:
    """The stretches on each side of a border, and the shortest part of a segment, in degrees."""
    looks: list[tuple[Fraction, bool]] = []  # from when on, which side; each fix and each part between two meetings
    finest = math.inf
    for (p, q), (begin, until) in zip(pairwise(track), pairwise(t_ms), strict=True):
        start, end, turned = fence.placed(p, q)
        shape = fence.everywhere() if turned else fence
        cuts = shape.cuts(start, end)
        if start != end:
            finest = min(finest, *(float(high - low) * fence.degrees(start, end) for low, high in pairwise(cuts)))
        looks.append((Fraction(begin), shape.holds((*start, 1))))
        for low, high in pairwise(cuts):
            looks.append((begin + low * (until - begin), shape.holds(place_at(start, end, (low + high) / 2))))
        looks.append((Fraction(until), shape.holds((*end, 1))))
    found: list[Side] = []
    for at, (since, inside) in enumerate(looks):
        until_ms = looks[at + 1][0] if at + 1 < len(looks) else since
        if found and found[-1].inside == inside:
            found[-1] = Side(inside, found[-1].start_ms, until_ms, found[-1].crossed)
        else:
            found.append(Side(inside, since, until_ms, bool(found)))
    return found, finest


def visits_of(
    sides: Sequence[Side], shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: VisitRules
) -> tuple[list[tuple[float, float, bool, bool]], bool]:
    """(start, end, entered, left) of each visit; and whether it is sure, no distance or time being next to a limit."""
    kept, sure = [sides[0]], True
    for side in sides[1:]:
        stay_s = float(side.end_ms - side.start_ms) / 1000.0
        sure &= rules.min_stay_s == 0.0 or abs(stay_s - rules.min_stay_s) > 1e-6
        if stay_s < rules.min_stay_s:
            continue
        deep, clear = _deep(side, shape, track, t_ms, rules)
        sure &= clear
        if deep and kept[-1].inside != side.inside:
            kept.append(side)
    ends = [*(side.start_ms for side in kept[1:]), Fraction(t_ms[-1])]
    return [
        (float(side.start_ms), float(end), at > 0, at + 1 < len(kept))
        for at, (side, end) in enumerate(zip(kept, ends, strict=True))
        if side.inside
    ], sure


def _deep(
    side: Side, shape: shapely.Geometry, track: Sequence[Spot], t_ms: Sequence[int], rules: VisitRules
) -> tuple[bool, bool]:
    """Is any place of a stay as far from the border as it must be; and is that clear, no distance next to the limit?"""
    found, clear = [False, False], True
    for row, (begin, until) in enumerate(pairwise(t_ms), start=1):
        low, high = max(Fraction(begin), side.start_ms), min(Fraction(until), side.end_ms)
        # a stay of no length at a fix is judged by what that fix reported, with the segment that ends there
        if low > high or (low == high and (side.start_ms < side.end_ms or low == begin)):
            continue
        # a double distinguishes times of today that are a quarter of a microsecond apart
        clear &= not 0 < high - low < Fraction(1, 1000)
        (px, py), (qx, qy) = track[row - 1], track[row]
        shares = (float((at - begin) / (until - begin)) for at in (low, high))
        ends = [(px + (qx - px) * share, py + (qy - py) * share) for share in shares]
        doubt = max(rules.buffer_m, 0.0 if math.isnan(rules.accuracy_m[row]) else rules.accuracy_m[row])
        if doubt == 0.0:
            return True, clear
        # how far it drives until a double distinguishes the time from the one before
        moved = math.hypot(qx - px, qy - py) * 111_000.0 * 5e-4 / (until - begin)
        blur = 2e-3 * doubt + 1e-6 + moved
        try:
            for at, limit in enumerate((doubt - blur, doubt + blur)):
                found[at] = found[at] or _away(shape, ends[0], ends[1], limit)
        except shapely.errors.GEOSException:  # a buffer that it cannot make, by its rounding
            clear = False
    return found[1], clear and found[0] == found[1]


def _away(shape: shapely.Geometry, start: Spot, end: Spot, away_m: float) -> bool:
    """Is any place on a straight way so far from the border? What is nearer is a buffer of it, on a flat earth."""
    parts = min(math.ceil(abs(end[1] - start[1]) / 0.02), 50) or 1
    for at in range(parts):
        p, q = (
            [a + (b - a) * share for a, b in zip(start, end, strict=True)] for share in (at / parts, (at + 1) / parts)
        )
        x, y = (p[0] + q[0]) / 2, (p[1] + q[1]) / 2
        if _border_m(shape, x, y) >= away_m:
            return True
        scale = _degree_m(y)
        near = shapely.transform(shape.boundary, lambda corners, x=x, y=y, scale=scale: (corners - (x, y)) * scale)
        way = shapely.LineString([((one[0] - x) * scale[0], (one[1] - y) * scale[1]) for one in (p, q)])
        if way.length and not shapely.difference(way, shapely.buffer(near, away_m, quad_segs=64)).is_empty:
            return True
    return False


def _degree_m(y: float) -> tuple[float, float]:
    square = _FLATTENING * (2 - _FLATTENING)
    bent = 1.0 - square * math.sin(math.radians(y)) ** 2
    east = math.radians(_AXIS_M / math.sqrt(bent) * math.cos(math.radians(y)))
    return east, math.radians(_AXIS_M * (1.0 - square) / bent**1.5)


def _border_m(shape: shapely.Geometry, x: float, y: float) -> float:
    near = shapely.transform(shape.boundary, lambda corners: (corners - (x, y)) * _degree_m(y))
    return float(shapely.distance(near, shapely.Point(0.0, 0.0)))


@dataclass
class EventCounts:
    pairs: int = 0
    unsure: int = 0
    visits: int = 0
    jitter: int = 0
    corrected: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
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
