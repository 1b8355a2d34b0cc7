"""What the engine finds in parts of tracks that are taken up at the anchors of devices, and what stays open there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.alerts.found import Found, Limits, PartEvent, keyed
from gateway.alerts.open_rows import OpenRows
from gateway.alerts.part_visits import PartVisits
from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from gateway.alerts.speeding import OpenStretches
from geo.spatial import Tracks
from geo.spatial.open_visits import Beginnings
from geo.spatial.ragged import Floats


@dataclass(frozen=True, slots=True, eq=False)
class PartResult:
    """What is new in parts, what is open at their last fixes, and when the tracks began that these are on."""

    events: list[PartEvent]
    open: OpenRows
    begun_ms: Floats


def evaluate_parts(
    tracks: Tracks, fixes: Records, rules: AlertRules, begins: Beginnings, before: OpenRows
) -> PartResult:
    """The events of tracks that are decided; their devices are the parts, numbered from 0. `fixes` (FIX) are their rows.

    Nothing is found that `before` says was found; and no later fix of a track takes back what is.
    """
    if not len(fixes):
        return PartResult([], before, begins.begun_ms)
    limits = Limits.of(tracks)
    visits = PartVisits(tracks, rules, begins, before, limits)
    stretches = OpenStretches(tracks, rules, begins, (before.speeding_part, before.speeding), limits)
    found = [*visits.found(), *visits.doubted(), *_of_gates(tracks, rules), *stretches.found()]
    events = list(keyed(tracks, fixes, found))
    after = OpenRows(visits.now.open.device, visits.rows, *stretches.after())
    return PartResult(events, after, visits.now.begun_ms)


def _of_gates(tracks: Tracks, rules: AlertRules) -> Iterator[Found]:
    gates = rules.gates
    if not gates.gates:
        return
    for crossings in gates.crossings_in_parts(tracks):
        part = tracks.fixes.device[crossings.end_fix]
        columns = (part, crossings.gate, crossings.forward, crossings.t_ms)
        for number, gate, forward, t_ms in zip(*(column.tolist() for column in columns), strict=True):
            yield Found(number, round(t_ms), "forward" if forward else "backward", gates.gates[gate].id, 0.0)
