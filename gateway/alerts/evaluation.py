"""Finds events in fixes as they arrive, with the engine of the centre, over the ends of tracks. Pure: time is passed
in.

Most fixes change nothing: their device is settled, comes near no border and is not due for anything. They cost
one look into the index. For all other fixes of a call, the ends of their tracks are evaluated together.

The events are those of the centre, except where the region knows less: an outlier that only the next fix shows;
fixes older than KEEP_MS; a visit that began before the region knew the device, or longer before the day than
`geofence.reach_h`; the highest speed of an unfinished stretch; and a device that was undecided at a border for
more than MAX_FIXES_HELD fixes. The centre's verdict corrects each of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from gateway.alerts.config import KEEP_MS, MAX_AHEAD_MS, MAX_FIXES_HELD, EvaluationSettings
from gateway.alerts.fixes import FixColumns, FixRows, HeldFixes
from geo.alerts.messages import MAX_EPOCHS
from geo.spatial import (
    DayEvent,
    FenceSet,
    Fixes,
    GateSet,
    PublishedEventSettings,
    Tracks,
    TrackSettings,
    Visits,
    build_tracks,
    end_fixes,
    events_of,
    find_visits,
    identified,
    valid_positions,
)
from geo.spatial.geodesic import unwrapped_end
from geo.spatial.ragged import Bools, Floats, Ints, distinct, expand, offsets, run_starts

# Skipped records by reason.


@dataclass(slots=True)
class PassedOver:
    """Counts of what was skipped since the start. `docs/verdicts.md` explains each."""

    repeated: int = 0
    too_late: int = 0
    clock_ahead: int = 0
    invalid: int = 0
    excluded: int = 0
    too_old: int = 0
    cut: int = 0
    forgotten: int = 0


# Published fences and gates of a region.


@dataclass(frozen=True)
class AlertRules:
    """Everything but the fixes that decides what an event is. It must equal the centre's."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: PublishedEventSettings

    @cached_property
    def has_limit(self) -> Bools:
        """Whether a version of a fence has a speed limit, by the number of the fence's name."""
        has_limit = np.zeros(len(self.fences.names), dtype=np.bool_)
        has_limit[self.fences.name_of_fence[np.isfinite(self.fences.speed_limit_mps)]] = True
        return has_limit


# Events at the ends of tracks with a known start. Pure.

SinceByPlace = Mapping[str, float]
"""Since when (ms) a device visits each place that it is in."""
# a later fix sees a fence that opens or closes after this
HORIZON_MS: Final = 6 * 3_600_000


@dataclass(frozen=True, slots=True, eq=False)
class TrackEnds:
    """The result for the ends of tracks, in the order of the input.

    `events`: includes those that were found before. `rows`: the fixes to hold. `since`: the visits at the first held
    fix; `since_last`: those at the last fix. `in_doubt`: at the last fix the side of a border is undecided. `due_ms`:
    until then nothing happens to a device that comes near no border. `cut`: number of ends that were cut while
    undecided.
    """

    events: list[list[DayEvent]]
    rows: FixRows
    since: list[SinceByPlace]
    since_last: list[SinceByPlace]
    in_doubt: Bools
    due_ms: Floats
    cut: int


def judge(rows: FixRows, is_first: Bools, since: Sequence[SinceByPlace], rules: AlertRules) -> TrackEnds:
    """Evaluate ends of tracks. `rows`: by track (`owner`) and time, at least one for each track, no time twice.

    `is_first`: the device has no fix before these. `since`: the visits at the first fix.
    """
    count = len(is_first)
    tracks = build_tracks(
        Fixes(
            device=rows.owner,
            t_ms=rows.t_ms,
            lat=rows.latitude,
            lon=rows.longitude,
            accuracy_m=rows.accuracy_m,
            speed_mps=rows.speed_mps,
        ),
        rules.tracks,
    )
    begin = rows.t_ms[offsets(np.bincount(rows.owner, minlength=count))[:-1]]
    visits = _with_since(find_visits(tracks, rules.fences, rules.events), rules.fences.names, begin, since)
    events = _events(visits, tracks, rows, rules, np.where(is_first, begin, begin + 1))
    # after the visits are complete
    settled = _Settled.of(visits, tracks, rules)
    return settled.held(rows, count, events)


