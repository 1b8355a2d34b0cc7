"""Worlds made to be hard, in which the engine must find what whole numbers find.

`python -m tests.geo.spatial.exact_fuzz --pairs N --seed S --seconds T`. Each world has a seed of its own, which is
printed with what differs. A pair is one segment and one fence. Of a pair that is cut finer than the engine
distinguishes meetings, only the share and the length are compared, as far as they go.
"""

import math
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely import Polygon, box

from geo.spatial import Activity, Fence, FenceError, FenceSet, Fixes, Gate, GateSet, Tracks, TrackSettings, build_tracks
from geo.spatial.clip import RESOLUTION_DEG
from geo.spatial.measure import pieces_by_fence
from geo.spatial.rings import Shape, world_polygon
from tests.geo.spatial.exact import ExactFence, Inside, bits_of
from tests.geo.spatial.seeded import command, compared

START_MS, STEP_MS = 1_767_603_422_000, 10_000
_LAWS_EVERY = 5  # worlds
Spot = tuple[float, float]
Table = NDArray[np.float64]


@dataclass(frozen=True)
class ExactWorld:
    seed: int
    shapes: list[Shape]
    track: list[Spot]


@dataclass
class ExactCounts:
    pairs: int = 0
    fine: int = 0
    crossings: int = 0
    switches: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"{self.pairs:,} pairs, {len(self.faults)} differ; {self.fine:,} finer than the engine distinguishes;"
            f" {self.crossings:,} crossings of gates along fences; {self.switches:,} worlds with a border at a switch"
        )


BASES: tuple[Spot, ...] = (
    (13.6, 52.99),
    (-3.0, 53.4),
    (0.0, 0.0),
    (179.995, -17.0),
    (-180.0, 65.0),
    (178.4339611, -16.5),
    (25.0, 89.995),
    (-179.9997, 89.9),
    (100.0, -89.997),
    (127.995, 31.0),
)


def world(seed: int) -> ExactWorld:
    random = Random(seed)
    base, step = random.choice(BASES), random.choice((1e-3, 1e-4, 1e-5, 1e-7, 0.123456789e-3))
    spots = _Spots(random, base, step)
    shapes = [shape for _ in range(random.randint(4, 12)) if (shape := _shape(random, spots)) is not None]
    corners = [_wrapped((x, y)) for x, y in shapely.get_coordinates(shapes).tolist()]
    track = [_fix(random, spots, corners) for _ in range(random.randint(20, 40))]
    return ExactWorld(seed, shapes, track)


class _Spots:
    """Coordinates around a place: on a decimal grid, so that much coincides, or anywhere."""

    def __init__(self, random: Random, base: Spot, step: float) -> None:
        self._random, self._base, self._step = random, base, step
        self._digits = max(0, round(-math.log10(step))) + 1

    def one(self) -> Spot:
        x, y = (self._offset() for _ in range(2))
        lat = self._base[1] + y
        return self._base[0] + x, max(-90.0, min(90.0, lat))

    def _offset(self) -> float:
        if self._random.random() < 0.7:
            return round(self._random.randint(-8, 8) * self._step, self._digits + 8)
        return self._random.uniform(-8, 8) * self._step


def _shape(random: Random, spots: _Spots) -> Shape | None:
    kind = random.random()
    if kind < 0.3:
        (west, south), (east, north) = spots.one(), spots.one()
        ring = [(west, south), (east, south), (east, north), (west, north)]
    elif kind < 0.45:  # a spike, as thin as it gets
        a, b = spots.one(), spots.one()
        ring = [a, b, (b[0], math.nextafter(b[1], 0.0) if random.random() < 0.5 else b[1] - 1e-9)]
    else:
        ring = [spots.one() for _ in range(random.randint(3, 9))]
    rings = [np.array([*ring, ring[0]])]
    if random.random() < 0.3:
        centre = rings[0].mean(axis=0)
        rings.append(centre + (rings[0] - centre) * random.choice((0.5, 0.25, 1.0 / 3)))
    try:
        return repaired(rings)
    except (FenceError, shapely.GEOSException):
        return None


