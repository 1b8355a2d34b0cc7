"""Torn positions: latitude and longitude that come in several messages become one position. Pure.

A half waits `settle_ms` for the other one. If the other one comes, the two are a position with the time of the later
half. If it does not, it has not changed: an older half is taken if it is at most `hold_s` old, and the position is
marked as held. Each half is a signal of its own, so nothing is lost that does not become a position.
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
    the caller knows about its message.
    """

    degrees: float
    time_us: int | None
    arrival_us: int
    optional: dict[str, Any]
    source: Any


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
    """The halves of one position, by coordinate; `waiting`: the one that waits for the other."""

    halves: dict[str, Coordinate] = field(default_factory=dict)
    waiting: str = ""


_OTHER: Final = {"latitude": "longitude", "longitude": "latitude"}


class PositionJoin:
    """The torn positions of one mapping."""

    def __init__(self, *, settle_us: int, hold_us: int, no_fix: Collection[tuple[float, float]] = ()) -> None:
        """`no_fix`: pairs that mean that the receiver has no fix."""
        self._settle_us, self._hold_us, self._no_fix = settle_us, hold_us, no_fix
        self._torn: OrderedDict[tuple[str, ...], _Torn] = OrderedDict()
        # In order of their deadlines, because all wait equally long.
        self._waiting: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def add_half(
        self, key: tuple[str, ...], half: PositionHalf, time_us: int | None, arrival_us: int, source: Any = None
    ) -> list[JoinedPosition]:
        """The positions that this half completes: at most one with itself, and one of a half that waited before."""
        torn = self._torn.pop(key, None) or _Torn()
        self._torn[key] = torn
        name = "latitude" if half.longitude is None else "longitude"
        degrees = half.latitude if half.longitude is None else half.longitude
        assert degrees is not None
        one = Coordinate(degrees, time_us, arrival_us, half.optional, source)
        joined = []
        if torn.waiting and not (torn.waiting == _OTHER[name] and self._belong(torn.halves[torn.waiting], one)):
            joined += self._settle(key, torn)
        is_pair = torn.waiting == _OTHER[name]
        torn.halves[name] = one
        if is_pair:
            self._stop_waiting(key, torn)
            joined += self._positions(torn, one, is_held=False)
        else:
            torn.waiting = name
            self._waiting[key] = arrival_us + self._settle_us
        self._bound()
        return joined

    def add_whole(
        self, key: tuple[str, ...], latitude: float, longitude: float, time_us: int | None, arrival_us: int
    ) -> list[JoinedPosition]:
        """Both coordinates came together; the result is of a half that waited before."""
        torn = self._torn.pop(key, None) or _Torn()
        self._torn[key] = torn
        joined = self._settle(key, torn)
        torn.halves = {
            name: Coordinate(degrees, time_us, arrival_us, {}, None)
            for name, degrees in (("latitude", latitude), ("longitude", longitude))
        }
        self._bound()
        return joined

    def due_us(self) -> int | None:
        """When the next half has waited long enough, by the monotonic clock."""
        return next(iter(self._waiting.values()), None)

    def expire(self, now_us: int) -> Iterator[JoinedPosition]:
        """The positions of the halves that have waited long enough."""
        while (due_us := self.due_us()) is not None and due_us <= now_us:
            key = next(iter(self._waiting))
            yield from self._settle(key, self._torn[key])

    def _belong(self, one: Coordinate, other: Coordinate) -> bool:
        """Whether two halves are of one fix: they come, and were measured, within the settle window."""
        if abs(other.arrival_us - one.arrival_us) > self._settle_us:
            return False
        if one.time_us is None or other.time_us is None:
            return one.time_us is other.time_us
        return abs(other.time_us - one.time_us) <= self._settle_us

    def _settle(self, key: tuple[str, ...], torn: _Torn) -> list[JoinedPosition]:
        """Ends the wait of a half; its position, if the other half may be held."""
        name = torn.waiting
        if not name:
            return []
        self._stop_waiting(key, torn)
        one, other = torn.halves[name], torn.halves.get(_OTHER[name])
        if other is None or not self._hold_us or one.arrival_us - other.arrival_us > self._hold_us:
            return []
        return self._positions(torn, one, is_held=True)

    def _positions(self, torn: _Torn, later: Coordinate, *, is_held: bool) -> list[JoinedPosition]:
        latitude, longitude = torn.halves["latitude"], torn.halves["longitude"]
        if (latitude.degrees, longitude.degrees) in self._no_fix:
            return []
        optional = later.optional if is_held else {**latitude.optional, **longitude.optional}
        times = [later.time_us] if is_held else [latitude.time_us, longitude.time_us]
        time_us = max((one for one in times if one is not None), default=None)
        left_out: list[str] = []
        try:
            body = read_position({"latitude": latitude.degrees, "longitude": longitude.degrees, **optional}, left_out)
        except MalformedMessage as error:
            raise AssertionError("each half was checked when it came") from error
        return [JoinedPosition(body, time_us, later.arrival_us, is_held, tuple(left_out), later.source)]

    def _stop_waiting(self, key: tuple[str, ...], torn: _Torn) -> None:
        torn.waiting = ""
        self._waiting.pop(key, None)

    def _bound(self) -> None:
        while len(self._torn) > MAX_KEYS:
            key, _ = self._torn.popitem(last=False)
            self._waiting.pop(key, None)