def _with_since(visits: Visits, names: Sequence[str], begin_ms: Ints, since: Sequence[SinceByPlace]) -> Visits:
    """The visits, with the known begin of those that last from the first fix of their rows."""
    # the engine takes the end of a track for a track that begins inside the fence
    start_ms = visits.start_ms.copy()
    for row in np.flatnonzero(~visits.entered & (visits.start_ms == begin_ms[visits.device])).tolist():
        start_ms[row] = since[int(visits.device[row])].get(names[int(visits.fence[row])], start_ms[row])
    return Visits(visits.device, visits.fence, start_ms, visits.end_ms, visits.entered, visits.left)


def _events(visits: Visits, tracks: Tracks, rows: FixRows, rules: AlertRules, from_ms: Ints) -> list[list[DayEvent]]:
    """The events of each track from a moment on. Earlier ones were found when the fix after them came."""
    made = events_of(visits, tracks, rules.fences, rules.gates, rules.events)
    # at the first fix the segment before is unknown, and so is the number of equal events
    made = [one for one in made if one.t_ms >= from_ms[one.device]]
    ends = end_fixes(tracks, made)
    records = zip(rows.epoch[ends].tolist(), rows.seq[ends].tolist(), strict=True)
    found: list[list[DayEvent]] = [[] for _ in from_ms]
    for device, several in groupby(zip(made, records, strict=True), key=lambda one: one[0].device):
        found[device] = [DayEvent(one.t_ms, one.kind, one.place, one.value, *record) for one, record in several]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Settled:
    """The kept fixes of tracks in order, and whether the device's side of each border is settled there.

    `visit_at`, `visit`: pairs of a fix and a visit that contains it.
    """

    tracks: Tracks
    visits: Visits
    rules: AlertRules
    is_settled: Bools
    visit_at: Ints
    visit: Ints

    @classmethod
    def of(cls, visits: Visits, tracks: Tracks, rules: AlertRules) -> _Settled:
        fixes, row = tracks.fixes, tracks.row
        owner, t_ms = fixes.device[row], fixes.t_ms[row]
        low, high = _between(owner, t_ms, visits)
        visit, visit_at = expand(low, high - low)
        place_at, fence = rules.fences.holding(fixes.lon[row], fixes.lat[row], t_ms)
        count = np.int64(max(1, len(rules.fences.names)))
        counts_as = np.unique(visit_at * count + visits.fence[visit])
        is_in = np.unique(place_at * count + rules.fences.name_of_fence[fence])
        differ = np.setxor1d(counts_as, is_in, assume_unique=True) // count
        is_settled = np.ones(len(row), dtype=np.bool_)
        is_settled[differ] = False
        return cls(tracks, visits, rules, is_settled, visit_at, visit)

    def held(self, rows: FixRows, count: int, events: list[list[DayEvent]]) -> TrackEnds:
        """The first fix to hold of each track, and what is known there."""
        first = offsets(np.bincount(rows.owner, minlength=count))
        last = first[1:] - 1
        kept = self.tracks.row
        # a track begins on the side of its first fix
        anchors_here = self.is_settled | ~self.tracks.linked
        may_be = anchors_here & (kept < last[rows.owner[kept]])
        may_be &= rows.t_ms[kept] <= rows.t_ms[last[rows.owner[kept]]] - KEEP_MS
        anchor = first[:-1].copy()
        np.maximum.at(anchor, rows.owner[kept[may_be]], kept[may_be])
        # a vehicle on a border for hours is cut
        too_long = last - anchor >= MAX_FIXES_HELD
        anchor[too_long] = last[too_long] - MAX_FIXES_HELD + 1
        at_last, in_doubt = self._at(last), np.ones(count, dtype=np.bool_)
        known = at_last >= 0
        in_doubt[known] = ~self.is_settled[at_last[known]]
        stays = np.flatnonzero(np.arange(len(rows.owner)) >= anchor[rows.owner])
        due_ms = self._due_ms(rows.take(last), at_last)
        since, since_last = self._since(self._at(anchor), count), self._since(at_last, count)
        return TrackEnds(events, rows.take(stays), since, since_last, in_doubt, due_ms, int(too_long.sum()))

    def _at(self, row: Ints) -> Ints:
        """The places of some rows in the tracks; -1: the row was not kept."""
        place = np.full(len(self.tracks.fixes), -1, dtype=np.int64)
        place[self.tracks.row] = np.arange(len(self.tracks.row))
        return place[row]

    def _since(self, at: Ints, count: int) -> list[SinceByPlace]:
        """The begin of each device's visits at some fixes."""
        found: list[dict[str, float]] = [{} for _ in range(count)]
        for visit in self.visit[np.isin(self.visit_at, at[at >= 0])].tolist():
            place = self.rules.fences.names[int(self.visits.fence[visit])]
            found[int(self.visits.device[visit])][place] = float(self.visits.start_ms[visit])
        return list(found)

    def _due_ms(self, last: FixRows, at: Ints) -> Floats:
        # a fence that begins or ends causes an event without any movement
        due_ms = self.rules.fences.next_switch_ms(last.longitude, last.latitude, last.t_ms, HORIZON_MS)
        mine = self.visit[np.isin(self.visit_at, at[at >= 0])]
        owner, dwell_s = self.visits.device[mine], self.rules.events.dwell_s
        if dwell_s is not None:
            dwell_ms = self.visits.start_ms[mine] + dwell_s * 1000.0
            np.minimum.at(due_ms, owner, np.where(dwell_ms > last.t_ms[owner], dwell_ms, np.inf))
        # in a fence with a speed limit, each fix is evaluated
        np.minimum.at(due_ms, owner, np.where(self.rules.has_limit[self.visits.fence[mine]], -np.inf, np.inf))
        return due_ms