def repaired(rings: list[Table]) -> Shape:
    """What a ring encloses, without its hole, made valid. Raises FenceError, GEOSException."""
    whole, *holes = (shapely.make_valid(Polygon(ring), method="structure", keep_collapsed=False) for ring in rings)
    for hole in holes:
        whole = shapely.difference(whole, hole)
    parts = [part for part in shapely.get_parts(whole) if isinstance(part, Polygon) and part.area > 0]
    return world_polygon([np.array(ring.coords) for ring in (part.exterior, *part.interiors)] for part in parts)


def _fix(random: Random, spots: _Spots, corners: list[Spot]) -> Spot:
    kind = random.random()
    if kind < 0.4 or len(corners) < 2:
        return _wrapped(spots.one())
    at = random.randrange(len(corners) - 1)
    (ax, ay), (bx, by) = corners[at], corners[at + 1]
    if kind < 0.6 or abs(ax - bx) > 180:
        return ax, ay
    # on the border, before it and past it, as near as doubles come to it
    part = random.choice((0.5, 0.25, random.random(), -1.0, 2.0, -random.random()))
    x, y = ax + (bx - ax) * part, ay + (by - ay) * part
    for _ in range(random.randint(0, 2)):
        x, y = (math.nextafter(value, random.choice((-1e3, 1e3))) for value in (x, y))
    return _wrapped((x, max(-90.0, min(90.0, y))))


def _wrapped(spot: Spot) -> Spot:
    x, y = spot
    return (x - 360.0 if x >= 180.0 else x + 360.0 if x < -180.0 else x), y


def tracks_of(track: list[Spot]) -> Tracks:
    fixes = Fixes(
        device=[0] * len(track),
        t_ms=[START_MS + at * STEP_MS for at in range(len(track))],
        lat=[y for _, y in track],
        lon=[x for x, _ in track],
    )
    return build_tracks(fixes, TrackSettings.every_fix())


def compare(made: ExactWorld, counts: ExactCounts) -> None:
    """Every segment in every fence, by the engine and in whole numbers; gates along fences, too."""
    if not made.shapes:
        return
    names = [f"{number:03}" for number in range(len(made.shapes))]
    fences = [Fence(name, shape) for name, shape in zip(names, made.shapes, strict=True)]
    tracks, shape = tracks_of(made.track), (len(made.track), len(names))
    entries, ms, metres = _sums(tracks, fences, shape)
    if made.seed % _LAWS_EVERY == 0:
        _laws(made, fences, (entries, ms, metres), counts)
    bits = bits_of([*np.ravel(made.track).tolist(), *np.ravel(shapely.get_coordinates(made.shapes)).tolist()])
    crossed = _by_gates(made.shapes, tracks)
    back = _sums(tracks_of(made.track[::-1]), fences, shape)
    for number, polygon in enumerate(made.shapes):
        exact = ExactFence(polygon, bits)
        for end in range(1, len(made.track)):
            expected = exact.along(made.track[end - 1], made.track[end])
            counts.pairs += 1
            row = (end, number)
            fine = 0.0 < expected.finest <= 4 * RESOLUTION_DEG
            counts.fine += fine
            got = entries[row], ms[row], metres[row]
            if not _agree(expected, got, fine=fine):
                counts.faults.append(f"seed {made.seed}: segment {end}, fence {number}: {got} for {expected}")
            backwards = replace(expected, entries=expected.exits, exits=expected.entries)
            turned = len(made.track) - end, number
            if not _agree(backwards, (back[0][turned], back[1][turned], back[2][turned]), fine=fine):
                counts.faults.append(f"seed {made.seed}: segment {end} driven backwards, fence {number}")
            if number in crossed:
                ends = made.track[end - 1], made.track[end]
                expected_gates = sorted((edge, forward) for edge, forward, _ in exact.gate_crossings(*ends))
                found = sorted(crossed[number].get(end, []))
                counts.crossings += len(found)
                if found != expected_gates:
                    counts.faults.append(
                        f"seed {made.seed}: segment {end}, gates of {number}: {found} for {expected_gates}"
                    )


