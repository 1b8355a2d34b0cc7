"""From tracks and records to usage by quarters of the hour and zones, with plain loops."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import ChargedEntries, between, changes, charged_crossings, point
from simulator.truth.gates import TrueGate
from simulator.truth.journal import TruePosition
from simulator.truth.made import Made, content_bytes, is_customer_event
from simulator.truth.quarters import WHOLE_DEVICE
from simulator.truth.shapes import DEGREE, OUTSIDE, ExactPoint, Zones
from simulator.truth.standstill import TruePlace
from simulator.truth.track import TrueRule, metres, places

QUARTER_US = 900_000_000


class TrueUsage(NamedTuple):
    """What a device did in a zone ("" outside) or at a gate in the quarter of an hour that begins at `quarter`.

    The zone "*" is the device as a whole: its events, and how much its records say.
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
    """A part of the way between two fixes that lies in one zone; `begin_us`: when it begins."""

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
    """The usage of one device in zones, by quarter and zone; rows with nothing in them are left out."""
    sums: dict[tuple[int, str], _Sum] = {}
    for track in places(positions, rule):
        charges = ChargedEntries(track, lambda _: zones) if rule == "standstill" else None
        for end, piece in pieces_of(track, zones):
            total = sums.setdefault((end.time_us // QUARTER_US, piece.zone), _Sum())
            # Kept one by one for fsum: a running sum of doubles would depend on the order of the pieces.
            total.lengths_m.append(piece.length_m)
            total.duration_ms += piece.duration_ms
            if piece.entered and piece.zone != OUTSIDE:
                total.entries += charges is None or charges.charged(piece.zone, piece.begin_us)
    rows = (_usage(device, quarter, zone, total) for (quarter, zone), total in sorted(sums.items()))
    return [row for row in rows if row.distance_mm or row.duration_ms or row.entries]


def gate_usage_of(
    device: str, positions: list[TruePosition], gates: Iterable[TrueGate], rule: TrueRule = "every_fix"
) -> list[TrueUsage]:
    """The crossings of one device, by quarter and gate; one on a segment belongs to the quarter of its end."""
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
    """The device as a whole, by quarter, from its records and how many times each; without those that have no time."""
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
    """The pieces of a track in order, each with the fix that ends its segment (and decides its hour)."""
    if not track:
        return
    here = zones.at(point(track[0]))
    for start, end in pairwise(track):
        for piece in _pieces(start, end, here, zones):
            yield end, piece
            here = piece.zone


def _usage(device: str, quarter: int, zone: str, total: _Sum) -> TrueUsage:
    """Rounds once, half to even; coming out of all zones is no entry."""
    return TrueUsage(
        device,
        _begin(quarter),
        zone,
        round(math.fsum(total.lengths_m) * 1000),
        round(total.duration_ms),
        0 if zone == OUTSIDE else total.entries,
    )


def _pieces(start: TruePlace, end: TruePlace, here: str, zones: Zones) -> Iterator[Piece]:
    """The way from `start`, which is in zone `here`, to `end`; a zone only reached by it gives a piece of no length.

    Who stands has no length and enters nothing.
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
    """(zone, from, to, 1 if it was entered on this way) along the way from `a` to `b`, neighbours never equal."""
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
    """Metres and milliseconds of all pieces together."""
    lengths, durations = [], Fraction(0)
    for piece in pieces:
        lengths.append(piece.length_m)
        durations += piece.duration_ms
    return math.fsum(lengths), durations
