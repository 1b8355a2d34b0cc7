"""Usage by quarters of an hour and zones, from tracks and records, with plain loops."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import ChargedEntries, between, changes, charged_crossings, is_sure, point
from simulator.truth.contracts import WHOLE_DEVICE
from simulator.truth.journal import Made, TruePosition, content_bytes, is_customer_event
from simulator.truth.shapes import DEGREE, OUTSIDE, ExactPoint, TrueGate, Zones
from simulator.truth.track import NOT_SAID_M, TruePlace, TrueRule, metres, places, stated_m, tracks

QUARTER_US = 900_000_000


class TrueUsage(NamedTuple):
    """The usage of a device in a zone ("" outside) or at a gate, in the quarter of an hour from `quarter`.

    Zone "*" is the whole device: its events, and the size of its records.
    """

    device: str
    quarter: datetime
    zone: str
    distance_mm: int = 0
    duration_ms: int = 0
    entries: int = 0
    crossings: int = 0
    events: int = 0
    content_bytes: int = 0


class Piece(NamedTuple):
    zone: str
    length_m: float
    duration_ms: Fraction
    entered: int
    begin_us: Fraction = Fraction(0)


class _Sum:
    def __init__(self) -> None:
        self.lengths_m: list[float] = []
        self.duration_ms = Fraction(0)
        self.entries = 0


def usage_of(device: str, positions: list[TruePosition], zones: Zones, rule: TrueRule = "every_fix") -> list[TrueUsage]:
    """The usage of one device in zones, without empty rows."""
    sums: dict[tuple[int, str], _Sum] = {}
    for track in places(positions, rule):
        charges = ChargedEntries(track, lambda _: zones) if rule == "standstill" else None
        for end, piece in pieces_of(track, zones):
            total = sums.setdefault((end.time_us // QUARTER_US, piece.zone), _Sum())
            # Kept for fsum, because a running sum of doubles depends on the order.
            total.lengths_m.append(piece.length_m)
            total.duration_ms += piece.duration_ms
            if piece.entered and piece.zone != OUTSIDE:
                total.entries += charges is None or charges.charged(piece.zone, piece.begin_us)
    rows = (_usage(device, quarter, zone, total) for (quarter, zone), total in sorted(sums.items()))
    return [row for row in rows if row.distance_mm or row.duration_ms or row.entries]


def gate_usage_of(
    device: str, positions: list[TruePosition], gates: Iterable[TrueGate], rule: TrueRule = "every_fix"
) -> list[TrueUsage]:
    """The crossings of one device; each belongs to the quarter in which its segment ends."""
    found: Counter[tuple[int, str]] = Counter()
    for track in places(positions, rule):
        for gate in gates:
            if rule == "standstill":
                ends = charged_crossings(track, gate)
            else:
                ways = pairwise(track)
                ends = [end for start, end in ways for _ in gate.crossings(point(start), point(end))]
            found.update((end.time_us // QUARTER_US, gate.id) for end in ends)
    return [
        TrueUsage(device, _begin(quarter), gate, crossings=count)
        for (quarter, gate), count in sorted(found.items())
        if count
    ]


def whole_usage_of(device: str, records: Mapping[Made, int]) -> list[TrueUsage]:
    """The whole device, from its records and their counts; records without a time are left out."""
    events, said = Counter[int](), Counter[int]()
    for made, count in records.items():
        if made.time_us is not None:
            events[made.time_us // QUARTER_US] += count * is_customer_event(made)
            said[made.time_us // QUARTER_US] += count * content_bytes(made)
    return [
        TrueUsage(device, _begin(quarter), WHOLE_DEVICE, events=events[quarter], content_bytes=said[quarter])
        for quarter in sorted(said)
    ]


def _begin(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * 900, UTC)


def pieces_of(track: list[TruePlace], zones: Zones) -> Iterator[tuple[TruePlace, Piece]]:
    """The pieces of a track, each with the fix that ends its segment and decides its hour."""
    if not track:
        return
    here = zones.at(point(track[0]))
    for start, end in pairwise(track):
        for piece in _pieces(start, end, here, zones):
            yield end, piece
            here = piece.zone


def _usage(device: str, quarter: int, zone: str, total: _Sum) -> TrueUsage:
    """Rounded once, half to even. Leaving all zones is no entry."""
    return TrueUsage(
        device,
        _begin(quarter),
        zone,
        round(math.fsum(total.lengths_m) * 1000),
        round(total.duration_ms),
        0 if zone == OUTSIDE else total.entries,
    )


def _pieces(start: TruePlace, end: TruePlace, here: str, zones: Zones) -> Iterator[Piece]:
    """The way from `start`, which is in zone `here`, to `end`. A zone that is only touched gives a piece without
    length.

    A standing vehicle has no length and enters nothing.
    """
    a, b = point(start), point(end)
    time_us = end.time_us - start.time_us
    for zone, first, last, entered in _stays(a, b, here, zones):
        if end.still or first == last:
            length_m = 0.0
        elif last - first == 1:
            length_m = end.metres
        else:
            length_m = _length_m(between(a, b, first), between(a, b, last))
        yield Piece(
            zone,
            length_m,
            Fraction(time_us, 1000) * (last - first),
            0 if end.still else entered,
            start.time_us + time_us * first,
        )


def _stays(a: ExactPoint, b: ExactPoint, here: str, zones: Zones) -> Iterator[tuple[str, Fraction, Fraction, int]]:
    """(zone, from, to, 1 if entered) along the way from `a` to `b`; neighbours differ."""
    since, entered = Fraction(0), 0
    for share, zone in changes(a, b, zones):
        if zone != here:
            yield here, since, share, entered
            here, since, entered = zone, share, 1
    yield here, since, Fraction(1), entered


def _length_m(a: ExactPoint, b: ExactPoint) -> float:
    return metres(
        float(Fraction(a.y, DEGREE)),
        float(Fraction(a.x, DEGREE)),
        float(Fraction(b.y, DEGREE)),
        float(Fraction(b.x, DEGREE)),
    )


def whole(pieces: Iterable[Piece]) -> tuple[float, Fraction]:
    lengths, durations = [], Fraction(0)
    for piece in pieces:
        lengths.append(piece.length_m)
        durations += piece.duration_ms
    return math.fsum(lengths), durations


# Unknown ways by quarters of an hour, with plain loops.

NOISE_M = 200.0
"""A beeline up to here is none of a vehicle that moved."""
SLOW_MPS = 3
"""A gap is as long as its beeline takes at this speed, at most."""
DRIVEN_MPS = 1.0
HOUR_US = 3_600_000_000
LONGEST_HOURS = 24


class TrueUnknown(NamedTuple):
    """What a device drove in a quarter, and what gaps that ended in it hide: time, beeline, and necessary entries."""

    device: str
    quarter: datetime
    driven_ms: int = 0
    unknown_ms: int = 0
    unknown_mm: int = 0
    inferred_entries: int = 0


class _GapSum:
    def __init__(self) -> None:
        self.driven_us = 0
        self.unknown_ms: list[float] = []
        self.beelines_m: list[float] = []
        self.entries = 0


def unknown_of(
    device: str, positions: list[TruePosition], zones: Zones, rule: TrueRule = "every_fix"
) -> list[TrueUnknown]:
    """The known and unknown driving of one device, by quarter, without empty rows.

    Driving is between smoothed places; a gap is between two reported ones.
    """
    sums = dict[int, _GapSum]()
    for track in places(positions, rule):
        for start, end in pairwise(track):
            spent_us = end.time_us - start.time_us
            if not end.still and end.metres * 1e6 >= DRIVEN_MPS * spent_us:
                sums.setdefault(end.time_us // QUARTER_US, _GapSum()).driven_us += spent_us
    for begin, finish, length_m in _gaps(list(tracks(positions, rule))):
        total = sums.setdefault(finish.time_us // QUARTER_US, _GapSum())
        total.unknown_ms.append(min((finish.time_us - begin.time_us) / 1000, length_m * (1000 / SLOW_MPS)))
        total.beelines_m.append(length_m)
    for (quarter, _), count in inferred_in(positions, lambda _: zones, rule).items():
        sums[quarter].entries += count
    return [_row(device, quarter, total) for quarter, total in sorted(sums.items())]


def inferred_in(
    positions: list[TruePosition], zones_at: Callable[[TruePosition], Zones], rule: TrueRule = "every_fix"
) -> Counter[tuple[int, str]]:
    """The entries that a device must have made in gaps, by quarter (since 1970) and zone.

    `zones_at`: the zones in force at a fix. Both ends of a gap must be sure of their side.
    """
    found = Counter[tuple[int, str]]()
    for begin, finish, _ in _gaps(list(tracks(positions, rule))):
        before, after = (zones_at(fix).at(_point(fix)) for fix in (begin, finish))
        sure = rule == "every_fix" or all(_is_sure(fix, zones_at(fix), {before, after}) for fix in (begin, finish))
        found[finish.time_us // QUARTER_US, after] += sure and after not in {OUTSIDE, before}
    return +found


def _is_sure(fix: TruePosition, zones: Zones, names: set[str]) -> bool:
    """Whether a fix is surely on one side of each of these zones that is in force."""
    uncertain_m = stated_m(fix) or NOT_SAID_M / 2.0
    return all(is_sure(zone, _point(fix), uncertain_m) for zone in zones.in_order if zone.id in names)


def _gaps(found: list[list[TruePosition]]) -> Iterator[tuple[TruePosition, TruePosition, float]]:
    """The fixes around each gap in which the device moved, and their distance.

    Excluded fixes end no gap. A gap of more than a day is silence.
    """
    for before, after in pairwise(found):
        start, end = before[-1], after[0]
        length_m = metres(
            start.latitude_e7 / 1e7, start.longitude_e7 / 1e7, end.latitude_e7 / 1e7, end.longitude_e7 / 1e7
        )
        if end.time_us // HOUR_US - start.time_us // HOUR_US <= LONGEST_HOURS and length_m > NOISE_M:
            yield start, end, length_m


def _point(fix: TruePosition) -> ExactPoint:
    return ExactPoint(fix.longitude_e7 * (DEGREE // 10**7), fix.latitude_e7 * (DEGREE // 10**7))


def _row(device: str, quarter: int, total: _GapSum) -> TrueUnknown:
    return TrueUnknown(
        device,
        datetime.fromtimestamp(quarter * 900, UTC),
        round(Fraction(total.driven_us, 1000)),
        round(math.fsum(total.unknown_ms)),
        round(math.fsum(total.beelines_m) * 1000),
        total.entries,
    )
