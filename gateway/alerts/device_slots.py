"""Devices by number: who is known, when it was heard, and what is held of each in a few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gateway.alerts.fix_columns import FixSource
from gateway.alerts.slot_rows import Records, SlotRows
from geo.spatial.ragged import Ints

FIX: Final = np.dtype(
    [
        ("t_ms", np.int64),
        ("latitude", np.float64),
        ("longitude", np.float64),
        ("accuracy_m", np.float64),
        ("speed_mps", np.float64),
        ("epoch", np.int64),
        ("seq", np.int64),
        ("received_ms", np.int64),
    ]
)
"""A fix as it is held."""
DEVICE: Final = np.dtype(
    [
        ("begun_ms", np.float64),
        ("due_ms", np.float64),
        ("limit_mps", np.float64),
        ("excluded_ms", np.int64),
        ("heard_ms", np.int64),
        ("placed", np.bool_),
        ("known", np.bool_),
    ]
)
"""Of a device. `placed`: it has an anchor, the fix up to which all is decided. `begun_ms`: when the track began that
this fix is on; `known`: what is open there is known. `due_ms`: from then on something may happen although nothing is
near. `limit_mps`: the least speed limit in force where it is. `excluded_ms`: the time of the last fix that was excluded.
"""
_FIRST_SLOTS: Final = 1024
_FORGOTTEN_SHARE: Final = 16
"""When all slots are taken, one in so many is emptied at once."""


class DeviceSlots:
    """Gives each device a slot, below `most`; the one that was heard longest ago gives its up for another.

    `anchor` (FIX) and `device` (DEVICE) have a row for each slot, `rows` are those by slot.
    """

    def __init__(self, most: int, rows: Sequence[SlotRows]) -> None:
        self._most, self._rows = most, rows
        self._slots: dict[tuple[str, str], int] = {}
        self._names: list[tuple[str, str] | None] = []
        self._free: list[int] = []
        self._tenants: dict[str, str] = {}
        self.anchor: Records = np.zeros(0, dtype=FIX)
        self.device: Records = np.zeros(0, dtype=DEVICE)
        self._forgotten: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """What the arrays take."""
        return self.anchor.nbytes + self.device.nbytes

    def name(self, slot: int) -> tuple[str, str]:
        """The tenant and device of a slot in use."""
        name = self._names[slot]
        assert name is not None, "the slot is in use"
        return name

    def of(self, sources: Sequence[FixSource], now_ms: int) -> Ints:
        """The slot of each source; new ones are made. -1: all slots are of devices that are heard at this moment."""
        known = self._slots
        found = [known.get((source.tenant, source.device), -1) for source in sources]
        slots = np.array(found, dtype=np.int64)
        # before others are forgotten
        self.device["heard_ms"][slots[slots >= 0]] = now_ms
        for place in np.flatnonzero(slots < 0).tolist():
            source = sources[place]
            slots[place] = self._slot(source.tenant, source.device, now_ms)
        return slots

    def forget_before(self, heard_ms: int) -> None:
        """Forgets those that were last heard before this."""
        used = np.fromiter(self._slots.values(), dtype=np.int64, count=len(self._slots))
        self._forget(used[self.device["heard_ms"][used] < heard_ms])

    def take_forgotten(self) -> list[int]:
        """The slots of which a device was forgotten since this was asked last."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _slot(self, tenant: str, device: str, now_ms: int) -> int:
        key = (self._tenants.setdefault(tenant, tenant), device)
        if key in self._slots:
            return self._slots[key]
        if not self._free:
            self._make_room(now_ms)
        if not self._free:
            return -1
        slot = self._free.pop()
        self._slots[key], self._names[slot] = slot, key
        self.device[slot] = np.zeros((), dtype=DEVICE)
        self.device["excluded_ms"][slot] = np.iinfo(np.int64).min
        self.device["heard_ms"][slot] = now_ms
        return slot

    def _make_room(self, now_ms: int) -> None:
        have = len(self._names)
        if have < self._most:
            slots = min(max(2 * have, _FIRST_SLOTS), self._most)
            self.anchor, self.device = (_longer(rows, slots) for rows in (self.anchor, self.device))
            self._names += [None] * (slots - have)
            self._free = list(range(slots - 1, have - 1, -1))
            for rows in self._rows:
                rows.grow(slots)
            return
        count = max(have // _FORGOTTEN_SHARE, 1)
        longest = np.argpartition(self.device["heard_ms"], count - 1)[:count]
        self._forget(longest[self.device["heard_ms"][longest] < now_ms])

    def _forget(self, slots: Ints) -> None:
        for slot in slots.tolist():
            del self._slots[self.name(slot)]
            self._names[slot] = None
        self.device["placed"][slots] = False
        for rows in self._rows:
            rows.drop(slots)
        self._free += slots.tolist()
        self._forgotten += slots.tolist()


def _longer(rows: Records, count: int) -> Records:
    longer: Records = np.zeros(count, dtype=rows.dtype)
    longer[: len(rows)] = rows
    return longer
