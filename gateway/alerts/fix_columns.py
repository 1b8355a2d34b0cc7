"""Fixes of many devices as columns, in the order in which they arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from geo.spatial.ragged import Floats, Ints
from telemetry.bodies import Kind
from telemetry.columns import RecordColumns

_POSITION: Final = Kind.POSITION


class FixSource(NamedTuple):
    """Who numbered a fix: with its `seq` that is a record id."""

    tenant: str
    device: str
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class FixColumns:
    """One row a fix, in the order of arrival; `sources[source[i]]` made row i. A source may be there several times.

    Every array has one entry for each row: `source`, `seq`, `t_ms` (device time) and `received_ms` (when the region's
    cluster had its batch) int64; `latitude`, `longitude`, `accuracy_m` and `speed_mps` float64, NaN for *not reported*.
    Positions need not be valid.
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
        """The fixes of decoded batches, each with its tenant and when the region's cluster had it; other kinds of records
        are left out.
        """
        raise NotImplementedError
