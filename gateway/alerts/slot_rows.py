"""Rows of many owners in one array: each owner's rows lie together, and are replaced together."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geo.spatial.ragged import Ints, expand, offsets

Records: TypeAlias = NDArray[Any]
"""An array of a structured type."""
_LEAST: Final = 1024


class SlotRows:
    """Rows of one structured type by the number of their owner, a slot. What is replaced is written behind all others;
    the array is packed when it is full, so at most half of it lies idle after that.
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._rows: Records = np.zeros(_LEAST, dtype=kind)
        self._end = 0
        self._first: Ints = np.zeros(0, dtype=np.int64)
        self._count = np.zeros(0, dtype=np.int32)
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return self._rows.nbytes + self._first.nbytes + self._count.nbytes

    def grow(self, slots: int) -> None:
        """There are so many slots from now on."""
        more = slots - len(self._first)
        self._first = np.concatenate([self._first, np.zeros(more, dtype=np.int64)])
        self._count = np.concatenate([self._count, np.zeros(more, dtype=np.int32)])

    def counts(self, slots: Ints) -> Ints:
        """How many rows each of these slots has."""
        return self._count[slots].astype(np.int64)

    def of(self, slots: Ints) -> tuple[Ints, Records]:
        """The rows of these slots, one slot after the other: (place in `slots`, row) of each."""
        owner, at = expand(self._first[slots], self._count[slots])
        return owner, self._rows[at]

    def replace(self, slots: Ints, owner: Ints, rows: Records) -> None:
        """From now on these slots (each once) have these rows: `owner`, ascending, is the place in `slots` of each."""
        counts = np.bincount(owner, minlength=len(slots))
        self._held += len(rows) - int(self._count[slots].sum())
        # what these had is idle before it is packed
        self._count[slots] = 0
        if self._end + len(rows) > len(self._rows):
            self._pack(len(rows))
        self._rows[self._end : self._end + len(rows)] = rows
        self._first[slots] = self._end + offsets(counts)[:-1]
        self._count[slots] = counts
        self._end += len(rows)

    def owners(self) -> Ints:
        """The slots that have rows."""
        return np.flatnonzero(self._count)

    def drop(self, slots: Ints) -> None:
        """These slots (each once) have no rows."""
        self._held -= int(self._count[slots].sum())
        self._count[slots] = 0

    def _pack(self, more: int) -> None:
        slots = self.owners()
        _, rows = self.of(slots)
        self._first[slots] = offsets(self._count[slots])[:-1]
        self._end = len(rows)
        self._rows = np.zeros(max(2 * (len(rows) + more), _LEAST), dtype=self._rows.dtype)
        self._rows[: len(rows)] = rows
