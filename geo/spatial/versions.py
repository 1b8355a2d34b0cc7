"""Versions of one fence or gate: each ends where the next one begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from geo.spatial.activity import Activity, begin_ms, whole_ms
from geo.spatial.ragged import Floats, Ints, distinct, expand


class Version(Protocol):
    """One version of a fence or gate: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> str:
        """What its versions share."""

    @property
    def active(self) -> Activity:
        """When it is in force."""

    @property
    def effective_from_ms(self) -> int | None:
        """From when it stands for its id, as it was declared."""


V = TypeVar("V", bound=Version)


def effective_ms(version: Version) -> int:
    """From when a version stands for its id: what was declared, which weekly windows do not move."""
    return begin_ms(version.active) if version.effective_from_ms is None else version.effective_from_ms


def superseded(versions: Iterable[V]) -> list[V]:
    """Each version of an id ends where the next one begins; equal beginnings: the last given wins.

    And it begins where the one before it ends: at most one of them is in force at any time.
    """
    by_id: dict[str, list[V]] = {}
    for version in versions:
        by_id.setdefault(version.id, []).append(version)
    kept: list[V] = []
    for same in by_id.values():
        same.sort(key=effective_ms)
        begins: list[int | None] = [effective_ms(version) for version in same]
        for version, begin, end in zip(same, [None, *begins[1:]], [*begins[1:], None], strict=True):
            limited = _limited(version.active, begin, end)
            # An id of which no version is ever in force keeps the last one: its name stays among the names.
            if len(limited.switches) or version is same[-1]:
                kept.append(version if limited is version.active else replace(version, active=limited))
    return kept


def _limited(active: Activity, begin: int | None, end: int | None) -> Activity:
    early = begin is not None and begin_ms(active) < begin
    return active & Activity([(begin if early else None, end)]) if early or end is not None else active


class Versions:
    """Which version of each name began last, however many there are. `begin_ms`: when each fence is first in force.

    Those of a name come one after the other in time (see `superseded`).
    """

    def __init__(self, name: Ints, begin_ms: Sequence[int]) -> None:
        begin = np.array(begin_ms, dtype=np.int64)
        self._begins = distinct(begin)
        rank = np.searchsorted(self._begins, begin) + 1
        self._order = np.lexsort((rank, name))
        # the rank of a time stands for it, so that name and time are one number
        self._keys = (name * (len(self._begins) + 1) + rank)[self._order]

    def at(self, name: Ints, t_ms: Floats) -> Ints:
        """The version of each name that began last before or at each time, in force or not; before all, the first."""
        return self._order[self._place(name, t_ms)]

    def within(self, name: Ints, start_ms: Floats, end_ms: Floats) -> tuple[Ints, Ints]:
        """(row, version): those of each name that may be in force in a stretch of time, both ends included."""
        first = self._place(name, start_ms)
        row, place = expand(first, self._place(name, end_ms) - first + 1)
        return row, self._order[place]

    def _place(self, name: Ints, t_ms: Floats) -> Ints:
        rank = np.searchsorted(self._begins, whole_ms(t_ms), side="right")
        first = name * (len(self._begins) + 1)
        last = np.searchsorted(self._keys, first + rank, side="right") - 1
        return np.maximum(last, np.searchsorted(self._keys, first))
