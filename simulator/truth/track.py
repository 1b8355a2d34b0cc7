"""From the positions of a device to its tracks: what is excluded, and where a track breaks.

The order of the rules: sort by device time (equal times in the order of their making), keep the first of each time,
leave out fixes at 0°/0° and those less accurate than 100 m, then in one pass over what is left the fixes that jump out
and back, and last break the track at gaps and at what remains impossibly fast.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from geographiclib.geodesic import Geodesic

from simulator.truth.journal import TruePosition
from simulator.truth.standstill import TruePlace, as_reported, cleaned, uncertain_m

TrueRule = Literal["standstill", "every_fix"]

MAX_GAP_US = 300 * 1_000_000
MAX_SPEED_MPS = 70.0
WORST_ACCURACY_MM = 100_000
NULL_ISLAND_E7 = 10  # 1e-6 degrees
SPIKE_MPS, SPIKE_US = 10.0, 60 * 1_000_000


def metres(latitude_a: float, longitude_a: float, latitude_b: float, longitude_b: float) -> float:
    """The length of the WGS84 geodesic between two places in degrees."""
    length: float = Geodesic.WGS84.Inverse(latitude_a, longitude_a, latitude_b, longitude_b, Geodesic.DISTANCE)["s12"]
    return length


def places(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePlace]]:
    """Where the device was, of each of its unbroken tracks."""
    for track in tracks(positions, rule):
        lengths = [0.0, *(_step_m(before, after) for before, after in pairwise(track))]
        yield as_reported(track, lengths) if rule == "every_fix" else cleaned(track, lengths)


def tracks(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePosition]]:
    """The unbroken tracks of one device; `positions` in the order in which it made them."""
    track: list[TruePosition] = []
    for fix in _without_jumps(_plausible(_one_of_each_time(positions)), rule):
        if track and (_gap_us(track[-1], fix) > MAX_GAP_US or _too_fast(track[-1], fix, rule)):
            yield track
            track = []
        track.append(fix)
    if track:
        yield track


def _one_of_each_time(positions: list[TruePosition]) -> list[TruePosition]:
    kept: list[TruePosition] = []
    # sorted() is stable: of equal times the one that was made first comes first, and is kept.
    for fix in sorted(positions, key=lambda fix: fix.time_us):
        if not kept or kept[-1].time_us != fix.time_us:
            kept.append(fix)
    return kept


def _plausible(positions: list[TruePosition]) -> list[TruePosition]:
    return [
        fix
        for fix in positions
        if not (abs(fix.latitude_e7) < NULL_ISLAND_E7 and abs(fix.longitude_e7) < NULL_ISLAND_E7)
        and (fix.accuracy_mm is None or fix.accuracy_mm <= WORST_ACCURACY_MM)
    ]


def _without_jumps(positions: list[TruePosition], rule: TrueRule) -> list[TruePosition]:
    """Without each fix that is too far from both neighbours while they are not too far from each other."""
    return [fix for index, fix in enumerate(positions) if not _jumps(positions, index, rule)]


def _jumps(positions: list[TruePosition], index: int, rule: TrueRule) -> bool:
    # A jump goes out and back, which the first and the last fix cannot.
    if index in {0, len(positions) - 1}:
        return False
    if rule == "standstill" and _is_spike(positions[max(index - 2, 0) : index + 3]):
        return True
    before, fix, after = positions[index - 1 : index + 2]
    near = _gap_us(before, fix) <= MAX_GAP_US and _gap_us(fix, after) <= MAX_GAP_US
    out_and_back = _too_fast(before, fix, rule) and _too_fast(fix, after, rule)
    return near and out_and_back and not _too_fast(before, after, rule)


def _is_spike(around: list[TruePosition]) -> bool:
    """Of five fixes in a row the one in the middle: driven to and back within two minutes, from one place at rest."""
    if len(around) < 5:
        return False
    first, before, fix, after, last = around
    out = all(
        _gap_us(*step) <= SPIKE_US and _step_m(*step) > SPIKE_MPS * _gap_us(*step) / 1e6 + _off_m(*step)
        for step in ((before, fix), (fix, after))
    )
    rests = all(_step_m(*pair) <= _off_m(*pair) for pair in ((first, before), (before, after), (after, last)))
    return out and rests and max(_gap_us(first, fix), _gap_us(fix, last)) <= MAX_GAP_US


def _off_m(before: TruePosition, after: TruePosition) -> float:
    """How far two places may be off together."""
    return uncertain_m(before) + uncertain_m(after)


def _gap_us(before: TruePosition, after: TruePosition) -> int:
    return after.time_us - before.time_us


def _step_m(before: TruePosition, after: TruePosition) -> float:
    return metres(
        before.latitude_e7 / 1e7, before.longitude_e7 / 1e7, after.latitude_e7 / 1e7, after.longitude_e7 / 1e7
    )


def _too_fast(before: TruePosition, after: TruePosition, rule: TrueRule) -> bool:
    """By the rule `standstill` the places may be off by as much as they state."""
    off_m = _off_m(before, after) if rule == "standstill" else 0.0
    return _step_m(before, after) > MAX_SPEED_MPS * (_gap_us(before, after) / 1e6) + off_m
