"""What an evaluation of a region is given and what it gives: fixes of any devices as columns, and the events found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from geo.spatial import DayEvent

__all__ = ["BatchFixes", "FoundEvent", "LiveEvaluation", "LiveFixes"]

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class BatchFixes:
    """The fixes of one batch, which is of one device and epoch; NaN for what a fix does not report."""

    tenant: str
    device: str
    epoch: int
    seq: _Ints
    t_ms: _Ints
    latitude: _Floats
    longitude: _Floats
    accuracy_m: _Floats
    speed_mps: _Floats

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True, eq=False)
class LiveFixes:
    """Fixes of any number of devices in the order in which they came; `device` indexes `devices` (tenant, name)."""

    devices: tuple[tuple[str, str], ...]
    device: _Ints
    epoch: _Ints
    seq: _Ints
    t_ms: _Ints
    latitude: _Floats
    longitude: _Floats
    accuracy_m: _Floats
    speed_mps: _Floats

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def of(cls, batches: Sequence[BatchFixes]) -> LiveFixes:
        """The fixes of batches, at least one, one after the other."""
        numbers: dict[tuple[str, str], int] = {}
        of_batch = [numbers.setdefault((one.tenant, one.device), len(numbers)) for one in batches]
        counts = [len(one) for one in batches]
        return cls(
            devices=tuple(numbers),
            device=np.repeat(np.array(of_batch, dtype=np.int64), counts),
            epoch=np.repeat(np.array([one.epoch for one in batches], dtype=np.int64), counts),
            seq=np.concatenate([one.seq for one in batches]),
            t_ms=np.concatenate([one.t_ms for one in batches]),
            latitude=np.concatenate([one.latitude for one in batches]),
            longitude=np.concatenate([one.longitude for one in batches]),
            accuracy_m=np.concatenate([one.accuracy_m for one in batches]),
            speed_mps=np.concatenate([one.speed_mps for one in batches]),
        )


class FoundEvent(NamedTuple):
    """An event of which nothing was said before, by its id."""

    id: str
    tenant: str
    device: str
    event: DayEvent


class LiveEvaluation(Protocol):
    """What a partition's fixes amount to, kept from one call to the next."""

    def take(self, fixes: LiveFixes, now_ms: int, *, report: bool) -> Sequence[FoundEvent]:
        """Takes fixes, and gives the events that follow now and did not before.

        `report=False`: they count as said, for somebody else said them, and nothing is given.
        """
