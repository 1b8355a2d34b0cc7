"""From fixes to tracks: their order, excluded fixes, and breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from geo.spatial.fixes import Fixes, TrackSettings
from geo.spatial.geodesic import distance_m, offset_m, unwrapped_end
from geo.spatial.ragged import Bools, Floats, Ints
from geo.spatial.standstill import clean_places, uncertain_m

SPIKE_MPS, SPIKE_S = 10.0, 60.0
"""A standing vehicle does not drive away at this average speed or more, and return to its place, within this time."""


class Verdict(IntEnum):
    KEPT = 0
    DUPLICATE = 1  # an earlier row has the same device time
    NULL_ISLAND = 2
    INACCURATE = 3
    IMPLAUSIBLE = 4  # an impossible speed to it and from it, and not past it; a spike beside a stand


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """Kept fixes in the order of (device, time), with the segments between neighbours.

    `row[i]` is the row of `fixes` that is the track's i-th fix. `linked[i]`: a segment leads from fix i-1 to fix i
    (same device, no break between); `metres[i]` is its WGS84 length, else 0. `verdict` (a `Verdict`) has one value per
    row of `fixes`. `gap_breaks` and `speed_breaks` count the breaks between neighbours of one device.

    With the rule `standstill` the places of `fixes` are the cleaned ones. `still[i]`: the vehicle stands from fix i-1
    to fix i; that segment has no length and crosses nothing. `reported_m[i]` is the length between the reported places.
    """

    fixes: Fixes
    row: Ints
    linked: Bools
    metres: Floats
    verdict: NDArray[np.uint8]
    gap_breaks: int
    speed_breaks: int
    still: Bools
    reported_m: Floats

    def segments(self) -> Ints:
        """Positions i (in track order) of the fixes that end a segment."""
        return np.flatnonzero(self.linked)

    def unknown(self) -> tuple[Ints, Ints, Ints]:
        """The breaks, as (device, from ms, to ms): times to which nothing is attributed."""
        device, t_ms = self.fixes.device[self.row], self.fixes.t_ms[self.row]
        at = np.flatnonzero(~self.linked[1:] & (device[1:] == device[:-1])) + 1
        return device[at], t_ms[at - 1], t_ms[at]

    def counts(self) -> dict[str, int]:
        """The number of fixes per verdict, by its name in lower case."""
        found = np.bincount(self.verdict, minlength=len(Verdict))
        return {verdict.name.lower(): int(found[verdict]) for verdict in Verdict}


def build_tracks(fixes: Fixes, rules: TrackSettings | None = None) -> Tracks:
    """Order fixes by (device, time), exclude what the rules refuse, and break tracks.

    Of equal times the row given first is kept: give the rows of a device in the order of (epoch, seq). Every rule is
    local in time: a segment depends on the fixes from two `max_gap_s` before its second fix to one after it. So a
    window with two gaps around its fixes gives the same segments as the whole. A number of fixes is no such margin: in
    a zigzag between two places any number in a row may be excluded.
    """
    rules = rules or TrackSettings()
    verdict = np.zeros(len(fixes), dtype=np.uint8)
    row = _ordered(fixes, verdict)
    row = _drop(row, verdict, _at_null_island(fixes, row, rules), Verdict.NULL_ISLAND)
    row = _drop(row, verdict, _inaccurate(fixes, row, rules), Verdict.INACCURATE)
    near, metres = _steps(fixes, row, rules)
    # Judged last: a fix at 0°/0°, or an inaccurate one, would make outliers of its good neighbours.
    outliers = _outliers(fixes, row, near, metres, rules)
    if outliers.any():
        row = _drop(row, verdict, outliers, Verdict.IMPLAUSIBLE)
        near, metres = _steps(fixes, row, rules)
    same = _same_device(fixes, row)
    fast = near & _too_fast(fixes, row, metres, rules)
    linked = near & ~fast
    reported_m = np.where(linked, metres, 0.0)
    tracks = Tracks(
        fixes=fixes,
        row=row,
        linked=linked,
        metres=reported_m,
        verdict=verdict,
        gap_breaks=int(np.count_nonzero(same & ~near)),
        speed_breaks=int(np.count_nonzero(fast)),
        still=np.zeros(len(row), dtype=np.bool_),
        reported_m=reported_m,
    )
    return tracks if rules.rule == "every_fix" else _cleaned(tracks, rules)


def _cleaned(tracks: Tracks, rules: TrackSettings) -> Tracks:
    """The same tracks, on places without the receivers' noise."""
    fixes, row = tracks.fixes, tracks.row
    places = clean_places(fixes, row, tracks.linked, tracks.metres, rules.accuracy_not_said_m)
    if not places.moved.any():
        return tracks
    lat, lon = fixes.lat.copy(), fixes.lon.copy()
    lat[row], lon[row] = places.lat, places.lon
    fixes = replace(fixes, lat=lat, lon=lon)
    metres = tracks.metres.copy()
    other = places.moved.copy()
    other[1:] |= places.moved[:-1]
    end = np.flatnonzero(tracks.linked & other & ~places.still)
    # moved places are near: radii of curvature give the geodesic to 1e-5, and PROJ would take half of the time
    start, finish = ((fixes.lon[rows], fixes.lat[rows]) for rows in (row[end - 1], row[end]))
    metres[end] = np.hypot(*offset_m(start, finish))
    metres[places.still] = 0.0
    return replace(tracks, fixes=fixes, metres=metres, still=places.still)


