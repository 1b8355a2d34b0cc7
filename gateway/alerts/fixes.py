"""The held fixes of each device, in columns: the end of its track, as far as the evaluation needs it.

Most devices need a few fixes: a row of a table holds them. A device that needs more has an array of its own, with all
columns in one, as small arrays cost more than their content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from geo.spatial.ragged import Bools, Floats, Ints, expand, offsets
from waybill.record.columns import RecordColumns
from waybill.record.record import Kind

# Fixes of many devices as columns, in order of arrival.

_US_PER_MS = 1000


class FixSource(NamedTuple):
    tenant: str
    device: str
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class FixColumns:
    """One row for each fix, in order of arrival; `sources[source[i]]` sent row i. A source may occur several times.

    `source`, `seq`, `t_ms` (device time) and `received_ms` (arrival of the batch in the region) are int64; `latitude`,
    `longitude`, `accuracy_m` and `speed_mps` are float64, NaN if not reported. Positions may be invalid.
    """

    sources: Sequence[FixSource]
    source: Ints
    seq: Ints
    t_ms: Ints
    latitude: Floats
    longitude: Floats
    accuracy_m: Floats
    speed_mps: Floats
    received_ms: Ints

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def of(cls, batches: Iterable[tuple[str, RecordColumns, int]]) -> FixColumns:
        """The fixes of batches, each with its tenant and its arrival in the region; other records are left out."""
        sources: list[FixSource] = []
        counts: list[int] = []
        received: list[int] = []
        columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        for tenant, records, received_ms in batches:
            is_fix = records.kind == Kind.POSITION
            whole = bool(is_fix.all())
            for name, values in columns.items():
                column = getattr(records, name)
                values.append(column if whole else column[is_fix])
            sources.append(FixSource(tenant, records.header.device, records.header.epoch))
            counts.append(len(columns["seq"][-1]))
            received.append(received_ms)
        none: dict[str, np.ndarray] = {name: np.zeros(0, dtype=kind) for name, kind in _COLUMNS.items()}
        joined = {name: np.concatenate([none[name], *values]) for name, values in columns.items()}
        # floor, as at the centre
        t_ms = joined.pop("device_time_us") // _US_PER_MS
        source = np.repeat(np.arange(len(counts)), counts)
        return cls(sources, source, t_ms=t_ms, received_ms=np.array(received, dtype=np.int64)[source], **joined)


_COLUMNS = {
    "seq": np.int64,
    "device_time_us": np.int64,
    "latitude": np.float64,
    "longitude": np.float64,
    "accuracy_m": np.float64,
    "speed_mps": np.float64,
}


IN_TABLE: Final = 6
"""Fixes of a device in the table."""
_GROWTH: Final = 2


class FixRows(NamedTuple):
    """Fixes as columns; `owner` is the caller's number of the device. NaN if not reported."""

    owner: Ints
    t_ms: Ints
    epoch: Ints
    seq: Ints
    latitude: Floats
    longitude: Floats
    accuracy_m: Floats
    speed_mps: Floats

    def take(self, rows: Ints | Bools | slice) -> FixRows:
        return FixRows._make(column[rows] for column in self)

    def joined(self, other: FixRows) -> FixRows:
        return FixRows._make(np.concatenate(pair) for pair in zip(self, other, strict=True))

    @classmethod
    def none(cls) -> FixRows:
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(whole, whole, whole, whole, real, real, real, real)


class HeldFixes:
    """Fixes of devices, which are numbered from 0 (slots); each device's in order of time."""

    def __init__(self) -> None:
        self._count = np.zeros(0, dtype=np.int64)
        self._table: list[np.ndarray] = [np.zeros((0, IN_TABLE), dtype=column.dtype) for column in FixRows.none()[1:]]
        self._long: dict[int, Ints] = {}

    def reserve(self, slots: int) -> None:
        have = len(self._count)
        if slots <= have:
            return
        # doubled, as all columns are copied each time
        more = max(slots, _GROWTH * have) - have
        self._count = np.append(self._count, np.zeros(more, dtype=np.int64))
        self._table = [
            np.concatenate([column, np.zeros((more, IN_TABLE), dtype=column.dtype)]) for column in self._table
        ]

    def read(self, slots: Ints) -> FixRows:
        """The fixes of some devices, one device after the other; `owner` is the place in `slots`."""
        count = self._count[slots]
        owner, place = expand(np.zeros(len(slots), dtype=np.int64), np.minimum(count, IN_TABLE))
        rows = FixRows._make((owner, *(column[slots[owner], place] for column in self._table)))
        long = np.flatnonzero(count > IN_TABLE)
        if not len(long):
            return rows
        held = np.concatenate([self._long[slot] for slot in slots[long].tolist()], axis=1)
        more = _of_matrix(np.repeat(long, count[long]), held)
        rows = rows.take(count[rows.owner] <= IN_TABLE).joined(more)
        return rows.take(np.argsort(rows.owner, kind="stable"))

    def last(self, slots: Ints) -> FixRows:
        """The newest fix of each device, `owner` as in `read`. Undefined for a device without fixes."""
        count = self._count[slots]
        place = np.clip(count, 1, IN_TABLE) - 1
        rows = FixRows._make((np.arange(len(slots)), *(column[slots, place] for column in self._table)))
        long = np.flatnonzero(count > IN_TABLE)
        if len(long):
            newest = np.stack([self._long[slot][:, -1] for slot in slots[long].tolist()], axis=1)
            for column, values in zip(rows[1:], _of_matrix(long, newest)[1:], strict=True):
                column[long] = values
        return rows

    def write(self, slots: Ints, rows: FixRows) -> None:
        """Replace the fixes of these devices. `rows`: in the order of `owner`, the place in `slots`."""
        count = np.bincount(rows.owner, minlength=len(slots))
        first = offsets(count)
        for at in np.flatnonzero(self._count[slots] > IN_TABLE).tolist():
            del self._long[int(slots[at])]
        self._count[slots] = count
        long = np.flatnonzero(count > IN_TABLE).tolist()
        if long:
            matrix = _matrix_of(rows)
            for at in long:
                # a view would keep the columns of all devices of this call
                self._long[int(slots[at])] = matrix[:, first[at] : first[at + 1]].copy()
        short = np.flatnonzero((count <= IN_TABLE)[rows.owner])
        owner = rows.owner[short]
        place = short - first[owner]
        for column, values in zip(self._table, rows[1:], strict=True):
            column[slots[owner], place] = values[short]

    def forget(self, slots: Ints) -> None:
        for slot in slots[self._count[slots] > IN_TABLE].tolist():
            del self._long[slot]
        self._count[slots] = 0

    def lengths(self, slots: Ints) -> Ints:
        return self._count[slots]

    @property
    def nbytes(self) -> int:
        held = sum(matrix.nbytes for matrix in self._long.values())
        return held + self._count.nbytes + sum(column.nbytes for column in self._table)


def _matrix_of(rows: FixRows) -> Ints:
    """All columns but `owner` in one array, a row each; floats by their bits."""
    return np.stack([column.view(np.int64) for column in rows[1:]])


def _of_matrix(owner: Ints, matrix: Ints) -> FixRows:
    kinds = (column.dtype for column in FixRows.none()[1:])
    return FixRows._make((owner, *(row.view(kind) for row, kind in zip(matrix, kinds, strict=True))))
