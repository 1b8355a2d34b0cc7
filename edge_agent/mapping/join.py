"""Torn positions: latitude and longitude that come in several messages become one position. Pure.

No position may mix halves of two places. A device sends the halves of one fix before those of the next. So a half that
comes again proves that the other half of its last fix did not change: that fix has the newest other half. It is held if
it is older than `settle_ms`. In alternating halves only time tells the fixes apart: exactly two of them, at most
`settle_ms` apart, are a position when no third one comes within `settle_ms`. Each half is a signal of its own, so
nothing is lost that does not become a position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from edge_agent.intake.messages import MalformedMessage, read_position
from edge_agent.mapping.compiler import PositionHalf
from waybill.record import Position

MAX_KEYS: Final = 256
"""Torn positions at the same time, for instance of the vehicles of one gateway. The oldest one is forgotten."""


class Coordinate(NamedTuple):
    """One half. `arrival_us`: by the monotonic clock. `time_us`: its device time; None: it has none. `source`: whatever
    the caller knows about its message. `is_late`: a half with a newer device time came before it.
    """

    degrees: float
    time_us: int | None
    arrival_us: int
    optional: dict[str, Any]
    source: Any
    is_late: bool = False


class JoinedPosition(NamedTuple):
    """`is_held`: its other half is older and has not changed. `arrival_us`, `source`: of its later half."""

    body: Position
    time_us: int | None
    arrival_us: int
    is_held: bool
    left_out: tuple[str, ...]
    source: Any


@dataclass(slots=True)
class _Torn:
    """`halves`: the newest ones. `last`: the one that came last; "": a whole position or none. `is_used`: it is in a
    position already. `run`: how many halves alternate since the last border between two fixes. `newest_us`: the newest
    device time.
    """

    halves: dict[str, Coordinate] = field(default_factory=dict)
    last: str = ""
    is_used: bool = False
    run: int = 0
    newest_us: int | None = None

    def clear(self) -> None:
        self.halves.clear()
        self.last, self.is_used, self.run = "", False, 0

    def follows(self, time_us: int | None) -> bool:
        """Whether a time is that of a next half; False: the halves say nothing about it."""
        times = [one.time_us for one in self.halves.values()]
        return all(one is None if time_us is None else one is not None and one <= time_us for one in times)

    def advance(self, time_us: int | None) -> bool:
        """Counts a device time; returns whether it is late."""
        if time_us is None:
            return False
        is_late = self.newest_us is not None and time_us < self.newest_us
        self.newest_us = self.newest_us if is_late else time_us
        return is_late


_OTHER: Final = {"latitude": "longitude", "longitude": "latitude"}


class PositionJoin:
    """The torn positions of one mapping."""

    def __init__(self, *, settle_us: int, hold_us: int, no_fix: Collection[tuple[float, float]] = ()) -> None:
        """`no_fix`: pairs that mean that the receiver has no fix."""
        self._settle_us, self._hold_us, self._no_fix = settle_us, hold_us, no_fix
        self._no_fix_halves = {(name, degrees) for pair in no_fix for name, degrees in zip(_OTHER, pair, strict=True)}
        self._torn: OrderedDict[tuple[str, ...], _Torn] = OrderedDict()
        # In order of their deadlines, because all wait equally long.
        self._waiting: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def add_half(
        self, key: tuple[str, ...], half: PositionHalf, time_us: int | None, arrival_us: int, source: Any = None
    ) -> list[JoinedPosition]:
        """The position of an earlier half that this half proves: at most one."""
        torn = self._torn_of(key)
        joined = self._quiet(key, torn) if arrival_us > self._waiting.get(key, arrival_us) else []
        self._waiting.pop(key, None)
        name = "latitude" if half.longitude is None else "longitude"
        degrees = half.latitude if half.longitude is None else half.longitude
        assert degrees is not None
        if not torn.follows(time_us):
            torn.clear()
        one = Coordinate(degrees, time_us, arrival_us, half.optional, source, torn.advance(time_us))
        if torn.last == name:
            joined += self._ended_fix(torn)
            torn.run = 0
        # A half that still lacks the other one may get it later than it should.
        elif torn.last and _gap_us(torn.halves[torn.last], one) > (1 + torn.run % 2) * self._settle_us:
            joined += self._quiet(key, torn)
            torn.run = 0
        torn.halves[name] = one
        torn.last, torn.is_used, torn.run = name, False, torn.run + 1
        if len(torn.halves) > 1 and (torn.halves["latitude"].degrees, torn.halves["longitude"].degrees) in self._no_fix:
            torn.clear()
        else:
            self._waiting[key] = arrival_us + self._settle_us
        self._bound()
        return joined

    def add_whole(
        self, key: tuple[str, ...], latitude: float, longitude: float, time_us: int | None, arrival_us: int
    ) -> list[JoinedPosition]:
        """Both coordinates came together: the position of an earlier half, whose fix has ended."""
        torn = self._torn_of(key)
        joined = self._ended_fix(torn) if torn.follows(time_us) else []
        is_late = torn.advance(time_us)
        self.clear(key)
        torn.halves = {
            name: Coordinate(degrees, time_us, arrival_us, {}, None, is_late)
            for name, degrees in (("latitude", latitude), ("longitude", longitude))
        }
        self._bound()
        return joined

    def clear(self, key: tuple[str, ...]) -> None:
        """A half of this key came that is no coordinate: what the others belong to is not known."""
        self._waiting.pop(key, None)
        if (torn := self._torn.get(key)) is not None:
            torn.clear()

    def due_us(self) -> int | None:
        """When the next half has waited long enough, by the monotonic clock."""
        return next(iter(self._waiting.values()), None)

    def expire(self, now_us: int) -> Iterator[JoinedPosition]:
        """The positions of the halves that have waited long enough."""
        while (due_us := self.due_us()) is not None and due_us <= now_us:
            key = next(iter(self._waiting))
            yield from self._quiet(key, self._torn[key])

    def _torn_of(self, key: tuple[str, ...]) -> _Torn:
        torn = self._torn.pop(key, None) or _Torn()
        self._torn[key] = torn
        return torn

    def _quiet(self, key: tuple[str, ...], torn: _Torn) -> list[JoinedPosition]:
        """No third half came: the position of two halves that are of one fix."""
        self._waiting.pop(key, None)
        is_pair = torn.run == len(torn.halves) == len(_OTHER) and _gap_us(*torn.halves.values()) <= self._settle_us
        return self._positions(torn, is_held=False) if is_pair else []

    def _ended_fix(self, torn: _Torn) -> list[JoinedPosition]:
        """The position of the last half, whose fix has ended: the other half is the newest one before it."""
        if not torn.last or _OTHER[torn.last] not in torn.halves:
            return []
        gap_us = _gap_us(*torn.halves.values())
        if torn.run > 1 and gap_us <= self._settle_us:
            return self._positions(torn, is_held=False)
        if gap_us > self._hold_us or not self._hold_us:
            return []
        # After a late half it is not known what came last. A half of an absent pair may begin the loss of the fix.
        uncertain = any(one.is_late or (name, one.degrees) in self._no_fix_halves for name, one in torn.halves.items())
        return [] if uncertain else self._positions(torn, is_held=True)

    def _positions(self, torn: _Torn, *, is_held: bool) -> list[JoinedPosition]:
        if torn.is_used:
            return []
        torn.is_used = True
        latitude, longitude = torn.halves["latitude"], torn.halves["longitude"]
        later = torn.halves[torn.last]
        optional = later.optional if is_held else {**latitude.optional, **longitude.optional}
        left_out: list[str] = []
        try:
            body = read_position({"latitude": latitude.degrees, "longitude": longitude.degrees, **optional}, left_out)
        except MalformedMessage as error:
            raise AssertionError("each half was checked when it came") from error
        # Of the two device times the last one is the later one.
        return [JoinedPosition(body, later.time_us, later.arrival_us, is_held, tuple(left_out), later.source)]

    def _bound(self) -> None:
        while len(self._torn) > MAX_KEYS:
            key, _ = self._torn.popitem(last=False)
            self._waiting.pop(key, None)


def _gap_us(one: Coordinate, other: Coordinate) -> int:
    if one.time_us is not None and other.time_us is not None:
        return abs(other.time_us - one.time_us)
    return abs(other.arrival_us - one.arrival_us)
