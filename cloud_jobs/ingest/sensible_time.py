"""Which device times an hour or a day can be computed from: those near enough to when the record was received. Pure.

Of copies that were received at different times the one that is ingested first decides, and the record keeps that: close
to a bound two centres may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_DAY_US: Final = 86_400_000_000
_FIRST_DAY, _LAST_DAY = 0, 47_482
"""1970-01-01 and 2100-01-01 in days: outside, a clock is wrong whatever the settings say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensibleTime:
    """A device time from so many days before a record was received to so many after it; any other one is far off."""

    max_age_days: int = 400
    max_ahead_days: int = 1

    def days(self, device_time_us: NDArray[np.int64], received_us: NDArray[np.int64]) -> pa.Array:
        """The UTC day of each device time (date32), null for one far off. Both in microseconds since 1970."""
        days = device_time_us // _DAY_US
        known = (days >= _FIRST_DAY) & (days < _LAST_DAY)
        known &= device_time_us >= received_us - self.max_age_days * _DAY_US
        known &= device_time_us <= received_us + self.max_ahead_days * _DAY_US
        return pa.array(days.astype(np.int32), pa.int32(), mask=~known).cast(pa.date32())


USUAL: Final = SensibleTime()
