"""Fixes as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from geo.spatial.errors import FixError
from geo.spatial.ragged import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Fixes:
    """Positions of any number of devices, in any order, one row a fix.

    `device` int64 (the caller's own number for a device), `t_ms` int64 (device time, Unix epoch), `lat` and `lon`
    float64 degrees (180 becomes -180), `accuracy_m` and `speed_mps` float64 with NaN for *not reported*, or None. An
    accuracy of 0 or less and a negative speed, with which platforms mark an invalid one, become NaN.

    Raises `FixError` for columns of unequal length, for latitudes outside ±90 and for anything that is not finite;
    `valid_positions` says beforehand which rows would be refused.
    """

    device: Ints
    t_ms: Ints
    lat: Floats
    lon: Floats
    accuracy_m: Floats | None
    speed_mps: Floats | None

    def __init__(
        self,
        *,
        device: ArrayLike,
        t_ms: ArrayLike,
        lat: ArrayLike,
        lon: ArrayLike,
        accuracy_m: ArrayLike | None = None,
        speed_mps: ArrayLike | None = None,
    ) -> None:
        columns: dict[str, Ints | Floats | None] = {
            "device": np.ascontiguousarray(device, dtype=np.int64),
            "t_ms": np.ascontiguousarray(t_ms, dtype=np.int64),
            "lat": np.ascontiguousarray(lat, dtype=np.float64),
            "lon": np.ascontiguousarray(lon, dtype=np.float64),
            "accuracy_m": None if accuracy_m is None else _reported(accuracy_m, np.greater),
            "speed_mps": None if speed_mps is None else _reported(speed_mps, np.greater_equal),
        }
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1:
            raise FixError(f"the columns of fixes have unequal lengths: {lengths}")
        for name, column in columns.items():
            object.__setattr__(self, name, column)
        bad = np.flatnonzero(~valid_positions(self.lat, self.lon))
        if len(bad):
            row = int(bad[0])
            raise FixError(
                f"fix {row}: latitude {self.lat[row]}, longitude {self.lon[row]} is not a valid position"
                f" ({len(bad)} such fixes); leave them out first, see valid_positions()"
            )
        object.__setattr__(self, "lon", np.where(self.lon == 180.0, -180.0, self.lon))

    def __len__(self) -> int:
        return len(self.t_ms)


def _reported(column: ArrayLike, is_above: np.ufunc) -> Floats:
    """A column in which what is no measurement, by its sign, is NaN."""
    values = np.ascontiguousarray(column, dtype=np.float64)
    given = is_above(values, 0.0) | np.isnan(values)
    return values if given.all() else np.where(given, values, np.nan)


def valid_positions(lat: Floats, lon: Floats) -> Bools:
    """True where latitude is within ±90 and longitude within ±180, both finite."""
    # NaN compares false, so it is refused too.
    return (np.abs(lat) <= 90.0) & (np.abs(lon) <= 180.0)