def _sums(tracks: Tracks, fences: list[Fence], size: tuple[int, int]) -> tuple[Table, Table, Table]:
    """Entries, milliseconds and metres of each segment (by the row of its second fix) in each of the first fences."""
    pieces = pieces_by_fence(tracks, FenceSet(fences))
    names = len({fence.id for fence in fences})
    place = pieces.end_fix * names + pieces.zone

    def summed(column: NDArray[Any]) -> Table:
        sums = np.asarray(np.bincount(place, weights=column, minlength=size[0] * names), np.float64)
        return sums.reshape(size[0], names)[:, : size[1]]

    return summed(pieces.entry), summed(pieces.ms), summed(pieces.metres)


def _laws(made: ExactWorld, fences: list[Fence], sums: tuple[Table, Table, Table], counts: ExactCounts) -> None:
    """A far fence, the order of fixes and of fences, and a version of the same shape change nothing."""
    random, size = np.random.default_rng(made.seed), sums[0].shape
    tracks = tracks_of(made.track)
    far = Fence("far", box(40.0, -41.0, 41.0, -40.0))
    if any(
        not (one == other).all() for one, other in zip(sums, _sums(tracks, [far, *fences[::-1]], size), strict=True)
    ):
        counts.faults.append(f"seed {made.seed}: a far fence changes something")
    rows = random.permutation(len(made.track))
    fixes = tracks.fixes
    mixed = Fixes(device=fixes.device[rows], t_ms=fixes.t_ms[rows], lat=fixes.lat[rows], lon=fixes.lon[rows])
    late = _sums(build_tracks(mixed, TrackSettings.every_fix()), fences, size)
    if any(not (one[rows] == other).all() for one, other in zip(sums, late, strict=True)):
        counts.faults.append(f"seed {made.seed}: the order of fixes changes something")
    # a prime of milliseconds into the track: no meeting on a grid is at that moment
    switch = START_MS + int(random.integers(1, len(made.track))) * STEP_MS - 3_463
    versions = [
        Fence(fence.id, fence.shape, active=active)
        for fence in fences
        for active in (Activity([(None, switch)]), Activity([(switch, None)]))
    ]
    entries, ms, _ = _sums(tracks, versions, size)
    if not (entries == sums[0]).all() or np.abs(ms - sums[1]).max() > 1e-3:
        # at the very moment of the switch the switch is the cut, and so is what the engine does not distinguish from it
        counts.switches += 1


def _agree(expected: Inside, got: tuple[float, float, float], *, fine: bool) -> bool:
    entries, ms, metres = got
    # a meeting is one with others that are within the resolution of it, also of other fences
    blur = (100.0 if fine else 4.0) * RESOLUTION_DEG / expected.length * STEP_MS if expected.length else 0.0
    return (
        (fine or entries == expected.entries)
        and abs(ms - float(expected.share) * STEP_MS) <= 1e-4 + blur
        and abs(metres - expected.metres) <= 1e-5
    )


def _by_gates(shapes: list[Shape], tracks: Tracks) -> dict[int, dict[int, list[tuple[int, bool]]]]:
    """Each edge of the shapes of one ring as a gate: by shape and segment which edges are crossed, and if forward."""
    found: dict[int, dict[int, list[tuple[int, bool]]]] = {}
    for number, shape in enumerate(shapes):
        if not isinstance(shape, Polygon) or shape.interiors or np.abs(shapely.bounds(shape)[[0, 2]]).max() >= 180:
            continue
        ring = shapely.get_coordinates(shape)
        gates = GateSet([Gate(f"{edge:03}", ring[edge : edge + 2]) for edge in range(len(ring) - 1)])
        met = gates.crossings(tracks)
        found[number] = {}
        for end, gate, forward in zip(met.end_fix.tolist(), met.gate.tolist(), met.forward.tolist(), strict=True):
            found[number].setdefault(end, []).append((gate, forward))
    return found


def run(seed: int, pairs: int, seconds: float = math.inf) -> tuple[ExactCounts, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    return compared(ExactCounts(), lambda number, counts: compare(world(number), counts), seed, pairs, seconds)


if __name__ == "__main__":
    command(run, __doc__, pairs=1_000_000)
