"""Usage of received records by quarters of an hour, with the fences then in force."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from simulator.truth.charged import ChargedEntries
from simulator.truth.contracts import TrueQuarter
from simulator.truth.journal import EPOCH, Made, TruePosition
from simulator.truth.metering import QUARTER_US, Piece, inferred_in, pieces_of, whole_usage_of
from simulator.truth.shapes import TrueGate, TruthError, Zone, Zones, gate_of, zone_of
from simulator.truth.track import TruePlace, places


class TrueFences:
    """All known versions of all fences. A later publication of the same version replaces it."""

    def __init__(self, features: Iterable[str]) -> None:
        """`features`: GeoJSON texts, in the order of publication. Raises TruthError."""
        self._versions: dict[tuple[str, datetime], Zone] = {}
        self._gates: dict[str, tuple[datetime, TrueGate]] = {}
        self._made: dict[datetime | None, Zones] = {}
        for text in features:
            try:
                # Decimals, because the nearest double is beside the corner.
                feature = json.loads(text, parse_float=Decimal)
                begin = datetime.fromisoformat(feature["properties"]["effective_from"])
                if feature["properties"].get("gate"):
                    gate = gate_of(feature)
                    self._gates[gate.id] = begin, gate
                    continue
                zone = zone_of(feature)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise TruthError(f"a fence that cannot be understood: {error!r}") from error
            self._versions[zone.id, begin.astimezone(UTC)] = zone

    def at(self, moment: datetime) -> Zones:
        """The zones at a moment: of each fence the version that began last."""
        begins = [begin for _, begin in self._versions if begin <= moment]
        # Nothing changes between two beginnings.
        era = max(begins, default=None)
        if era not in self._made:
            latest: dict[str, Zone] = {}
            for (name, begin), zone in sorted(self._versions.items(), key=lambda item: item[0][1]):
                if begin <= moment:
                    latest[name] = zone
            self._made[era] = Zones(list(latest.values()))
        return self._made[era]

    def gates_at(self, moment: datetime) -> list[TrueGate]:
        """The gates at a moment, each of its last publication only."""
        return [gate for begin, gate in self._gates.values() if begin <= moment]


class KnownRecord(NamedTuple):
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
    """Rounded once, half to even. Leaving all zones is no entry."""
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
