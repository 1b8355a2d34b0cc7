"""Worlds with versions, weekly windows and switches of clocks, from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from random import Random
from zoneinfo import ZoneInfo

from geo.spatial import Activity, Fence, Fixes, Tracks
from geo.spatial.activity import FOREVER_MS
from geo.spatial.rings import Shape
from geo.spatial.weekly import Weekly
from tests.geo.spatial.exact_fuzz import Spot, world
from tests.geo.spatial.exact_time import DAYS, Windows
from tests.geo.spatial.worlds import every_fix

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


@lru_cache(maxsize=64)
def activity_of(windows: Windows) -> Activity:
    listed = [{"days": list(days), "from": start, "until": until} for days, start, until in windows.windows]
    return Weekly.model_validate({"timezone": windows.timezone, "windows": listed}).activity()


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
        active = Activity([(self.begin_ms, self.until_ms)])
        if self.windows is not None:
            active &= activity_of(self.windows)
        begin = -FOREVER_MS if self.begin_ms is None else self.begin_ms
        return Fence(self.name, self.shape, self.priority, active=active, effective_from_ms=begin)


@dataclass(frozen=True)
class TimedWorld:
    seed: int
    versions: list[ShapeVersion]
    track: list[Spot]
    t_ms: list[int]
    halves: list[int]  # the fixes that are exactly in the middle of the way, and of the time, between their neighbours


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
    (px, py), (qx, qy) = ((Fraction(x), Fraction(y)) for x, y in (p, q))
    if abs(qx - px) > 180:
        qx += 360 if qx < px else -360
    x, y = (px + qx) / 2, (py + qy) / 2
    x = x - 360 if x >= 180 else x + 360 if x < -180 else x
    return (float(x), float(y)) if Fraction(float(x)) == x and Fraction(float(y)) == y else None


def tracks_of(made: TimedWorld, rows: Sequence[int] | None = None) -> Tracks:
    chosen = list(range(len(made.track))) if rows is None else list(rows)
    return every_fix(
        Fixes(
            device=[0] * len(chosen),
            t_ms=[made.t_ms[row] for row in chosen],
            lat=[made.track[row][1] for row in chosen],
            lon=[made.track[row][0] for row in chosen],
        )
    )
