"""Hard worlds with a clock: versions of other shapes, weekly windows and dates.

The engine must find in them what whole numbers find; and there are laws that hold whatever the world.

`python -m tests.geo.spatial.timed_fuzz --pairs N --seed S --seconds T`. A pair is one segment and one fence or zone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely import Polygon, box
from shapely.geometry.polygon import orient

from geo.spatial import (
    OUTSIDE,
    Activity,
    Fence,
    FenceSet,
    Fixes,
    Gate,
    GateSet,
    Pieces,
    Tracks,
    ZoneSet,
    pieces_by_fence,
)
from geo.spatial.activity import FOREVER_MS
from geo.spatial.clip import RESOLUTION_DEG, segments_of
from geo.spatial.rings import Shape
from geo.spatial.weekly import weekly_of
from tests.geo.spatial.exact import ExactFence, bits_of
from tests.geo.spatial.exact_fuzz import Spot, world
from tests.geo.spatial.exact_time import DAYS, ExactHours, ExactVersion, Stay, Windows
from tests.geo.spatial.seeded import command, compared
from tests.geo.spatial.worlds import every_fix

Tables: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
Bools = NDArray[np.bool_]
_BLOCK = 24  # worlds that share a time zone and its windows, which take a moment to lay out
_STEPS_MS = (1, 2, 1_000, 10_000, 60_000, 299_999, 300_000)
TIMEZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Atlantic/Azores",
    "Pacific/Chatham",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Asia/Kathmandu",
    "America/Havana",
    "Asia/Gaza",
    "Pacific/Apia",
)


@dataclass(frozen=True)
class ShapeVersion:
    """A shape that stands for a name from a date on, until another, in windows."""

    name: str
    shape: Shape
    priority: int
    begin_ms: int | None
    until_ms: int | None
    windows: Windows | None

    def fence(self) -> Fence:
        """As the engine takes it."""
        active = Activity([(self.begin_ms, self.until_ms)])
        if self.windows is not None:
            active &= _activity(self.windows)
        begin = -FOREVER_MS if self.begin_ms is None else self.begin_ms
        return Fence(self.name, self.shape, self.priority, active=active, effective_from_ms=begin)


@dataclass(frozen=True)
class TimedWorld:
    """Versions of fences, and one device's fixes with their times."""

    seed: int
    versions: list[ShapeVersion]
    track: list[Spot]
    t_ms: list[int]
    halves: list[int]  # the fixes that are exactly in the middle of the way, and of the time, between their neighbours


@dataclass
class TimedTally:
    """What was compared, and what differed."""

    pairs: int = 0
    fine: int = 0
    switches: int = 0
    entries: int = 0
    halves: int = 0
    gates: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """In a line."""
        return (
            f"{self.pairs:,} pairs with versions and windows, {len(self.faults)} differ; {self.fine:,} finer than the"
            f" engine tells apart; {self.entries:,} entries, {self.switches:,} segments with a switch in them,"
            f" {self.halves:,} cut in halves, {self.gates:,} pairs with a dated gate"
        )


@dataclass(frozen=True)
class EngineResult:
    """What the engine found. `plain`: by segment and name, where it tells all meetings apart."""

    fences: FenceSet
    pieces: Pieces
    sums: Tables
    plain: Bools


@lru_cache(maxsize=64)
def _activity(windows: Windows) -> Activity:
    listed = [{"days": list(days), "from": start, "until": until} for days, start, until in windows.windows]
    return weekly_of({"timezone": windows.timezone, "windows": listed}).activity()


@lru_cache(maxsize=64)
def _changes(timezone: str) -> tuple[int, ...]:
    """The quarters of an hour in which the clock of a zone is put to another offset."""
    zone, found = ZoneInfo(timezone), list[int]()
    day = datetime(2015, 1, 2, tzinfo=UTC)
    while day.year < 2044:
        following = day + timedelta(days=1)
        if day.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            quarters = [day + timedelta(minutes=15 * at) for at in range(97)]
            offsets = [at.astimezone(zone).utcoffset() for at in quarters]
            found += [int(quarters[at].timestamp()) * 1000 for at in range(1, 97) if offsets[at] != offsets[at - 1]]
        day = following
    return tuple(found)