def _between(owner: Ints, t_ms: Ints, visits: Visits) -> tuple[Ints, Ints]:
    """The first and the end of the range of fixes that each visit contains, in the order of device and time.

    A fix at which a visit ends with a crossing is outside of it; a fix at which the track ends is inside.
    """
    if not len(t_ms):
        none = np.zeros(len(visits), dtype=np.int64)
        return none, none
    # one ascending key for device and time
    origin = min(float(t_ms.min()), float(visits.start_ms.min(initial=np.inf)))
    span = max(float(t_ms.max()), float(visits.end_ms.max(initial=-np.inf))) - origin + 1.0
    key = owner * span + (t_ms - origin)
    low = np.searchsorted(key, visits.device * span + (visits.start_ms - origin), side="left")
    end = visits.device * span + (visits.end_ms - origin)
    high = np.where(visits.left, np.searchsorted(key, end, side="left"), np.searchsorted(key, end, side="right"))
    return low, np.maximum(high, low)


_FORGET_SHARE: Final = 50
_DEGREE_M: Final = 111_700.0
"""Not less than a degree of a meridian, or of the equator."""
# before every moment, with room for subtraction
_LONG_AGO_MS: Final = -(1 << 62)
_NOTHING: Final[SinceByPlace] = {}


class FoundEvent(NamedTuple):
    """An event that was not reported before.

    `received_ms`: when the region's cluster had the device's newest fix. `seen_until`: the highest seq of each epoch of
    the fixes that were used.
    """

    tenant: str
    device: str
    id: str
    event: DayEvent
    received_ms: int
    seen_until: tuple[tuple[int, int], ...]


