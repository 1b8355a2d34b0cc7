"""From the records of a device to what it used, by quarters of an hour: each segment by the fences in force then."""

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import ChargedEntries
from simulator.truth.fence_versions import TrueFences
from simulator.truth.gaps import inferred_in
from simulator.truth.journal import TruePosition
from simulator.truth.made import EPOCH, Made
from simulator.truth.metering import QUARTER_US, Piece, pieces_of, whole_usage_of
from simulator.truth.quarters import TrueQuarter
from simulator.truth.shapes import Zones
from simulator.truth.standstill import TruePlace
from simulator.truth.track import places


class KnownRecord(NamedTuple):
    """A record that is known, and the fix if it is one."""

    made: Made
    position: TruePosition | None = None


def quarters_used(tenant: str, device: str, records: Iterable[KnownRecord], fences: TrueFences) -> list[TrueQuarter]:
    """The usage of one device, sorted by quarter and zone; `records` in the order in which they were made."""
    records = list(records)
    pieces: dict[tuple[int, str], list[Piece]] = {}

    def zones_at(end: TruePlace | TruePosition) -> Zones:
        return fences.at(_moment(end.time_us))

    positions = [record.position for record in records if record.position is not None]
    for track in places(positions, "standstill"):
        charges = ChargedEntries(track, zones_at)
        for start, end in pairwise(track):
            for _, piece in pieces_of([start, end], zones_at(end)):
                charged = piece.entered and piece.zone and charges.charged(piece.zone, piece.begin_us)
                pieces.setdefault((end.time_us // QUARTER_US, piece.zone), []).append(
                    piece._replace(entered=int(bool(charged)))
                )
    rows = [_moved(tenant, device, quarter, zone, found) for (quarter, zone), found in pieces.items()]
    for (quarter, zone), count in inferred_in(positions, zones_at, "standstill").items():
        rows.append(TrueQuarter(tenant, device, _moment(quarter * QUARTER_US), zone, inferred_entries=count))
    wholes = whole_usage_of(device, Counter(record.made for record in records))
    rows += [TrueQuarter(tenant, *whole) for whole in wholes]
    return sorted(row for row in rows if any(row[4:]))


def _moved(tenant: str, device: str, quarter: int, zone: str, pieces: list[Piece]) -> TrueQuarter:
    """Rounds once, half to even; coming out of all zones is no entry."""
    return TrueQuarter(
        tenant,
        device,
        _moment(quarter * QUARTER_US),
        zone,
        round(math.fsum(piece.length_m for piece in pieces) * 1000),
        round(sum((piece.duration_ms for piece in pieces), Fraction(0))),
        sum(piece.entered for piece in pieces) if zone else 0,
    )


def _moment(time_us: int) -> datetime:
    return (EPOCH + timedelta(microseconds=time_us)).astimezone(UTC)