def timed_world(seed: int) -> TimedWorld:
    """The world of a seed: the shapes and places of `exact_fuzz.world`, dated."""
    plain, random = world(seed), Random(f"dates of {seed}")
    block = Random(f"clock of {seed // _BLOCK}")
    timezone = block.choice(TIMEZONES)
    windows = [_windows(block, timezone) for _ in range(3)]
    track, t_ms, halves = _dated(random, plain.track[:16], _start_ms(random, timezone))
    dates = [*t_ms, *(random.randint(t_ms[0] - 1000, t_ms[-1] + 1000) for _ in range(20))]
    versions: list[ShapeVersion] = []
    for shape in plain.shapes[:6]:
        name = f"f{random.randint(0, 2)}"
        begin = None if random.random() < 0.2 else random.choice(dates)
        if any((one.name, one.begin_ms) == (name, begin) for one in versions):
            continue
        until = random.choice(dates) if random.random() < 0.3 else None
        if until is not None and begin is not None and until <= begin:
            until = None
        weekly = random.choice(windows) if random.random() < 0.5 else None
        versions.append(ShapeVersion(name, shape, random.randint(0, 2), begin, until, weekly))
    return TimedWorld(seed, versions, track, t_ms, halves)


def _start_ms(random: Random, timezone: str) -> int:
    changes = _changes(timezone)
    if changes and random.random() < 0.5:
        return random.choice(changes) - random.randint(0, 3_000_000)
    midnight = datetime(2026, 3, random.randint(1, 28), tzinfo=ZoneInfo(timezone))
    return int(midnight.timestamp() * 1000) - random.choice((0, 1, 60_000, random.randint(0, 86_400_000)))


def _windows(random: Random, timezone: str) -> Windows:
    found = []
    for _ in range(random.randint(1, 3)):
        # much of it around midnight and the hours at which clocks change
        start, until = (
            random.choice((random.randint(0, 16), random.randint(88, 95), random.randint(0, 95))) for _ in range(2)
        )
        last = "24:00" if random.random() < 0.1 else _clock(until)
        found.append((tuple(sorted(random.sample(DAYS, random.randint(1, 7)))), _clock(start), last))
    return Windows(timezone, tuple(found))


def _clock(quarter: int) -> str:
    return f"{quarter // 4:02}:{quarter % 4 * 15:02}"


