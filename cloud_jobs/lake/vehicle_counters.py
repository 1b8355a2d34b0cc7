"""What counters of a vehicle say: its odometer, and how many messages its own broker dropped before the agent. Pure.

Rows of usage have it of a device as a whole, as JSON: `dropped`, the number of each quarter, and `odometer_m`, of each
quarter the least and the greatest reading or null; "" where there is neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.lake.schemas import QUARTERS
from geo.reference.moments import stamp

ODOMETER: Final = "Vehicle.TraveledDistance"
"""The signal of the whole way that a vehicle has driven, in kilometres."""
NO_READING: Final = 0
"""An odometer of 0 is one that is not known yet."""
_KILOMETRES: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?)\s*(?:km)?\s*")
_MOST_KM: Final = 1e7  # no vehicle drives so far; the mark of J1939 for *not available* is beyond
_MOST_DROPPED: Final = 10**12
_MM_IN_KM: Final = 1_000_000


def odometer_m(number: float | None, text: str | None) -> int:
    """A reading in metres; a signal may be text, as `"48211.7"` or `"48211.7 km"`."""
    found = _KILOMETRES.fullmatch(text or "") if number is None else None
    km = float(found[1]) if found else number
    return round(km * 1000) if km is not None and 0 < km < _MOST_KM else NO_READING


def dropped_messages(attributes: str | None) -> int:
    """What an event of the agent says that the vehicle's broker dropped; 0 of one that cannot be read."""
    try:
        count = json.loads(attributes or "")["messages"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return count if type(count) is int and 0 < count < _MOST_DROPPED else 0


def counters_texts(
    before: Sequence[str], slot: NDArray[np.int64], is_odometer: NDArray[np.bool_], value: NDArray[np.int64]
) -> list[str]:
    """Of each row (its text of before) the text with more in it: `slot`, a row's quarter, of each reading or number."""
    texts, there = [*before], np.flatnonzero(value != 0)
    slot, is_odometer, value = slot[there], is_odometer[there], value[there]
    if not len(there):
        return texts
    order = np.lexsort((value, is_odometer, slot))
    slots, kinds, values = slot[order], is_odometer[order], value[order]
    first = np.flatnonzero(np.r_[True, (slots[1:] != slots[:-1]) | (kinds[1:] != kinds[:-1])])
    last = np.append(first[1:], len(values)) - 1
    columns = slots[first], kinds[first], values[first], values[last], np.add.reduceat(values, first)
    found: dict[int, dict[str, Any]] = {}
    for at, is_reading, low, high, count in zip(*(one.tolist() for one in columns), strict=True):
        row, quarter = divmod(at, QUARTERS)
        of = found.setdefault(row, json.loads(texts[row] or "{}"))
        if is_reading:
            of.setdefault("odometer_m", [None] * QUARTERS)
            known = of["odometer_m"][quarter] or (low, high)
            of["odometer_m"][quarter] = [min(low, known[0]), max(high, known[1])]
        else:
            of.setdefault("dropped", [0] * QUARTERS)[quarter] += count
    for row, of in found.items():
        texts[row] = json.dumps(of, sort_keys=True, separators=(",", ":"))
    return texts


class OdometerWay(NamedTuple):
    """The way by a vehicle's odometer from its first to its last reading, and what is metered of the same time: at
    least, in the quarters between those of the two, and at most, with these. `start`, `end`: of these quarters."""

    start: datetime
    end: datetime
    driven_m: int
    least_mm: int
    most_mm: int

    @property
    def percent(self) -> tuple[float, float] | None:
        """How much more is metered than was driven, at least and at most; None: it drove nothing."""
        if not self.driven_m:
            return None
        least, most = (round(mm / (10 * self.driven_m) - 100, 2) for mm in (self.least_mm, self.most_mm))
        return least, most

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "start": stamp(self.start), "end": stamp(self.end), "percent": self.percent}

    def __str__(self) -> str:
        least, most = (f"{mm / _MM_IN_KM:,.1f}" for mm in (self.least_mm, self.most_mm))
        share = f", {self.percent[0]:+.1f} % to {self.percent[1]:+.1f} %" if self.percent else ""
        return f"{least} km to {most} km are metered of {self.driven_m / 1000:,.1f} km by its odometer{share}"