def _ordered(fixes: Fixes, verdict: NDArray[np.uint8]) -> Ints:
    device, t_ms = fixes.device, fixes.t_ms
    ahead = (device[1:] > device[:-1]) | ((device[1:] == device[:-1]) & (t_ms[1:] >= t_ms[:-1]))
    # lexsort is stable: of equal times the row that was given first stays first.
    row = np.arange(len(fixes)) if ahead.all() else np.lexsort((t_ms, device))
    repeated = np.zeros(len(row), dtype=np.bool_)
    repeated[1:] = (device[row[1:]] == device[row[:-1]]) & (t_ms[row[1:]] == t_ms[row[:-1]])
    return _drop(row, verdict, repeated, Verdict.DUPLICATE)


def _drop(row: Ints, verdict: NDArray[np.uint8], drop: Bools, why: Verdict) -> Ints:
    verdict[row[drop]] = why
    return row[~drop]


def _at_null_island(fixes: Fixes, row: Ints, rules: TrackSettings) -> Bools:
    if rules.null_island_deg is None:
        return np.zeros(len(row), dtype=np.bool_)
    limit = rules.null_island_deg
    return np.asarray((np.abs(fixes.lat[row]) < limit) & (np.abs(fixes.lon[row]) < limit), dtype=np.bool_)


def _inaccurate(fixes: Fixes, row: Ints, rules: TrackSettings) -> Bools:
    if rules.max_accuracy_m is None or fixes.accuracy_m is None:
        return np.zeros(len(row), dtype=np.bool_)
    # the comparison is false for NaN, which means not reported
    return np.asarray(fixes.accuracy_m[row] > rules.max_accuracy_m, dtype=np.bool_)


def _same_device(fixes: Fixes, row: Ints) -> Bools:
    same = np.zeros(len(row), dtype=np.bool_)
    same[1:] = fixes.device[row[1:]] == fixes.device[row[:-1]]
    return same


def _steps(fixes: Fixes, row: Ints, rules: TrackSettings) -> tuple[Bools, Floats]:
    """For each fix: whether the one before it is of the same device and within the gap; and the metres between them."""
    near = _same_device(fixes, row)
    near[1:] &= np.diff(fixes.t_ms[row]) <= rules.max_gap_s * 1000.0
    metres = np.zeros(len(row))
    end = np.flatnonzero(near)
    metres[end] = _metres(fixes, row[end - 1], row[end])
    return near, metres


def _metres(fixes: Fixes, start: Ints, end: Ints) -> Floats:
    lon = unwrapped_end(fixes.lon[start], fixes.lon[end])
    return distance_m(fixes.lon[start], fixes.lat[start], lon, fixes.lat[end])


def _too_fast(fixes: Fixes, row: Ints, metres: Floats, rules: TrackSettings) -> Bools:
    fast = np.zeros(len(row), dtype=np.bool_)
    if rules.max_speed_mps is not None:
        limit = rules.max_speed_mps * (np.diff(fixes.t_ms[row]) / 1000.0)
        fast[1:] = metres[1:] > limit + _uncertain_m(fixes, row[:-1], row[1:], rules)
    return fast


def _uncertain_m(fixes: Fixes, start: Ints, end: Ints, rules: TrackSettings) -> Floats | float:
    """How much farther apart than they are two places may seem, by the accuracies of both."""
    if rules.rule == "every_fix":
        return 0.0
    return uncertain_m(fixes, start, rules.accuracy_not_said_m) + uncertain_m(fixes, end, rules.accuracy_not_said_m)


def _outliers(fixes: Fixes, row: Ints, near: Bools, metres: Floats, rules: TrackSettings) -> Bools:
    """Fixes reached and left too fast although the way past them is not. One pass: no fix sees another's removal."""
    outlier = _spikes(fixes, row, near, metres, rules)
    if rules.max_speed_mps is None:
        return outlier
    fast = near & _too_fast(fixes, row, metres, rules)
    suspect = np.flatnonzero(fast[:-1] & fast[1:])
    before, after = row[suspect - 1], row[suspect + 1]
    past = _metres(fixes, before, after)
    limit = rules.max_speed_mps * ((fixes.t_ms[after] - fixes.t_ms[before]) / 1000.0)
    limit += _uncertain_m(fixes, before, after, rules)
    outlier[suspect[past <= limit]] = True
    return outlier


def _spikes(fixes: Fixes, row: Ints, near: Bools, metres: Floats, rules: TrackSettings) -> Bools:
    """With the rule `standstill`, far fixes between two stands at one place that a vehicle cannot have driven to and
    from.

    They come from another receiver or from a mobile network's mast.
    """
    spike = np.zeros(len(row), dtype=np.bool_)
    if rules.rule == "every_fix" or len(row) < 5:
        return spike
    step_s = np.diff(fixes.t_ms[row]) / 1000.0
    off_m = np.zeros(len(row))
    off_m[1:] = _uncertain_m(fixes, row[:-1], row[1:], rules)
    stands = near & (metres <= off_m)
    away = near.copy()
    away[1:] &= (step_s <= SPIKE_S) & (metres[1:] > SPIKE_MPS * step_s + off_m[1:])
    suspect = 2 + np.flatnonzero(stands[1:-3] & away[2:-2] & away[3:-1] & stands[4:])
    t_ms = fixes.t_ms[row]
    # no verdict reaches beyond a gap
    reach = np.maximum(t_ms[suspect] - t_ms[suspect - 2], t_ms[suspect + 2] - t_ms[suspect])
    suspect = suspect[reach <= rules.max_gap_s * 1000.0]
    before, after = row[suspect - 1], row[suspect + 1]
    past = _metres(fixes, before, after)
    spike[suspect[past <= _uncertain_m(fixes, before, after, rules)]] = True
    return spike
