"""What is held of all devices: anchors, the fixes after them, and what is open at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gateway.alerts.device_slots import FIX, DeviceSlots
from gateway.alerts.open_rows import SPEEDING, VISIT, OpenRows
from gateway.alerts.slot_rows import Records, SlotRows
from geo.spatial.open_visits import Beginnings
from geo.spatial.ragged import Bools, Floats, Ints

_AT_ONCE: Final = -np.inf
_NEVER: Final = np.inf


class DeviceStates:
    """Rows by slot: `tails` (FIX) are the fixes after the anchor, `visits` and `speeding` what is open at it."""

    def __init__(self, most: int) -> None:
        self.tails, self.visits, self.speeding = SlotRows(FIX), SlotRows(VISIT), SlotRows(SPEEDING)
        self.slots: Final = DeviceSlots(most, (self.tails, self.visits, self.speeding))

    @property
    def nbytes(self) -> int:
        """What is held, apart from names."""
        return sum(part.nbytes for part in (self.slots, self.tails, self.visits, self.speeding))

    def place(self, slots: Ints, rows: Records, known: Bools) -> None:
        """Tracks of these begin with these fixes; `known`: it is known that nothing was before."""
        device = self.slots.device
        self.slots.anchor[slots] = rows
        device["placed"][slots], device["known"][slots] = True, known
        device["begun_ms"][slots] = rows["t_ms"]
        device["due_ms"][slots], device["limit_mps"][slots] = _AT_ONCE, _NEVER
        for held in (self.tails, self.visits, self.speeding):
            held.drop(slots)

    def beginnings(self, slots: Ints) -> Beginnings:
        """What the tracks of these continue."""
        device = self.slots.device
        return Beginnings(device["begun_ms"][slots], device["known"][slots])

    def open_rows(self, slots: Ints) -> OpenRows:
        """What is open at the anchors of these; parts are numbered as they are."""
        return OpenRows(*self.visits.of(slots), *self.speeding.of(slots))

    def move(self, slots: Ints, anchors: Records, begun_ms: Floats, now_open: OpenRows) -> None:
        """All of these is decided up to later fixes; `now_open` is numbered as they are."""
        device = self.slots.device
        self.slots.anchor[slots] = anchors
        device["begun_ms"][slots], device["known"][slots] = begun_ms, True
        self.visits.replace(slots, now_open.visit_part, now_open.visits)
        self.speeding.replace(slots, now_open.speeding_part, now_open.speeding)

    def renumber(self, before: Sequence[str], after: Sequence[str]) -> None:
        """Fences have other numbers; what is open at one that is no more is dropped. All are looked at anew."""
        number = {name: at for at, name in enumerate(after)}
        numbers = np.array([*(number.get(name, -1) for name in before), -1], dtype=np.int64)
        for held in (self.visits, self.speeding):
            slots = held.owners()
            owner, rows = held.of(slots)
            rows["fence"] = numbers[rows["fence"]]
            keep = np.flatnonzero(rows["fence"] >= 0)
            keep = keep[np.lexsort((rows["fence"][keep], owner[keep]))]
            held.replace(slots, owner[keep], rows[keep])
        self.slots.device["due_ms"], self.slots.device["known"] = _AT_ONCE, False


def due_ms(parts: int, now_open: OpenRows, dwell_s: float | None) -> Floats:
    """From when on something may happen to parts although nothing is near: at once where a change of sides is in doubt
    or a stretch over a limit goes on, or when a visit becomes a dwell.
    """
    due, visits = np.full(parts, _NEVER), now_open.visits
    doubtful = ~np.isnan(visits["doubt_ms"])
    due[now_open.visit_part[doubtful]] = _AT_ONCE
    due[now_open.speeding_part] = _AT_ONCE
    if dwell_s is not None:
        waiting = ~doubtful & visits["known"] & ~visits["dwelt"]
        np.minimum.at(due, now_open.visit_part[waiting], visits["start_ms"][waiting] + dwell_s * 1000.0)
    return due
