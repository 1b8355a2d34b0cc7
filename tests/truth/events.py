"""Visits of fences and passages of gates from fixes, by the definitions of `docs/spatial.md`, with plain loops."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import BUFFER_M, Side, deep, point, sides_of
from simulator.truth.journal import EPOCH, TruePosition
from simulator.truth.track import TruePlace, places
from tests.truth.facts import TrueFacts, TruePassage, TrueVisit
from tests.truth.usage import TrueFences

DWELL_MS = 300_000


class TrueEvent(NamedTuple):
    """`kind`: enter, exit or dwell. `lasted_ms`: the known time of the visit until then."""

    time_ms: int
    kind: str
    lasted_ms: int = 0


def facts_of(tenant: str, device: str, positions: list[TruePosition], fences: TrueFences) -> TrueFacts:
    """The visits and passages of one device. `positions`: in the order in which they were made."""
    events: dict[str, list[TrueEvent]] = {}
    passages: list[TruePassage] = []
    for track in places(positions, "every_fix"):
        for name in _fences_near(track, fences):
            events.setdefault(name, []).extend(_events(track, name, fences))
        for start, end in pairwise(track):
            for gate in fences.gates_at(_moment(end.time_us // 1000)):
                for share, forward in gate.crossings(point(start), point(end)):
                    moment = _moment(_ms(start.time_us + (end.time_us - start.time_us) * share))
                    way = "forward" if forward else "backward"
                    passages.append(TruePassage(tenant, device, gate.id, moment, way))
    visits = [visit for name, of in events.items() for visit in _visits((tenant, device, name), of)]
    return TrueFacts(tuple(sorted(visits, key=lambda one: (one.begin, one.zone))), tuple(passages))


def _fences_near(track: list[TruePlace], fences: TrueFences) -> list[str]:
    """The fences whose boxes meet that of the track."""
    points = [point(place) for place in track]
    (west, east), (south, north) = ((min(of), max(of)) for of in zip(*points, strict=True))
    zones = (zone for place in track for zone in fences.at(_moment(place.time_us // 1000)).in_order)
    return sorted(
        {
            zone.id
            for zone in zones
            if west <= zone.high.x and zone.low.x <= east and south <= zone.high.y and zone.low.y <= north
        }
    )


def _events(track: list[TruePlace], name: str, fences: TrueFences) -> Iterator[TrueEvent]:
    """What happens on a track at a fence: a side counts from the crossing after which the vehicle is surely on it."""
    sides = list(sides_of(track, name, lambda place: fences.at(_moment(place.time_us // 1000))))
    # The first fix decides on which side the track begins.
    counted = [side for number, side in enumerate(sides) if not number or _is_sure(side)]
    changes = counted[:1] + [side for before, side in pairwise(counted) if before.inside != side.inside]
    for number, side in enumerate(changes):
        following = changes[number + 1] if number + 1 < len(changes) else None
        begin, end = _ms(side.start_us), _ms(following.start_us if following else Fraction(track[-1].time_us))
        if side.inside:
            if number:
                yield TrueEvent(begin, "enter")
            if end - begin >= DWELL_MS:
                yield TrueEvent(begin + DWELL_MS, "dwell", DWELL_MS)
            if following:
                yield TrueEvent(end, "exit", end - begin)


def _is_sure(side: Side) -> bool:
    return any(zone is None or deep(zone, way, max(BUFFER_M, way.uncertain_m)) for zone, way in side.ways)


def _visits(of: tuple[str, str, str], events: Iterable[TrueEvent]) -> Iterator[TrueVisit]:
    """Each enter with the next exit. Of a visit with one end that nobody saw, the time known is that of its events."""
    entered: datetime | None = None
    last: datetime | None = None
    for event in sorted(events):
        moment = _moment(event.time_ms)
        if event.kind == "enter":
            if entered is not None:
                yield TrueVisit(*of, entered, moment, known_until=last)
            entered = last = moment
        elif event.kind == "dwell":
            last = moment
        else:
            begin = entered or moment - timedelta(milliseconds=event.lasted_ms)
            yield TrueVisit(*of, begin, moment, is_entered=entered is not None)
            entered = last = None
    if entered is not None:
        yield TrueVisit(*of, entered, None)


def _ms(time_us: Fraction) -> int:
    return round(time_us / 1000)


def _moment(time_ms: int) -> datetime:
    return (EPOCH + timedelta(milliseconds=time_ms)).astimezone(UTC)
