"""From tracks and records to usage by quarters of the hour and zones, with plain loops."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.gates import TrueGate
from simulator.truth.journal import TruePosition
from simulator.truth.made import Made, content_bytes, is_customer_event
from simulator.truth.quarters import WHOLE_DEVICE
from simulator.truth.shapes import DEGREE, OUTSIDE, ExactPoint, Zones
from simulator.truth.track import metres, tracks

QUARTER_US = 900_000_000
E7 = DEGREE // 10**7


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
    """A part of the way between two fixes that lies in one zone."""

    zone: str
    length_m: float
    duration_ms: Fraction
    entered: int


class _Sum:
    def __init__(self) -> None:
        self.lengths_m: list[float] = []
        self.duration_ms = Fraction(0)
        self.entries = 0


def usage_of(device: str, positions: list[TruePosition], zones: Zones) -> list[TrueUsage]:
    """The usage of one device in zones, by quarter and zone; rows with nothing in them are left out."""
    sums: dict[tuple[int, str], _Sum] = {}
    for track in tracks(positions):
        for end, piece in pieces_of(track, zones):
            total = sums.setdefault((end.time_us // QUARTER_US, piece.zone), _Sum())
            # Kept one by one for fsum: a running sum of doubles would depend on the order of the pieces.
            total.lengths_m.append(piece.length_m)
            total.duration_ms += piece.duration_ms
            total.entries += piece.entered
    rows = (_usage(device, quarter, zone, total) for (quarter, zone), total in sorted(sums.items()))
    return [row for row in rows if row.distance_mm or row.duration_ms or row.entries]


def gate_usage_of(device: str, positions: list[TruePosition], gates: Iterable[TrueGate]) -> list[TrueUsage]:
    """The crossings of one device, by quarter and gate; one on a segment belongs to the quarter of its end."""
    found: Counter[tuple[int, str]] = Counter()
    for track in tracks(positions):
        for start, end in pairwise(track):
            for gate in gates:
                found[end.time_us // QUARTER_US, gate.id] += gate.crossings(_point(start), _point(end))
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


def pieces_of(track: list[TruePosition], zones: Zones) -> Iterator[tuple[TruePosition, Piece]]:
    """The pieces of a track in order, each with the fix that ends its segment (and decides its hour)."""
    if not track:
        return
    here = zones.at(_point(track[0]))
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


def _pieces(start: TruePosition, end: TruePosition, here: str, zones: Zones) -> Iterator[Piece]:
    """The way from `start`, which is in zone `here`, to `end`; a zone only reached by it gives a piece of no length."""
    a, b = _point(start), _point(end)
    duration_ms = Fraction(end.time_us - start.time_us, 1000)
    for zone, first, last, entered in _stays(a, b, here, zones):
        length_m = _length_m(_between(a, b, first), _between(a, b, last)) if last > first else 0.0
        yield Piece(zone, length_m, duration_ms * (last - first), entered)


def _stays(a: ExactPoint, b: ExactPoint, here: str, zones: Zones) -> Iterator[tuple[str, Fraction, Fraction, int]]:
    """(zone, from, to, 1 if it was entered on this way) along the way from `a` to `b`, neighbours never equal."""
    since, entered = Fraction(0), 0
    for share, zone in _zones_along(a, b, zones):
        if zone != here:
            yield here, since, share, entered
            here, since, entered = zone, share, 1
    yield here, since, Fraction(1), entered


def _zones_along(a: ExactPoint, b: ExactPoint, zones: Zones) -> Iterator[tuple[Fraction, str]]:
    """The zone between each two borders that the way meets, and at its end; every change of zone is among them.

    The zone at a border itself is not asked for: a way that touches one point of a zone and turns off crosses nothing.
    """
    cuts = zones.cuts(a, b)
    if not cuts:
        return
    marks = sorted({Fraction(0), *cuts, Fraction(1)})
    for mark, following in pairwise(marks):
        yield mark, zones.at(_between(a, b, (mark + following) / 2))
    yield Fraction(1), zones.at(b)


def _between(a: ExactPoint, b: ExactPoint, share: Fraction) -> ExactPoint:
    return ExactPoint(a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share)


def _length_m(a: ExactPoint, b: ExactPoint) -> float:
    return metres(
        float(Fraction(a.y, DEGREE)),
        float(Fraction(a.x, DEGREE)),
        float(Fraction(b.y, DEGREE)),
        float(Fraction(b.x, DEGREE)),
    )


def _point(fix: TruePosition) -> ExactPoint:
    return ExactPoint(fix.longitude_e7 * E7, fix.latitude_e7 * E7)


def whole(pieces: Iterable[Piece]) -> tuple[float, Fraction]:
    """Metres and milliseconds of all pieces together."""
    lengths, durations = [], Fraction(0)
    for piece in pieces:
        lengths.append(piece.length_m)
        durations += piece.duration_ms
    return math.fsum(lengths), durations
