"""What the engine finds in the ends of tracks, when it is known how they began. Pure.

The end of a device's track is what is held of it and what is new, from its *anchor* on: a fix at which it was settled
for every fence on which side the device is. So the engine, which takes the first side of a track for granted, decides
there what it would decide in the whole. What it cannot know is since when a visit lasts that began before: that is
handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from gateway.alerts.held_fixes import FixRows
from gateway.alerts.rules import AlertRules
from geo.spatial import DayEvent, Fixes, Tracks, Visits, build_tracks, end_fixes, events_of, find_visits
from geo.spatial.ragged import Bools, Floats, Ints, expand, offsets

__all__ = ["HeldBounds", "Judged", "SinceByPlace", "judge"]

SinceByPlace = Mapping[str, float]
"""Since when (ms) a device visits each place that it is in."""
# a fence that opens or closes later than this is looked at by a later fix
HORIZON_MS: Final = 6 * 3_600_000


class HeldBounds(NamedTuple):
    """What stays of a track: fixes that are not older than the last one by more than `keep_ms`, as they may come in
    another order; at most `most` while it is not settled where the device is."""

    keep_ms: int
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What was found in the ends of tracks, by the place of each in what was asked.

    `events`: with those that were found before. `rows`: the fixes to hold. `since`: the visits at their
    anchors, `since_last`: those at the last fixes. `in_doubt`: at the last fix it is not settled where the device is.
    `due_ms`: until then nothing happens to a device that comes near no border. `cut`: how many ends are too long, and
    were cut where it was not settled.
    """

    events: list[list[DayEvent]]
    rows: FixRows
    since: list[SinceByPlace]
    since_last: list[SinceByPlace]
    in_doubt: Bools
    due_ms: Floats
    cut: int


def judge(
    rows: FixRows, is_first: Bools, since: Sequence[SinceByPlace], rules: AlertRules, bounds: HeldBounds
) -> Judged:
    """Judges ends of tracks: `rows` by track (`owner`) and time, at least one for each, no time twice.

    `is_first`: no fix of the device was before it. `since`: the visits at the beginning.
    """
    count = len(is_first)
    tracks = _tracks(rows, rules)
    begin = rows.t_ms[offsets(np.bincount(rows.owner, minlength=count))[:-1]]
    visits = _with_since(find_visits(tracks, rules.fences, rules.events), rules.fences.names, begin, since)
    events = _events(visits, tracks, rows, rules, np.where(is_first, begin, begin + 1))
    # only now: a visit is settled by all that came after it
    settled = _Settled.of(visits, tracks, rules)
    return settled.held(rows, count, events, bounds)


