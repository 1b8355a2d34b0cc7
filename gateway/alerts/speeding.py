"""Stretches over a speed limit in parts of tracks.

One is reported when it begins, and again when it ends if it was faster by then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gateway.alerts.found import Found, Held, Limits
from gateway.alerts.open_rows import SPEEDING, open_stretches
from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from geo.spatial import Tracks
from geo.spatial.events import speeding_stays
from geo.spatial.open_visits import Beginnings
from geo.spatial.ragged import Ints
from geo.spatial.stays import Stays


class OpenStretches:
    """The stretches of parts."""

    def __init__(
        self, tracks: Tracks, rules: AlertRules, begins: Beginnings, before: tuple[Ints, Records], limits: Limits
    ) -> None:
        self._names, self._least_ms = rules.fences.names, rules.events.min_stay_s * 1000.0
        self._begins, self._limits = begins, limits
        part, self._held = before
        self._stays = _stays(tracks, rules, part, self._held, limits)
        columns = (part, self._held["fence"], self._held["start_ms"])
        row_of = {key: row for row, key in enumerate(zip(*(column.tolist() for column in columns), strict=True))}
        stays = self._stays
        columns = (stays.group, stays.fence, stays.start_ms)
        self._before = [row_of.get(key, -1) for key in zip(*(column.tolist() for column in columns), strict=True)]
        self._going = np.flatnonzero(stays.end_ms == limits.last_ms[stays.group])
        self._part: Ints = stays.group[self._going]
        self._rows: Records = np.zeros(len(self._going), dtype=SPEEDING)
        self._rows["fence"] = stays.fence[self._going]
        self._rows["start_ms"], self._rows["speed_mps"] = stays.start_ms[self._going], stays.speed[self._going]

    def after(self) -> tuple[Ints, Records]:
        """What goes on at the last fixes: parts, ascending, and rows (SPEEDING)."""
        return self._part, self._rows

    def found(self) -> Iterator[Found]:
        """What is to be said; the keys of stretches that go on are to be held."""
        stays = self._stays
        going = dict(zip(self._going.tolist(), range(len(self._going)), strict=True))
        for stretch, before in enumerate(self._before):
            part, start_ms = int(stays.group[stretch]), float(stays.start_ms[stretch])
            if before >= 0:
                known, said = bool(self._held["known"][before]), float(self._held["said_mps"][before])
            else:
                known, said = bool(self._begins.known[part]) or start_ms > self._limits.first_ms[part], np.nan
            lasts = stays.end_ms[stretch] - start_ms >= self._least_ms
            most = round(float(stays.speed[stretch]), 3)
            row = going.get(stretch)
            is_event = known and lasts and (np.isnan(said) or (row is None and most != said))
            if row is not None:
                self._rows["known"][row], self._rows["said_mps"][row] = known, most if is_event else said
            hold = None if row is None else Held(self._rows, row)
            key = None if before < 0 else Held(self._held, before).key()
            if is_event or hold is not None:
                place = self._names[stays.fence[stretch]]
                yield Found(part, round(start_ms), "speeding", place, most, key, hold, bool(is_event), row is not None)


def _stays(tracks: Tracks, rules: AlertRules, part: Ints, rows: Records, limits: Limits) -> Stays:
    earlier = [open_stretches(part, rows, limits.first_ms)] if len(rows) else []
    return speeding_stays(tracks, rules.fences, earlier)