def _dated(random: Random, spots: list[Spot], start_ms: int) -> tuple[list[Spot], list[int], list[int]]:
    """Times to places; some segments get a fix where their middle is, if a double and a millisecond are."""
    track, t_ms, halves = [spots[0]], [start_ms], list[int]()
    for spot in spots[1:]:
        until = t_ms[-1] + random.choice(_STEPS_MS)
        middle = _middle(track[-1], spot)
        if middle is not None and (until - t_ms[-1]) % 2 == 0 and random.random() < 0.3:
            halves.append(len(track))
            track.append(middle)
            t_ms.append((t_ms[-1] + until) // 2)
        track.append(spot)
        t_ms.append(until)
    return track, t_ms, halves


def _middle(p: Spot, q: Spot) -> Spot | None:
    """The place half way, by the short way, if it is a double."""
    (px, py), (qx, qy) = ((Fraction(x), Fraction(y)) for x, y in (p, q))
    if abs(qx - px) > 180:
        qx += 360 if qx < px else -360
    x, y = (px + qx) / 2, (py + qy) / 2
    x = x - 360 if x >= 180 else x + 360 if x < -180 else x
    return (float(x), float(y)) if Fraction(float(x)) == x and Fraction(float(y)) == y else None


def tracks_of(made: TimedWorld, rows: Sequence[int] | None = None) -> Tracks:
    """The world's fixes, or some of them, as a track."""
    chosen = list(range(len(made.track))) if rows is None else list(rows)
    return every_fix(
        Fixes(
            device=[0] * len(chosen),
            t_ms=[made.t_ms[row] for row in chosen],
            lat=[made.track[row][1] for row in chosen],
            lon=[made.track[row][0] for row in chosen],
        )
    )


def compare(made: TimedWorld, tally: TimedTally) -> None:
    """Every segment in every fence and zone, by the engine and in whole numbers; and the laws."""
    if not made.versions:
        return
    fences, tracks = [one.fence() for one in made.versions], tracks_of(made)
    zones, every = ZoneSet(fences), FenceSet(fences)
    split, own = zones.split(tracks), pieces_by_fence(tracks, every)
    _conserved(made, split, tally)
    sums = _sums(own, len(made.track), len(every.names)), _sums(split, len(made.track), len(zones.names))
    hours = _exact(made)
    plain = np.zeros(sums[0][0].shape, dtype=np.bool_)
    segments = segments_of(tracks)
    for end in range(1, len(made.track)):
        ends, times = (made.track[end - 1], made.track[end]), (made.t_ms[end - 1], made.t_ms[end])
        tally.switches += bool(hours.switches(*times))
        length = math.hypot(segments.qx[end - 1] - segments.px[end - 1], segments.qy[end - 1] - segments.py[end - 1])
        for kind, table in zip(("fence", "zone"), sums, strict=True):
            if kind == "zone" and (end + made.seed) % 3:
                continue
            for number, name in enumerate(every.names):
                expected, finest = _cached(hours, name, kind).along(ends, times)
                got = [float(column[end, number]) for column in table]
                tally.pairs += 1
                tally.entries += expected[name].entries
                fine = 0.0 < finest <= 4 * RESOLUTION_DEG
                tally.fine += fine
                plain[end, number] |= kind == "fence" and not fine
                if not _agree(expected[name], got, length, times[1] - times[0], fine=fine):
                    tally.faults.append(f"seed {made.seed}: segment {end}, {kind} {name}: {got} for {expected[name]}")
    _published_in_any_order(made, own, tally)
    seen = EngineResult(every, own, sums[0], plain)
    _cut_anywhere(made, seen, tally)
    _beside_a_switching_fence(made, seen, tally)
    _dated_gates(made, tracks, tally)


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


def _conserved(made: TimedWorld, split: Pieces, tally: TimedTally) -> None:
    """The pieces of a segment cover it once, and add up to its time."""
    same = split.end_fix[1:] == split.end_fix[:-1]
    joined = np.where(same, split.start[1:] == split.end[:-1], (split.start[1:] == 0.0) & (split.end[:-1] == 1.0))
    ms = np.bincount(split.end_fix, split.ms, len(made.track))[1:]
    if not joined.all() or np.abs(ms - np.diff(made.t_ms)).max() > 1e-6:
        tally.faults.append(f"seed {made.seed}: the pieces do not make up the track")


def _published_in_any_order(made: TimedWorld, own: Pieces, tally: TimedTally) -> None:
    """A version that is published later than the one that follows it stands for its own time all the same."""
    shuffled = Random(f"order of {made.seed}").sample(made.versions, len(made.versions))
    if not _same(own, pieces_by_fence(tracks_of(made), FenceSet([one.fence() for one in shuffled]))):
        tally.faults.append(f"seed {made.seed}: the order in which versions are published changes something")


def _cut_anywhere(made: TimedWorld, seen: EngineResult, tally: TimedTally) -> None:
    """Cut at a fix, the parts are the whole to the last bit; without a fix in the middle the halves add up to it."""
    every, own, sums, plain = seen.fences, seen.pieces, seen.sums, seen.plain
    at = Random(f"cut of {made.seed}").randrange(1, len(made.track))
    one = pieces_by_fence(tracks_of(made, range(at + 1)), every)
    two = pieces_by_fence(tracks_of(made, range(at, len(made.track))), every)
    both = [np.concatenate(pair) for pair in zip(_columns(one), _columns(two, at), strict=True)]
    if not all(np.array_equal(a, b) for a, b in zip(_columns(own), both, strict=True)):
        tally.faults.append(f"seed {made.seed}: the cut at fix {at} changes something")
    rows = [row for row in range(len(made.track)) if row not in made.halves]
    whole = _sums(pieces_by_fence(tracks_of(made, rows), every), len(rows), len(every.names))
    held = _held(made, every)
    for half in made.halves:
        tally.halves += 1
        row = rows.index(half + 1)
        sure = plain[half] & plain[half + 1] & ~held[half]
        entries, ms = sums[0][half] + sums[0][half + 1], sums[1][half] + sums[1][half + 1]
        # what is within the resolution of the middle is one with it, and a switch at it belongs to both halves
        if (entries != whole[0][row])[sure].any() or (np.abs(ms - whole[1][row]) > 1.0)[sure].any():
            tally.faults.append(f"seed {made.seed}: the halves at fix {half}: {entries}, {ms} for {whole[0][row]}")


def _held(made: TimedWorld, every: FenceSet) -> Bools:
    """Which fixes lie on a border of which name, or next to it: a fix there is an end of its own."""
    found = np.zeros((len(made.track), len(every.names)), dtype=np.bool_)
    spots = shapely.points(made.track)
    for fence, name in zip(every.fences, every.name_of_fence.tolist(), strict=True):
        found[:, name] |= shapely.dwithin(spots, fence.shape.boundary, 1e-11)
        found[:, name] |= np.abs(np.abs(np.array(made.track)[:, 0]) - 180.0) < 1e-9
    return found


def _beside_a_switching_fence(made: TimedWorld, seen: EngineResult, tally: TimedTally) -> None:
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
        tally.faults.append(f"seed {made.seed}: a far fence that switches changes {np.argwhere(other).tolist()}")


def _dated_gates(made: TimedWorld, tracks: Tracks, tally: TimedTally) -> None:
    """A gate along a ring, with the inside on its left, counts what goes out and in while its version is in force."""
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
        Gate(one.name, shapely.get_coordinates(orient(one.shape)), one.fence().active, one.fence().effective_from_ms)
        for one in gates
    ]
    found = GateSet(lines)
    crossings = found.crossings(tracks)
    ids = [found.gates[gate].id for gate in crossings.gate.tolist()]
    told = Counter(zip(crossings.end_fix.tolist(), ids, crossings.forward.tolist(), strict=True))
    hours = _exact(replace(made, versions=gates))
    for end in range(1, len(made.track)):
        ends, times = (made.track[end - 1], made.track[end]), (made.t_ms[end - 1], made.t_ms[end])
        expected, sure = hours.crossed(ends, times)
        for name in sorted({one.name for one in gates}):
            got = told[end, name, True], told[end, name, False]
            tally.gates += 1
            if sure and got != expected[name]:
                tally.faults.append(f"seed {made.seed}: segment {end}, gate {name}: {got} for {expected[name]}")


def _columns(pieces: Pieces, shift: int = 0) -> list[NDArray[np.generic]]:
    return [pieces.end_fix + shift, *(getattr(pieces, name) for name in Pieces.__slots__ if name != "end_fix")]


def _same(one: Pieces, other: Pieces) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(_columns(one), _columns(other), strict=True))


def run(seed: int, pairs: int, seconds: float = math.inf) -> tuple[TimedTally, int]:
    """Worlds from a seed on, until so many pairs are compared or the time is over; and the last seed."""
    return compared(TimedTally(), lambda number, tally: compare(timed_world(number), tally), seed, pairs, seconds)


if __name__ == "__main__":
    command(run, __doc__, pairs=1_000_000)
