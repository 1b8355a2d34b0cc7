"""Events for notifications, from visits, gates and speeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from geo.spatial.clip import segments_of
from geo.spatial.event_ids import Kind
from geo.spatial.fence_set import FenceSet
from geo.spatial.gates import GateSet
from geo.spatial.measure import FenceRuns, runs_by_version
from geo.spatial.ragged import Bools, Floats, Ints
from geo.spatial.tracks import Tracks
from geo.spatial.visits import MAX_STAY_S, Stays, Visits, VisitSettings, find_visits, joined_stays

# The identity of an event: the fix that ends its segment.


def end_fixes(tracks: Tracks, events: Sequence[GeofenceEvent]) -> Ints:
    """For each event of `tracks` the row of the fix that ends its segment: the first kept one at its time or after it.

    Event times are whole milliseconds, like those of fixes. Where both are equal, that fix is meant, even if the
    segment begins there.
    """
    device, t_ms = (np.array([event[at] for event in events], dtype=np.int64) for at in (0, 1))
    kept = tracks.fixes.device[tracks.row], tracks.fixes.t_ms[tracks.row]
    # events sort before fixes of the same time, so the fix is at or after the event
    order = np.lexsort(
        (
            np.repeat([0, 1], [len(events), len(tracks.row)]),
            np.concatenate([t_ms, kept[1]]),
            np.concatenate([device, kept[0]]),
        )
    )
    is_event = order < len(events)
    after = np.cumsum(~is_event)[is_event]
    ends = np.zeros(len(events), dtype=np.int64)
    ends[order[is_event]] = tracks.row[after]
    assert (tracks.fixes.device[ends] == device).all(), "an event lies on a segment of its device"
    return ends


_Row: TypeAlias = tuple[int, int, Kind, str, float]  # the columns of an event


class EventSettings(VisitSettings):
    """When a change of sides counts, and after which time a visit is a dwell (None: never)."""

    dwell_s: Annotated[float, Field(gt=0, le=MAX_STAY_S)] | None = None


class PublishedEventSettings(EventSettings):
    """Settings of published events. They must be the same in each region and at the centre."""

    buffer_m: Annotated[float, Field(ge=0)] = 10.0
    dwell_s: Annotated[float, Field(gt=0, le=MAX_STAY_S)] | None = 300.0


class GeofenceEvent(NamedTuple):
    """An event of a device at a fence or gate.

    `t_ms`: interpolated, rounded to the millisecond. `value`: seconds of the visit until then (exit, dwell), the
    highest speed (speeding), else 0. `forward` and `backward` are crossings of a gate.
    """

    device: int
    t_ms: int
    kind: Kind
    place: str
    value: float = 0.0


def find_events(
    tracks: Tracks, fences: FenceSet, gates: GateSet | None = None, settings: EventSettings | None = None
) -> list[GeofenceEvent]:
    """All events of all devices, sorted by device, then time."""
    settings = settings or EventSettings()
    return events_of(find_visits(tracks, fences, settings), tracks, fences, gates, settings)


def events_of(
    visits: Visits, tracks: Tracks, fences: FenceSet, gates: GateSet | None, settings: EventSettings
) -> list[GeofenceEvent]:
    """As `find_events`, from known visits: a caller with only the end of a track may know when its visits began."""
    events = list(_of_visits(visits, fences.names, settings.dwell_s))
    events += _speeding(tracks, fences, settings.min_stay_s)
    if gates is not None:
        events += _of_gates(tracks, gates)
    # plain tuples sort many times faster
    return list(map(GeofenceEvent._make, sorted(events)))


def _of_visits(visits: Visits, names: tuple[str, ...], dwell_s: float | None) -> Iterator[_Row]:
    lasted_s = (visits.end_ms - visits.start_ms) / 1000.0

    def rows(some: Bools, t_ms: Floats, kind: Kind, values: Iterable[float]) -> Iterator[_Row]:
        places = map(names.__getitem__, visits.fence[some].tolist())
        return zip(visits.device[some].tolist(), _whole(t_ms[some]), repeat(kind), places, values)

    yield from rows(visits.entered, visits.start_ms, "enter", repeat(0.0))
    if dwell_s is not None:
        long = visits.end_ms - visits.start_ms >= dwell_s * 1000.0
        yield from rows(long, visits.start_ms + dwell_s * 1000.0, "dwell", repeat(dwell_s))
    yield from rows(visits.left, visits.end_ms, "exit", [round(value, 3) for value in lasted_s[visits.left].tolist()])


def _whole(values: Floats) -> list[int]:
    whole: list[int] = np.rint(values).astype(np.int64).tolist()
    return whole


def _of_gates(tracks: Tracks, gates: GateSet) -> Iterator[_Row]:
    for crossings in gates.crossings_in_parts(tracks):
        device = tracks.fixes.device[crossings.end_fix]
        columns = (device, crossings.gate, crossings.forward, crossings.t_ms)
        for number, gate, forward, t_ms in zip(*(column.tolist() for column in columns), strict=True):
            yield number, round(t_ms), "forward" if forward else "backward", gates.gates[gate].id, 0.0


def _speeding(tracks: Tracks, fences: FenceSet, min_stay_s: float) -> Iterator[_Row]:
    """One event for each stretch of `min_stay_s` or more above the speed limit in force inside a fence, at its begin.

    The value is the highest speed. The speed of a segment is the one reported by its second fix, else length by time.
    """
    limits = fences.speed_limit_mps
    if not fences.has_speed_limits:
        return
    segments = segments_of(tracks)
    ends = tracks.segments()
    speed = tracks.metres[ends] / (segments.end_ms - segments.start_ms) * 1000.0
    if tracks.fixes.speed_mps is not None:
        reported = tracks.fixes.speed_mps[tracks.row[ends]]
        speed = np.where(np.isnan(reported), speed, reported)
    device = tracks.fixes.device[tracks.row[ends]]

    def over(runs: FenceRuns) -> Stays:
        row = np.flatnonzero((speed[runs.segment] > limits[runs.zone]) & (runs.end > runs.start))
        row = row[np.argsort(runs.start[row], kind="stable")]
        segment, fence = runs.segment[row], fences.name_of_fence[runs.zone[row]]
        start, end = segments.time_at(segment, runs.start[row]), segments.time_at(segment, runs.end[row])
        on = np.zeros(len(row), dtype=np.bool_)
        return Stays(device[segment], fence, segment, start, end, on, on, speed[segment])

    # versions have their own limits; above one and then above the next is one stretch
    stays = joined_stays(over(runs.by_segment()) for runs in runs_by_version(segments, fences))
    lasts = stays.end_ms - stays.start_ms >= min_stay_s * 1000.0
    columns = (stays.group[lasts], stays.start_ms[lasts], stays.fence[lasts], stays.speed[lasts])
    for number, t_ms, name, most in zip(*(column.tolist() for column in columns), strict=True):
        yield number, round(t_ms), "speeding", fences.names[name], round(most, 3)
