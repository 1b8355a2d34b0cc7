"""The days of devices that are to be computed, and the fixes that have a say in each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.event_ids import DAY_MS
from geo.spatial.ragged import Bools, Ints, expand, run_starts

__all__ = ["DAY_MS", "Units", "units_of"]

_TIME_BITS: Final = 42  # device times of rows with a partition are before 2100, 4.1e12 ms


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Touched days of devices: unit u is `day[u]` (days since 1970) of `device[u]`.

    `row` are the fixes of all units, one unit after the other, `unit` the unit of each.
    """

    device: Ints
    day: Ints
    row: Ints
    unit: Ints


def units_of(device: Ints, t_ms: Ints, touched: Bools, *, max_gap_ms: float, reach_ms: int) -> Units:
    """The units of fixes that are sorted by (device, time); `touched`: the fix's own day is asked for.

    A unit has the fixes of its day, and those around it that belong to the same unbroken stretch and are not farther
    than `reach_ms` from the day. It is a function of the device's fixes alone, however they came.
    """
    if not len(device):
        nothing = np.zeros(0, dtype=np.int64)
        return Units(nothing, nothing, nothing, nothing)
    day = t_ms // DAY_MS
    first = np.flatnonzero(run_starts(device, day))
    last = np.append(first[1:], len(device)) - 1
    asked = np.logical_or.reduceat(touched, first)
    first, last = first[asked], last[asked]
    low, high = _stretch(device, t_ms, max_gap_ms, first, last)
    key = (device << _TIME_BITS) + t_ms
    # a negative time would reach into the bits of the device before
    begin = np.maximum(day[first] * DAY_MS - reach_ms, 0)
    end = (day[first] + 1) * DAY_MS + reach_ms
    low = np.maximum(low, np.searchsorted(key, (device[first] << _TIME_BITS) + begin))
    high = np.minimum(high, np.searchsorted(key, (device[first] << _TIME_BITS) + end) - 1)
    unit, row = expand(low, high - low + 1)
    return Units(device[first], day[first], row, unit)


def _stretch(device: Ints, t_ms: Ints, max_gap_ms: float, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """First and last row of the stretches without a gap in which `first` and `last` lie."""
    opens = run_starts(device)
    opens[1:] |= np.diff(t_ms) > max_gap_ms
    begins = np.flatnonzero(opens)
    ends = np.append(begins[1:], len(device)) - 1
    number = np.cumsum(opens) - 1
    return begins[number[first]], ends[number[last]]
