"""Hard worlds with a clock: versions of other shapes, weekly windows and dates.

The engine must find in them what whole numbers find; and there are laws that hold whatever the world.

`python -m tests.geo.spatial.timed_fuzz --pairs N --seed S --seconds T`. A pair is one segment and one fence or zone.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely import Polygon, box

from geo.spatial import OUTSIDE, Activity, Fence, FenceSet, Gate, GateSet, Pieces, Tracks, ZoneSet, pieces_by_fence
from geo.spatial.clip import RESOLUTION_DEG, segments_of
from tests.geo.spatial.exact import ExactFence, bits_of
from tests.geo.spatial.exact_time import ExactHours, ExactVersion, Stay
from tests.geo.spatial.seeded import command, compared
from tests.geo.spatial.timed_world import TimedWorld, timed_world, tracks_of

Tables: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
Bools = NDArray[np.bool_]


@dataclass
class TimedCounts:
    pairs: int = 0
    fine: int = 0
    switches: int = 0
    entries: int = 0
    halves: int = 0
    gates: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"{self.pairs:,} pairs with versions and windows, {len(self.faults)} differ; {self.fine:,} finer than the"
            f" engine distinguishes; {self.entries:,} entries, {self.switches:,} segments with a switch in them,"
            f" {self.halves:,} cut in halves, {self.gates:,} pairs with a dated gate"
        )


@dataclass(frozen=True)
class EngineResult:
    """What the engine found. `plain`: by segment and name, where it distinguishes all meetings."""

    fences: FenceSet
    pieces: Pieces
    sums: Tables
    plain: Bools


def compare(made: TimedWorld, counts: TimedCounts) -> None:
    """Every segment in every fence and zone, by the engine and in whole numbers; and the laws."""
    if not made.versions:
        return
    fences, tracks = [one.fence() for one in made.versions], tracks_of(made)
    zones, every = ZoneSet(fences), FenceSet(fences)
    split, own = zones.split(tracks), pieces_by_fence(tracks, every)
    _conserved(made, split, counts)
    sums = _sums(own, len(made.track), len(every.names)), _sums(split, len(made.track), len(zones.names))
    hours = _exact(made)
    plain = np.zeros(sums[0][0].shape, dtype=np.bool_)
    segments = segments_of(tracks)
    for end in range(1, len(made.track)):
        ends, times = (made.track[end - 1], made.track[end]), (made.t_ms[end - 1], made.t_ms[end])
        counts.switches += bool(hours.switches(*times))
        length = math.hypot(segments.qx[end - 1] - segments.px[end - 1], segments.qy[end - 1] - segments.py[end - 1])
        for kind, table in zip(("fence", "zone"), sums, strict=True):
            if kind == "zone" and (end + made.seed) % 3:
                continue
            for number, name in enumerate(every.names):
                expected, finest = _cached(hours, name, kind).along(ends, times)
                got = [float(column[end, number]) for column in table]
                counts.pairs += 1
                counts.entries += expected[name].entries
                fine = 0.0 < finest <= 4 * RESOLUTION_DEG
                counts.fine += fine
                plain[end, number] |= kind == "fence" and not fine
                if not _agree(expected[name], got, length, times[1] - times[0], fine=fine):
                    counts.faults.append(f"seed {made.seed}: segment {end}, {kind} {name}: {got} for {expected[name]}")
    _published_in_any_order(made, own, counts)
    seen = EngineResult(every, own, sums[0], plain)
    _cut_anywhere(made, seen, counts)
    _beside_a_switching_fence(made, seen, counts)
    _dated_gates(made, tracks, counts)


def _cached(hours: ExactHours, name: str, kind: str) -> ExactHours:
    return hours.of(name) if kind == "fence" else hours


def _exact(made: TimedWorld) -> ExactHours:
    shapes = [one.shape for one in made.versions]
    bits = bits_of([*np.ravel(made.track).tolist(), *np.ravel(shapely.get_coordinates(shapes)).tolist()])
    exact = [
        ExactVersion(one.name, ExactFence(one.shape, bits), one.priority, one.begin_ms, one.until_ms, one.windows)
        for one in made.versions
    ]
    return ExactHours(exact, made.t_ms[0], made.t_ms[-1])


def _sums(pieces: Pieces, rows: int, names: int) -> Tables:
    """Entries, milliseconds and metres of each segment (by the row of its second fix) in each fence or zone."""
    inside = pieces.zone != OUTSIDE
    place = (pieces.end_fix * names + pieces.zone)[inside]

    def summed(column: NDArray[Any]) -> NDArray[np.float64]:
        sums = np.asarray(np.bincount(place, weights=column[inside], minlength=rows * names), np.float64)
        return sums.reshape(rows, names)

    return summed(pieces.entry), summed(pieces.ms), summed(pieces.metres)


def _agree(expected: Stay, got: Sequence[float], length: float, elapsed_ms: int, *, fine: bool) -> bool:
    entries, ms, metres = got
    blur = (100.0 if fine else 4.0) * RESOLUTION_DEG / length * elapsed_ms if length else 0.0
    return (
        (fine or entries == expected.entries)
        and abs(ms - float(expected.share) * elapsed_ms) <= 1e-4 + blur
        and abs(metres - expected.metres) <= 1e-5
    )


def _conserved(made: TimedWorld, split: Pieces, counts: TimedCounts) -> None:
    same = split.end_fix[1:] == split.end_fix[:-1]
    joined = np.where(same, split.start[1:] == split.end[:-1], (split.start[1:] == 0.0) & (split.end[:-1] == 1.0))
    ms = np.bincount(split.end_fix, split.ms, len(made.track))[1:]
    if not joined.all() or np.abs(ms - np.diff(made.t_ms)).max() > 1e-6:
        counts.faults.append(f"seed {made.seed}: the pieces do not make up the track")


def _published_in_any_order(made: TimedWorld, own: Pieces, counts: TimedCounts) -> None:
    """A version that is published later than the one that follows it stands for its own time all the same."""
    shuffled = Random(f"order of {made.seed}").sample(made.versions, len(made.versions))
    if not _same(own, pieces_by_fence(tracks_of(made), FenceSet([one.fence() for one in shuffled]))):
        counts.faults.append(f"seed {made.seed}: the order in which versions are published changes something")


def _cut_anywhere(made: TimedWorld, seen: EngineResult, counts: TimedCounts) -> None:
    """Cut at a fix, the parts are the whole to the last bit; without a fix in the middle the halves add up to it."""
    every, own, sums, plain = seen.fences, seen.pieces, seen.sums, seen.plain
    at = Random(f"cut of {made.seed}").randrange(1, len(made.track))
    one = pieces_by_fence(tracks_of(made, range(at + 1)), every)
    two = pieces_by_fence(tracks_of(made, range(at, len(made.track))), every)
    both = [np.concatenate(pair) for pair in zip(_columns(one), _columns(two, at), strict=True)]
    if not all(np.array_equal(a, b) for a, b in zip(_columns(own), both, strict=True)):
        counts.faults.append(f"seed {made.seed}: the cut at fix {at} changes something")
    rows = [row for row in range(len(made.track)) if row not in made.halves]
    whole = _sums(pieces_by_fence(tracks_of(made, rows), every), len(rows), len(every.names))
    held = _held(made, every)
    for half in made.halves:
        counts.halves += 1
        row = rows.index(half + 1)
        sure = plain[half] & plain[half + 1] & ~held[half]
        entries, ms = sums[0][half] + sums[0][half + 1], sums[1][half] + sums[1][half + 1]
        # what is within the resolution of the middle is one with it, and a switch at it belongs to both halves
        if (entries != whole[0][row])[sure].any() or (np.abs(ms - whole[1][row]) > 1.0)[sure].any():
            counts.faults.append(f"seed {made.seed}: the halves at fix {half}: {entries}, {ms} for {whole[0][row]}")


def _held(made: TimedWorld, every: FenceSet) -> Bools:
    """Which fixes lie on a border of which name, or next to it: a fix there is an end of its own."""
    found = np.zeros((len(made.track), len(every.names)), dtype=np.bool_)
    spots = shapely.points(made.track)
    for fence, name in zip(every.fences, every.name_of_fence.tolist(), strict=True):
        found[:, name] |= shapely.dwithin(spots, fence.shape.boundary, 1e-11)
        found[:, name] |= np.abs(np.abs(np.array(made.track)[:, 0]) - 180.0) < 1e-9
    return found


def _beside_a_switching_fence(made: TimedWorld, seen: EngineResult, counts: TimedCounts) -> None:
    """A far fence that comes into force and goes at the very moments of the entries elsewhere changes none of them."""
    own, sums, plain = seen.pieces, seen.sums, seen.plain
    t_ms = np.array(made.t_ms)
    starts = t_ms[own.end_fix - 1] + own.start * (t_ms[own.end_fix] - t_ms[own.end_fix - 1])
    ends = t_ms[own.end_fix - 1] + own.end * (t_ms[own.end_fix] - t_ms[own.end_fix - 1])
    moments = np.unique(np.round(np.concatenate([starts, ends])).astype(np.int64)).tolist()
    far = Fence("~far", box(40.0, -41.0, 41.0, -40.0), active=Activity(zip(moments[::2], moments[1::2], strict=False)))
    fences = FenceSet([*(one.fence() for one in made.versions), far])
    tracks = tracks_of(made)
    beside = _sums(pieces_by_fence(tracks, fences), len(t_ms), len(fences.names))
    entries, ms = (column[:, : sums[0].shape[1]] for column in beside[:2])
    segments = segments_of(tracks)
    length = np.hypot(segments.qx - segments.px, segments.qy - segments.py)
    blur_ms = np.append(0.0, 8.0 * RESOLUTION_DEG / np.maximum(length, 1e-300) * np.diff(t_ms))[:, None]
    other = plain & ((sums[0] != entries) | (np.abs(sums[1] - ms) > 1e-3 + blur_ms))
    if other.any():
        counts.faults.append(f"seed {made.seed}: a far fence that switches changes {np.argwhere(other).tolist()}")


def _dated_gates(made: TimedWorld, tracks: Tracks, counts: TimedCounts) -> None:
    """A gate along the first edge of a shape counts while its version is in force."""
    gates = [
        one
        for one in made.versions
        if isinstance(one.shape, Polygon)
        and not one.shape.interiors
        and max(-one.shape.bounds[0], one.shape.bounds[2]) < 180
    ]
    if not gates:
        return
    lines = [
        Gate(one.name, shapely.get_coordinates(one.shape)[:2], one.fence().active, one.fence().effective_from_ms)
        for one in gates
    ]
    found = GateSet(lines)
    crossings = found.crossings(tracks)
    ids = [found.gates[gate].id for gate in crossings.gate.tolist()]
    engine = Counter(zip(crossings.end_fix.tolist(), ids, crossings.forward.tolist(), strict=True))
    hours = _exact(replace(made, versions=gates))
    for end in range(1, len(made.track)):
        ends, times = (made.track[end - 1], made.track[end]), (made.t_ms[end - 1], made.t_ms[end])
        expected, sure = hours.crossed(ends, times)
        for name in sorted({one.name for one in gates}):
            got = engine[end, name, True], engine[end, name, False]
            counts.gates += 1
            if sure and got != expected[name]:
                counts.faults.append(f"seed {made.seed}: segment {end}, gate {name}: {got} for {expected[name]}")


def _columns(pieces: Pieces, shift: int = 0) -> list[NDArray[np.generic]]:
    return [pieces.end_fix + shift, *(getattr(pieces, name) for name in Pieces.__slots__ if name != "end_fix")]


def _same(one: Pieces, other: Pieces) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(_columns(one), _columns(other), strict=True))


def run(seed: int, pairs: int, seconds: float = math.inf) -> tuple[TimedCounts, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    return compared(TimedCounts(), lambda number, counts: compare(timed_world(number), counts), seed, pairs, seconds)


if __name__ == "__main__":
    command(run, __doc__, pairs=1_000_000)