class _SlotEvents(NamedTuple):
    slot: int
    events: list[DayEvent]
    anchor_ms: int
    received_ms: int
    seen_until: tuple[tuple[int, int], ...]


class LiveEvents:
    """Finds events in fixes as they arrive. Cost and memory do not grow with time. One thread at a time.

    An event is reported once; later changes are left to the centre. `judged`: fixes that went through the engine, those
    that are held counted again.
    """

    def __init__(self, rules: AlertRules, settings: EvaluationSettings | None = None) -> None:
        self._rules, self._settings = rules, settings or EvaluationSettings()
        self.passed_over = PassedOver()
        self.judged = 0
        self._slots: dict[tuple[str, str], int] = {}
        self._names: list[tuple[str, str]] = []
        self._free: list[int] = []
        self._held = HeldFixes()
        self._newest_ms = np.zeros(0, dtype=np.int64)
        self._heard_ms = np.zeros(0, dtype=np.int64)
        self._due_ms = np.zeros(0)
        self._is_settled = np.zeros(0, dtype=np.bool_)
        self._is_first = np.zeros(0, dtype=np.bool_)
        self._judged_ms = np.zeros(0, dtype=np.int64)
        self._since: dict[int, SinceByPlace] = {}
        # visits from the last evaluated fix on, where they differ
        self._since_judged: dict[int, SinceByPlace] = {}
        self._said: dict[int, dict[str, int]] = {}

    @property
    def device_count(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    def replace_rules(self, rules: AlertRules) -> None:
        """Use these rules from now on. Their effect on earlier fixes is left to the centre."""
        self._rules = rules
        # the next fix decides again on which side the device is
        self._is_settled[:] = False

    def take(self, fixes: FixColumns, now_ms: int, *, report: bool = True) -> list[FoundEvent]:
        """The new events, by device and time. `now_ms`: by this region's clock.

        `report=False` takes the fixes and returns nothing: a new owner reads again what its predecessor read.
        """
        # unusable fixes are left out first, as they would count as neighbours
        usable = self._usable(fixes, now_ms)
        slots = self._slots_of(fixes, usable, now_ms)
        rows, received_ms = _in_order(slots, fixes, usable)
        self.passed_over.repeated += len(slots) - len(rows.owner)
        if not len(rows.owner):
            return []
        mine = rows.owner[run_starts(rows.owner)]
        rows = rows._replace(owner=np.searchsorted(mine, rows.owner))
        newest_ms = np.maximum.reduceat(received_ms, np.flatnonzero(run_starts(rows.owner)))
        quiet = self._are_quiet(mine, rows)
        # most devices need one look into the index
        self._go_on(mine[quiet], _of(rows, quiet))
        found = self._judge(mine[~quiet], _of(rows, ~quiet), newest_ms[~quiet])
        return sorted(self._news(found, now_ms, report=report), key=lambda one: (one.tenant, one.device, one.event))

    def _usable(self, fixes: FixColumns, now_ms: int) -> Bools:
        tracks, counts = self._rules.tracks, self.passed_over
        usable = valid_positions(fixes.latitude, fixes.longitude)
        counts.invalid += len(usable) - int(usable.sum())
        ahead = usable & (fixes.t_ms > now_ms + MAX_AHEAD_MS)
        counts.clock_ahead += int(ahead.sum())
        excluded = _at_null_island(fixes, tracks.null_island_deg)
        if tracks.max_accuracy_m is not None:
            excluded |= fixes.accuracy_m > tracks.max_accuracy_m
        excluded &= usable & ~ahead
        counts.excluded += int(excluded.sum())
        return np.asarray(usable & ~ahead & ~excluded, dtype=np.bool_)

    def _slots_of(self, fixes: FixColumns, usable: Bools, now_ms: int) -> Ints:
        source = fixes.source[usable]
        numbers = distinct(source)
        names = [(fixes.sources[number].tenant, fixes.sources[number].device) for number in numbers.tolist()]
        new = dict.fromkeys(name for name in names if name not in self._slots)
        if len(self._slots) + len(new) > self._settings.max_devices:
            self._forget(len(self._slots) + len(new) - self._settings.max_devices)
            new |= dict.fromkeys(name for name in names if name not in self._slots)
        for name in new:
            self._begin(name)
        slot_of = np.zeros(len(fixes.sources), dtype=np.int64)
        slot_of[numbers] = [self._slots[name] for name in names]
        self._heard_ms[slot_of[numbers]] = now_ms
        return slot_of[source]

    def _begin(self, name: tuple[str, str]) -> None:
        slot = self._free.pop() if self._free else len(self._names)
        if slot == len(self._names):
            self._names.append(name)
            self._reserve(slot + 1)
        self._names[slot], self._slots[name] = name, slot
        self._is_settled[slot], self._is_first[slot] = False, True
        self._newest_ms[slot] = self._judged_ms[slot] = _LONG_AGO_MS

    def _reserve(self, slots: int) -> None:
        have = len(self._due_ms)
        if slots <= have:
            return
        more = max(slots, 2 * have) - have
        self._held.reserve(have + more)
        for name in ("_newest_ms", "_heard_ms", "_judged_ms", "_due_ms", "_is_settled", "_is_first"):
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.zeros(more, dtype=column.dtype)))

    def _forget(self, least: int) -> None:
        """Drop the least recently seen devices; some more than asked, as each search looks at all devices."""
        slots = np.fromiter(self._slots.values(), dtype=np.int64, count=len(self._slots))
        # some more than needed, as each search looks at all devices
        count = min(len(slots), max(least, self._settings.max_devices // _FORGET_SHARE))
        gone = slots[np.argsort(self._heard_ms[slots], kind="stable")[:count]]
        self._held.forget(gone)
        for slot in gone.tolist():
            del self._slots[self._names[slot]]
            for held in (self._since, self._since_judged, self._said):
                held.pop(slot, None)
        self._free += gone.tolist()
        self.passed_over.forgotten += count

    def _are_quiet(self, slots: Ints, rows: FixRows) -> Bools:
        last = self._held.last(slots)
        # undecided devices, and those that are due, are always evaluated
        has_fixes = self._held.lengths(slots) > 0
        first = run_starts(rows.owner)
        newest = np.append(first[1:], True)
        quiet = has_fixes & self._is_settled[slots] & (rows.t_ms[newest] < self._due_ms[slots])
        quiet &= rows.t_ms[first] > self._newest_ms[slots]
        mine = np.flatnonzero(quiet[rows.owner])
        before = mine - 1
        start = FixRows(
            *(
                np.where(first[mine], held[rows.owner[mine]], column[before])
                for held, column in zip(last, rows, strict=True)
            )
        )
        stirs = self._may_stir(start, rows.take(mine))
        quiet[rows.owner[mine[stirs]]] = False
        return np.asarray(quiet, dtype=np.bool_)

    def _may_stir(self, start: FixRows, end: FixRows) -> Bools:
        """Whether the way from each fix to the next comes near a border, is too fast, or has a gap."""
        tracks, lon = self._rules.tracks, unwrapped_end(start.longitude, end.longitude)
        stirs = end.t_ms - start.t_ms > tracks.max_gap_s * 1000.0
        if tracks.max_speed_mps is not None:
            # an upper bound: by the parallel nearest to the equator
            parallel = np.cos(np.radians(np.minimum(np.abs(start.latitude), np.abs(end.latitude))))
            degrees = np.hypot((lon - start.longitude) * parallel, end.latitude - start.latitude)
            stirs |= degrees * _DEGREE_M > tracks.max_speed_mps * (end.t_ms - start.t_ms) / 1000.0
        ends = start.longitude, start.latitude, lon, end.latitude
        return np.asarray(stirs | self._rules.fences.may_cross(*ends) | self._rules.gates.may_cross(*ends))

    def _go_on(self, slots: Ints, rows: FixRows) -> None:
        """Hold the new fixes of quiet devices."""
        if not len(slots):
            return
        held = _by_owner(self._held.read(slots).joined(rows))
        limits = offsets(np.bincount(held.owner, minlength=len(slots)))
        last = limits[1:] - 1
        # the second last fix, or the newest that is old enough; of an evaluated group only the end is known
        may_be = np.arange(len(held.owner)) < last[held.owner]
        may_be &= held.t_ms >= self._judged_ms[slots[held.owner]]
        may_be &= held.t_ms <= held.t_ms[last[held.owner]] - KEEP_MS
        anchor = limits[:-1].copy()
        np.maximum.at(anchor, held.owner[may_be], np.flatnonzero(may_be))
        moved = anchor > limits[:-1]
        self._is_first[slots[moved]] = False
        # the held fixes begin behind the evaluated ones: use the visits at their end
        if self._since_judged:
            for slot in slots[moved].tolist():
                if (since := self._since_judged.pop(slot, None)) is not None:
                    self._visit(slot, since)
        self._newest_ms[slots] = held.t_ms[last]
        self._held.write(slots, held.take(np.arange(len(held.owner)) >= anchor[held.owner]))

    def _judge(self, slots: Ints, new: FixRows, received_ms: Ints) -> list[_SlotEvents]:
        if not len(slots):
            return []
        rows = self._merged(slots, new)
        # if all are repeated or too late, nothing changes
        has_news = np.bincount(rows.owner, minlength=len(slots)) > self._held.lengths(slots)
        slots, rows, received_ms = slots[has_news], _of(rows, has_news), received_ms[has_news]
        if not len(slots):
            return []
        self.judged += len(rows.owner)
        since = [self._since.get(slot, _NOTHING) for slot in slots.tolist()]
        judged = judge(rows, self._is_first[slots], since, self._rules)
        limits = offsets(np.bincount(rows.owner, minlength=len(slots)))
        anchor_ms = judged.rows.t_ms[offsets(np.bincount(judged.rows.owner, minlength=len(slots)))[:-1]]
        self._is_first[slots[anchor_ms > rows.t_ms[limits[:-1]]]] = False
        self._newest_ms[slots] = self._judged_ms[slots] = rows.t_ms[limits[1:] - 1]
        self._is_settled[slots], self._due_ms[slots] = ~judged.in_doubt, judged.due_ms
        self._held.write(slots, judged.rows)
        self.passed_over.cut += judged.cut
        for slot, since_anchor, since_last in zip(slots.tolist(), judged.since, judged.since_last, strict=True):
            self._visit(slot, since_anchor)
            self._since_judged.pop(slot, None)
            if since_last != since_anchor:
                self._since_judged[slot] = since_last
        # most devices have no event
        seen = [
            _seen_until(rows.take(slice(limits[at], limits[at + 1]))) if events else ()
            for at, events in enumerate(judged.events)
        ]
        found = zip(slots.tolist(), judged.events, anchor_ms.tolist(), received_ms.tolist(), seen, strict=True)
        return [_SlotEvents(*one) for one in found]

    def _visit(self, slot: int, since: SinceByPlace) -> None:
        _keep(self._since, slot, since)

    def _merged(self, slots: Ints, new: FixRows) -> FixRows:
        """The held and the new fixes: no time twice, and none older than what is held."""
        held = self._held.read(slots)
        lengths = self._held.lengths(slots)
        begin_ms = np.full(len(slots), -(1 << 62), dtype=np.int64)
        some = lengths > 0
        begin_ms[some] = held.t_ms[offsets(lengths)[:-1][some]]
        in_time = new.t_ms >= begin_ms[new.owner]
        self.passed_over.too_late += int((~in_time).sum())
        rows = held.joined(new.take(in_time))
        rows = rows.take(np.lexsort((rows.seq, rows.epoch, rows.t_ms, rows.owner)))
        once = run_starts(rows.owner, rows.t_ms)
        self.passed_over.repeated += int((~once).sum())
        return rows.take(once)

    def _news(self, found: list[_SlotEvents], now_ms: int, *, report: bool) -> Iterator[FoundEvent]:
        """The events that were not reported before. An id is kept as long as its fixes, by which it would be found
        again.
        """
        # a clock that was never set may say a time before 1970
        oldest_ms = max(now_ms - round(self._settings.max_age_s * 1000), 0)
        for of_slot in found:
            slot, events, anchor_ms = of_slot.slot, of_slot.events, of_slot.anchor_ms
            said = self._said.get(slot, {})
            if not events and not said:
                continue
            # ids number equal events of a segment, so all of its events are needed
            named = identified(*self._names[slot], events)
            kept = {one: t_ms for one, t_ms in said.items() if t_ms >= anchor_ms}
            kept |= {one: event.t_ms for one, event in named.items() if event.t_ms >= anchor_ms}
            _keep(self._said, slot, kept)
            for one, event in named.items():
                if one in said or not report:
                    continue
                if event.t_ms < oldest_ms:
                    self.passed_over.too_old += 1
                    continue
                yield FoundEvent(*self._names[slot], one, event, of_slot.received_ms, of_slot.seen_until)


def _seen_until(rows: FixRows) -> tuple[tuple[int, int], ...]:
    """The highest seq of each epoch; if there are more epochs than an alert may name, of the newest."""
    newest = dict[int, int]()
    # backwards: the newest epochs first
    for epoch, seq in zip(rows.epoch[::-1].tolist(), rows.seq[::-1].tolist(), strict=True):
        newest[epoch] = max(seq, newest.get(epoch, 0))
    return tuple(newest.items())[:MAX_EPOCHS]


def _keep(held: MutableMapping[int, Any], slot: int, value: Mapping[str, Any]) -> None:
    if value:
        held[slot] = value
    else:
        held.pop(slot, None)


def _at_null_island(fixes: FixColumns, limit_deg: float | None) -> Bools:
    if limit_deg is None:
        return np.zeros(len(fixes.t_ms), dtype=np.bool_)
    return np.asarray((np.abs(fixes.latitude) < limit_deg) & (np.abs(fixes.longitude) < limit_deg))


def _in_order(slots: Ints, fixes: FixColumns, usable: Bools) -> tuple[FixRows, Ints]:
    """The usable fixes by slot, time and record id, the first of each slot and time; and when each was received."""
    epochs = np.array([source.epoch for source in fixes.sources], dtype=np.int64)
    epoch = epochs[fixes.source[usable]] if len(epochs) else np.zeros(0, dtype=np.int64)
    columns = (fixes.latitude, fixes.longitude, fixes.accuracy_m, fixes.speed_mps)
    rows = FixRows._make((slots, fixes.t_ms[usable], epoch, fixes.seq[usable], *(column[usable] for column in columns)))
    order = np.lexsort((rows.seq, rows.epoch, rows.t_ms, rows.owner))
    rows = rows.take(order)
    once = run_starts(rows.owner, rows.t_ms) if len(order) else np.zeros(0, dtype=np.bool_)
    return rows.take(once), fixes.received_ms[usable][order][once]


def _of(rows: FixRows, chosen: Bools) -> FixRows:
    """The rows of some owners, with new owner numbers."""
    number = np.cumsum(chosen) - 1
    mine = rows.take(chosen[rows.owner])
    return mine._replace(owner=number[mine.owner])


def _by_owner(rows: FixRows) -> FixRows:
    return rows.take(np.argsort(rows.owner, kind="stable"))