def _tracks(rows: FixRows, rules: AlertRules) -> Tracks:
    return build_tracks(
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


def _with_since(visits: Visits, names: Sequence[str], begin_ms: Ints, since: Sequence[SinceByPlace]) -> Visits:
    """Those that last from the beginning of their rows on, with the time at which they began."""
    # an end that begins inside a fence looks to the engine like a track that does
    start_ms = visits.start_ms.copy()
    for row in np.flatnonzero(~visits.entered & (visits.start_ms == begin_ms[visits.device])).tolist():
        start_ms[row] = since[int(visits.device[row])].get(names[int(visits.fence[row])], start_ms[row])
    return Visits(visits.device, visits.fence, start_ms, visits.end_ms, visits.entered, visits.left)


def _events(visits: Visits, tracks: Tracks, rows: FixRows, rules: AlertRules, from_ms: Ints) -> list[list[DayEvent]]:
    """The events of each track from a moment on; those before were found when the fix after them came."""
    made = events_of(visits, tracks, rules.fences, rules.gates, rules.events)
    # at the anchor itself the segment before is not known, and with it not which of several such events it is
    made = [one for one in made if one.t_ms >= from_ms[one.device]]
    ends = end_fixes(tracks, made)
    records = zip(rows.epoch[ends].tolist(), rows.seq[ends].tolist(), strict=True)
    found: list[list[DayEvent]] = [[] for _ in from_ms]
    for device, several in groupby(zip(made, records, strict=True), key=lambda one: one[0].device):
        found[device] = [DayEvent(one.t_ms, one.kind, one.place, one.value, *record) for one, record in several]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Settled:
    """The kept fixes of tracks, in their order (`at`), and what is settled there.

    `is_settled`: for each fence the device is, by its place, on the side on which it counts. `visit_at`, `visit`: pairs
    of a fix and a visit that holds it.
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

    def held(self, rows: FixRows, count: int, events: list[list[DayEvent]], bounds: HeldBounds) -> Judged:
        """From which fix on each track is held, and what is known there."""
        first = offsets(np.bincount(rows.owner, minlength=count))
        last = first[1:] - 1
        kept = self.tracks.row
        # a track that begins at a fix begins on the side where that is
        anchors_here = self.is_settled | ~self.tracks.linked
        may_be = anchors_here & (kept < last[rows.owner[kept]])
        may_be &= rows.t_ms[kept] <= rows.t_ms[last[rows.owner[kept]]] - bounds.keep_ms
        anchor = first[:-1].copy()
        np.maximum.at(anchor, rows.owner[kept[may_be]], kept[may_be])
        # a vehicle that stands on a border for hours is cut rather than kept
        too_long = last - anchor >= bounds.most
        anchor[too_long] = last[too_long] - bounds.most + 1
        at_last, in_doubt = self._at(last), np.ones(count, dtype=np.bool_)
        known = at_last >= 0
        in_doubt[known] = ~self.is_settled[at_last[known]]
        stays = np.flatnonzero(np.arange(len(rows.owner)) >= anchor[rows.owner])
        due_ms = self._due_ms(rows.take(last), at_last)
        since, since_last = self._since(self._at(anchor), count), self._since(at_last, count)
        return Judged(events, rows.take(stays), since, since_last, in_doubt, due_ms, int(too_long.sum()))

    def _at(self, row: Ints) -> Ints:
        """Where in the tracks some rows are; -1: it was not kept."""
        place = np.full(len(self.tracks.fixes), -1, dtype=np.int64)
        place[self.tracks.row] = np.arange(len(self.tracks.row))
        return place[row]

    def _since(self, at: Ints, count: int) -> list[SinceByPlace]:
        """Since when each device visits what it is in at some fixes."""
        found: list[dict[str, float]] = [{} for _ in range(count)]
        for visit in self.visit[np.isin(self.visit_at, at[at >= 0])].tolist():
            place = self.rules.fences.names[int(self.visits.fence[visit])]
            found[int(self.visits.device[visit])][place] = float(self.visits.start_ms[visit])
        return list(found)

    def _due_ms(self, last: FixRows, at: Ints) -> Floats:
        """Until when nothing happens at the place of the last fix of each track."""
        # a fence that comes into force, or goes out of it, moves nobody, and is an event all the same
        due_ms = self.rules.fences.next_switch_ms(last.longitude, last.latitude, last.t_ms, HORIZON_MS)
        mine = self.visit[np.isin(self.visit_at, at[at >= 0])]
        owner, dwell_s = self.visits.device[mine], self.rules.events.dwell_s
        if dwell_s is not None:
            dwell_ms = self.visits.start_ms[mine] + dwell_s * 1000.0
            np.minimum.at(due_ms, owner, np.where(dwell_ms > last.t_ms[owner], dwell_ms, np.inf))
        # where speed is looked at, each fix is
        np.minimum.at(due_ms, owner, np.where(self.rules.has_limit[self.visits.fence[mine]], -np.inf, np.inf))
        return due_ms


def _between(owner: Ints, t_ms: Ints, visits: Visits) -> tuple[Ints, Ints]:
    """For each visit from which to which of the fixes, in the order of device and time, it holds them.

    The fix at which a visit ends with a crossing is outside it, one at which the track ends is in it.
    """
    if not len(t_ms):
        none = np.zeros(len(visits), dtype=np.int64)
        return none, none
    # one ascending key for device and time; doubles hold it to the thousandth of a millisecond
    origin = min(float(t_ms.min()), float(visits.start_ms.min(initial=np.inf)))
    span = max(float(t_ms.max()), float(visits.end_ms.max(initial=-np.inf))) - origin + 1.0
    key = owner * span + (t_ms - origin)
    low = np.searchsorted(key, visits.device * span + (visits.start_ms - origin), side="left")
    end = visits.device * span + (visits.end_ms - origin)
    high = np.where(visits.left, np.searchsorted(key, end, side="left"), np.searchsorted(key, end, side="right"))
    return low, np.maximum(high, low)
