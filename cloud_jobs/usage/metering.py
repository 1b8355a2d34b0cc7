"""Usage from records: a pure function of one device's records in one UTC hour and the fixes around it. Knows no Spark.

A segment, from one fix to the next, belongs wholly to the quarter of the fix that ends it, and so does a crossing on
it. Sums of a quarter are rounded once, here, half to even, to whole millimetres and milliseconds; an hour is the sum of
its quarters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import OBSERVED, QUANTITIES, QUARTERS, USAGE, WHOLE_DEVICE, without
from cloud_jobs.lake.values import HOUR_S, counters_texts, row_digest, seq_range_texts, unreadable_text
from cloud_jobs.reference.tables import FenceVersions, parsed
from cloud_jobs.usage.reading import HOUR_MS, MOST_HOURS, NOT_RAW, REASONS, Arrays, device_hours, device_of, hour_of
from geo.spatial import (
    ENGINE_VERSION,
    OUTSIDE,
    Fence,
    Fixes,
    Gate,
    GateSet,
    Tracks,
    TrackSettings,
    Verdict,
    ZoneSet,
    build_tracks,
    charged_crossings,
    charged_entries,
    is_sure,
)
from geo.spatial.geodesic import distance_m, unwrapped_end
from geo.spatial.ragged import Bools, Floats, Ints, distinct, run_starts

# Provenance of a usage row: its records and a digest. Pure.


# Unknown ways: gaps between fixes without a segment. Pure.

NOISE_M: Final = 200.0
"""Two fixes at one place may be this far apart with the worst accuracy that a track takes, 100 m."""
SLOW_MPS: Final = 3.0
DRIVEN_MPS: Final = 1.0
"""A segment of at least this speed was driven."""
_TIME_BITS: Final = 43
"""Bits for the milliseconds of the days that have partitions."""


class Gaps(NamedTuple):
    """Gaps by the fixes around them: rows of the fixes of tracks."""

    begin: Ints
    end: Ints
    metres: Floats
    ms: Floats


def gaps_of(tracks: Tracks, reported: Fixes, ends: Bools) -> Gaps:
    """The gaps that count. `ends`: for each fix, whether gaps that end there are asked for.

    Places are the `reported` ones: the cleaned places of a track depend on fixes before the begin that are not read.
    """
    row, fixes = tracks.row, reported
    device = fixes.device[row]
    at = np.flatnonzero(~tracks.linked[1:] & (device[1:] == device[:-1]) & ends[row[1:]]) + 1
    begin, end = row[at - 1], row[at]
    # a longer gap is silence
    near = fixes.t_ms[end] // HOUR_MS - fixes.t_ms[begin] // HOUR_MS <= MOST_HOURS
    begin, end = begin[near], end[near]
    lon = unwrapped_end(fixes.lon[begin], fixes.lon[end])
    metres = distance_m(fixes.lon[begin], fixes.lat[begin], lon, fixes.lat[end])
    far = metres > NOISE_M
    begin, end, metres = begin[far], end[far], metres[far]
    spent = (fixes.t_ms[end] - fixes.t_ms[begin]).astype(np.float64)
    return Gaps(begin, end, metres, np.minimum(spent, metres * (1000.0 / SLOW_MPS)))


def inferred_entries(reported: Fixes, gaps: Gaps, zones: ZoneSet, settings: TrackSettings) -> tuple[Ints, Ints]:
    """The entries that must have happened in gaps: the place among the gaps, and the zone, by its name's number.

    Both ends must be surely on their side of the border of the zone that is left and of the zone that is entered. So a
    vehicle parked beside a border enters nothing, and an entry of the track behind the gap is not counted twice.
    """
    ends = gaps.begin, gaps.end
    before, after = (zones.zone_at(reported.lon[at], reported.lat[at], reported.t_ms[at]) for at in ends)
    entered = np.flatnonzero((after != OUTSIDE) & (after != before))
    for at in ends:
        for zone in (after, before):
            entered = entered[is_sure(reported, at[entered], zones, zone[entered], settings)]
    return entered, after[entered]


def driven(tracks: Tracks) -> tuple[Ints, Ints]:
    """The rows of the fixes that end driven segments, and how long these took."""
    at = tracks.segments()
    end, begin = tracks.row[at], tracks.row[at - 1]
    ms = tracks.fixes.t_ms[end] - tracks.fixes.t_ms[begin]
    moved = ~tracks.still[at] & (tracks.metres[at] * 1000.0 >= ms * DRIVEN_MPS)
    return end[moved], ms[moved]


def refused(tracks: Tracks, reported: Fixes, max_gap_s: float) -> Ints:
    """The rows of excluded fixes that may hide a way: no kept fix is within the gap before them.

    An excluded fix with the time of a kept one hides a way if it is at another place.
    """
    row = np.flatnonzero(tracks.verdict != Verdict.KEPT)
    if not len(row) or not len(tracks.row):
        return row
    key = (reported.device << _TIME_BITS) + reported.t_ms
    kept = tracks.row[np.maximum(np.searchsorted(key[tracks.row], key[row], side="right") - 1, 0)]
    since_ms = key[row] - key[kept]
    hides = (since_ms < 0) | (since_ms > max_gap_s * 1000.0)
    twice = np.flatnonzero(since_ms == 0)
    first, other = kept[twice], row[twice]
    lon = unwrapped_end(reported.lon[first], reported.lon[other])
    hides[twice] = distance_m(reported.lon[first], reported.lat[first], lon, reported.lat[other]) > NOISE_M
    return row[hides]


QUARTER_MS: Final = HOUR_MS // QUARTERS
OUTSIDE_ALL: Final = ""
METERED = without(USAGE, "computed_at", "commit_number", "rules_number")
"""One row for each device, touched hour, and zone or gate where it was; one more for the device as a whole in each
touched hour with records."""


class MeterRules:
    """What decides usage apart from the records: the zones and gates of features, and the settings of tracks."""

    def __init__(self, features: Sequence[str], settings: TrackSettings) -> None:
        """Raises CloudError for a feature that cannot be used."""
        made = [*parsed(features)]
        self.settings: Final = settings
        self.zones: Final = ZoneSet([one for one in made if isinstance(one, Fence)])
        self.gates: Final = GateSet([one for one in made if isinstance(one, Gate)])
        self.versions: Final = FenceVersions(zip(features, made, strict=True), round(settings.max_gap_s * 1000))
        ids = [gate.id for gate in self.gates.gates]
        self.names: Final = tuple(sorted({OUTSIDE_ALL, WHOLE_DEVICE, *self.zones.names, *ids}))
        number = {name: at for at, name in enumerate(self.names)}
        # the last place stands for OUTSIDE, which is -1
        self.of_zone: Final = np.array([number[name] for name in (*self.zones.names, OUTSIDE_ALL)], np.int64)
        self.of_gate: Final = np.array([number[name] for name in ids], np.int64)
        self.whole: Final = number[WHOLE_DEVICE]


class Metered(NamedTuple):
    """Rows of usage as columns, in the order of (device, hour, zone).

    `device` is the place among the names, `hour` since 1970. Each of `quantities`, in the order of QUANTITIES, and of
    `observed`, in that of OBSERVED, is (rows, quarters).
    """

    device: list[int]
    hour: list[int]
    zone: list[str]
    quantities: tuple[Ints, ...]
    observed: tuple[Ints, ...]
    unreadable: list[str]
    counters: list[str]
    seq_ranges: list[str]

    def __len__(self) -> int:
        return len(self.zone)

    def table(
        self, names: Sequence[TenantDevice], versions: FenceVersions, engine_version: int | None = None
    ) -> pa.Table:
        """The rows with what they rest on (schema METERED); `engine_version`: the one that they state, else the present
        one.
        """
        engine = ENGINE_VERSION if engine_version is None else engine_version
        quarters = [amounts.tolist() for amounts in self.quantities]
        observed = zip(*(amounts.tolist() for amounts in self.observed), strict=True)
        fences = [versions.of(zone, hour) for zone, hour in zip(self.zone, self.hour, strict=True)]
        digests = [
            row_digest(
                names[device], hour, zone, amounts, (ranges, fence, engine), observed=of, unreadable=raw, counters=said
            )
            for device, hour, zone, ranges, fence, of, raw, said, *amounts in zip(
                *(self.device, self.hour, self.zone, self.seq_ranges, fences, observed, self.unreadable, self.counters),
                *quarters,
                strict=True,
            )
        ]
        hour = np.array(self.hour, np.int64)
        limits = pa.array(np.arange(len(self) + 1, dtype=np.int32) * QUARTERS)
        columns: dict[str, Any] = {
            "tenant": pa.array([name.tenant for name in names], pa.string()).take(pa.array(self.device, pa.int64())),
            "device": pa.array([name.device for name in names], pa.string()).take(pa.array(self.device, pa.int64())),
            "hour": pa.array(hour * (HOUR_S * 1_000_000)).cast(METERED.field("hour").type),
            "zone": pa.array(self.zone, pa.string()),
            "unreadable": pa.array(self.unreadable, pa.string()),
            "counters": pa.array(self.counters, pa.string()),
            "seq_ranges": pa.array(self.seq_ranges, pa.string()),
            "fence_version": pa.array(fences, pa.string()),
            "engine_version": pa.array(np.full(len(self), engine, np.int32)),
            "digest": pa.array(digests, pa.string()),
            "day": pa.array((hour // 24).astype(np.int32)).cast(pa.date32()),
        }
        for name, amounts in zip((*QUANTITIES, *OBSERVED), (*self.quantities, *self.observed), strict=True):
            columns[name] = pa.ListArray.from_arrays(limits, pa.array(amounts.reshape(-1)))
        return pa.table([columns[field.name] for field in METERED], schema=METERED)


class _Share(NamedTuple):
    """The parts of rows of usage: for each the key of its row, the quarter of its hour, and the two records (by their
    places) that it lies between; they may be the same.
    """

    key: Ints
    quarter: Ints
    begin: Ints
    end: Ints


def meter(records: Arrays, rules: MeterRules) -> Metered:
    """Usage of the touched hours, from records with the fixes around them.

    `records`: RECORD_ARRAYS, `touched` (the record's hour is asked for), each device's in the order of (epoch, seq).
    """
    place = np.flatnonzero(records["is_position"])
    track = track_of(records, place, rules.settings)
    before, touched = _fix_before(track), records["touched"]
    pieces = rules.zones.split(track)
    entry = charged_entries(track, rules.zones, pieces, rules.settings)
    mine = np.flatnonzero(touched[place[pieces.end_fix]])
    ends = pieces.end_fix[mine]
    ways = _share(records, rules, place[before[ends]], place[ends], rules.of_zone[pieces.zone[mine]])
    ends, gates = _crossed(track, rules)
    asked = np.flatnonzero(touched[place[ends]])
    ends, gates = ends[asked], rules.of_gate[gates[asked]]
    crossed = _share(records, rules, place[before[ends]], place[ends], gates)
    own = np.flatnonzero(touched)
    whole = _share(records, rules, own, own, np.full(len(own), rules.whole))
    unknown = _Unknown.of(records, rules, place, track)
    shares = ways, crossed, whole, unknown.entered
    rows = _Rows(
        distinct(np.concatenate([share.key[run_starts(share.key)] for share in shares if len(share.key)] or [ends]))
    )
    way, crossing, record, inferred = (rows.slot(share) for share in shares)
    gap, drove = rows.slot(unknown.gap), rows.slot(unknown.drove)
    return Metered(
        device=device_of(rows.keys // len(rules.names)).tolist(),
        hour=hour_of(rows.keys // len(rules.names)).tolist(),
        zone=[rules.names[number] for number in (rows.keys % len(rules.names)).tolist()],
        quantities=(
            rows.sums(way, pieces.metres[mine], 1000.0),
            rows.sums(way, pieces.ms[mine], 1.0),
            rows.counts(way[entry[mine]]),
            rows.counts(crossing),
            rows.counts(record[records["is_event"][own]]),
            rows.totals(record, records["content_bytes"][own]),
        ),
        observed=(
            rows.counts(record[records["is_readable"][own]]),
            rows.counts(record[records["is_position"][own]]),
            rows.counts(record[_are(place[track.row], records)[own]]),
            rows.counts(record[_are(place[unknown.refused], records)[own]]),
            rows.totals(drove, unknown.driven_ms),
            rows.sums(gap, unknown.gaps.ms, 1.0),
            rows.sums(gap, unknown.gaps.metres, 1000.0),
            # of the zone, and of the device as a whole
            rows.counts(np.concatenate([inferred, gap[unknown.gap_of_entry]])),
        ),
        unreadable=_unreadable(len(rows.keys), record, records["reason"][own]),
        counters=counters_texts([""] * len(rows.keys), record, records["is_odometer"][own], records["counter"][own]),
        seq_ranges=_seq_ranges(rows, shares, records),
    )


class _Unknown(NamedTuple):
    """What is unknown of the ways, and what was driven; shares of the device as a whole, and of zones that must have
    been entered in a gap; `refused`: the fixes that hide a way.
    """

    gaps: Gaps
    gap: _Share
    gap_of_entry: Ints
    entered: _Share
    drove: _Share
    driven_ms: Ints
    refused: Ints

    @classmethod
    def of(cls, records: Arrays, rules: MeterRules, place: Ints, track: Tracks) -> _Unknown:
        touched = records["touched"][place]
        reported = fixes_of(records, place)
        gaps = gaps_of(track, reported, touched)
        entry, zone = inferred_entries(reported, gaps, rules.zones, rules.settings)
        hidden = refused(track, reported, rules.settings.max_gap_s)
        end, driven_ms = driven(track)
        end, driven_ms = end[touched[end]], driven_ms[touched[end]]

        def of_whole(fix: Ints) -> _Share:
            return _share(records, rules, place[fix], place[fix], np.full(len(fix), rules.whole))

        begin_of, end_of = place[gaps.begin[entry]], place[gaps.end[entry]]
        entered = _share(records, rules, begin_of, end_of, rules.of_zone[zone])
        return cls(gaps, of_whole(gaps.end), entry, entered, of_whole(end), driven_ms, hidden)


def meter_table(
    records: Arrays, names: Sequence[TenantDevice], rules: MeterRules, engine_version: int | None = None
) -> pa.Table:
    """`meter` as rows (schema METERED), with what they rest on."""
    return meter(records, rules).table(names, rules.versions, engine_version)


class _Rows:
    """The rows, by their keys in order. A slot is a row's quarter."""

    def __init__(self, keys: Ints) -> None:
        self.keys: Final = keys
        self._slots = len(keys) * QUARTERS

    def slot(self, share: _Share) -> Ints:
        return np.searchsorted(self.keys, share.key) * QUARTERS + share.quarter

    def counts(self, slot: Ints) -> Ints:
        return np.bincount(slot, minlength=self._slots).reshape(-1, QUARTERS)

    def totals(self, slot: Ints, values: Ints) -> Ints:
        # doubles hold whole numbers up to 2**53: the bytes of an hour of a device are fewer
        found = np.bincount(slot, weights=values, minlength=self._slots)
        return found.astype(np.int64).reshape(-1, QUARTERS)

    def sums(self, slot: Ints, values: Floats, factor: float) -> Ints:
        """Sums times a factor, rounded once."""
        found = np.zeros(self._slots, np.float64)
        order = np.argsort(slot, kind="stable")
        slots, ordered = slot[order], values[order].tolist()
        first = np.flatnonzero(run_starts(slots))
        limits = [*first.tolist(), len(ordered)]
        # fsum is exact until its one rounding: the order of the pieces does not matter
        found[slots[first]] = [fsum(ordered[low:high]) for low, high in pairwise(limits)]
        return np.rint(found * factor).astype(np.int64).reshape(-1, QUARTERS)


def _are(place: Ints, records: Arrays) -> Bools:
    """A mask of all records, true at these places."""
    found = np.zeros(len(records["t_ms"]), np.bool_)
    found[place] = True
    return found


def _unreadable(rows: int, slot: Ints, reason: Ints) -> list[str]:
    """For each row the number of raw messages by quarter and reason, as JSON; "" if there are none."""
    texts = [""] * rows
    raw = np.flatnonzero(reason != NOT_RAW)
    if len(raw):
        texts_of: dict[int, dict[str, list[int]]] = {}
        pairs, counts = np.unique(slot[raw] * len(REASONS) + reason[raw], return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            at, code = divmod(pair, len(REASONS))
            of = texts_of.setdefault(at // QUARTERS, {})
            of.setdefault(REASONS[code], [0] * QUARTERS)[at % QUARTERS] = count
        for row, of in texts_of.items():
            texts[row] = unreadable_text(of)
    return texts


def track_of(records: Arrays, place: Ints, settings: TrackSettings) -> Tracks:
    """The track of the fixes among records, which stand at `place`."""
    return build_tracks(fixes_of(records, place), settings)


def fixes_of(records: Arrays, place: Ints) -> Fixes:
    """The fixes among records, as reported."""
    return Fixes(
        device=records["device"][place],
        t_ms=records["t_ms"][place],
        lat=records["latitude"][place],
        lon=records["longitude"][place],
        accuracy_m=records["accuracy_m"][place],
        speed_mps=records["speed_mps"][place],
    )


def _crossed(track: Tracks, rules: MeterRules) -> tuple[Ints, Ints]:
    """For each crossing that counts the row of the fix that ends its segment, and the gate."""
    if not rules.gates.gates:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    found = rules.gates.crossings(track)
    counts = charged_crossings(track, found, rules.settings)
    return found.end_fix[counts], found.gate[counts]


def _share(records: Arrays, rules: MeterRules, begin: Ints, end: Ints, name: Ints) -> _Share:
    hour, within = np.divmod(records["t_ms"][end], HOUR_MS)
    key = device_hours(records["device"][end], hour) * len(rules.names) + name
    return _Share(key, within // QUARTER_MS, begin, end)


def _seq_ranges(rows: _Rows, shares: Sequence[_Share], records: Arrays) -> list[str]:
    """The records behind each row: those at both ends of its parts."""
    row = [np.searchsorted(rows.keys, share.key) for share in shares]
    pairs = [(at, share.begin) for at, share in zip(row, shares, strict=True)]
    pairs += [(at, share.end) for at, share in zip(row, shares, strict=True) if share.end is not share.begin]
    of, record = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return seq_range_texts(of, record, records["epoch"], records["seq"], len(rows.keys))


def _fix_before(track: Tracks) -> Ints:
    """For each row of the fixes the row before it in its track; itself where there is none."""
    before = np.arange(len(track.fixes), dtype=np.int64)
    before[track.row[1:]] = track.row[:-1]
    return before
