"""Fixes as columns, and the settings of tracks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from geo.spatial.errors import FixError
from geo.spatial.ragged import Bools, Floats, Ints
from waybill.settings import Settings

# Track settings; importing them does not load PROJ.

CLEANING_REACH_MS: Final = 720_000
"""How far a cleaned place depends on others, apart from gaps: see `geo.spatial.standstill`."""
CHARGE_BEFORE_MS, CHARGE_AHEAD_MS = 240_000, 120_000
"""How long before and after a crossing places decide whether it counts: see `geo.spatial.charges`."""


TrackRule: TypeAlias = Literal["standstill", "every_fix"]


class TrackSettings(Settings):
    """How a track is made. `None` switches a rule off; `TrackSettings.every_fix()` switches all off but the gap.

    `rule`: `standstill` removes the receivers' noise from places, `every_fix` takes each place as reported.
    `accuracy_not_said_m`: the accuracy assumed for a fix that states none. `buffer_m`: with `standstill`, an entry or
    crossing counts only if the vehicle then gets this far from the border, or as far as its places are accurate, or
    stays. Two devices that met part only twice this beyond the distance.
    """

    rule: TrackRule = "standstill"
    accuracy_not_said_m: Annotated[float, Field(gt=0, le=100)] = 20.0
    buffer_m: Annotated[float, Field(ge=0, le=1_000)] = 10.0
    max_gap_s: Annotated[float, Field(gt=0)] = 300.0
    max_accuracy_m: Annotated[float, Field(gt=0)] | None = 100.0
    max_speed_mps: Annotated[float, Field(gt=0)] | None = 70.0
    null_island_deg: Annotated[float, Field(gt=0)] | None = 1e-6

    @property
    def margin_ms(self) -> int:
        """How long before a segment's end fixes can affect it.

        A fix's verdict reaches over two gaps. A cleaned place adds its reach from the segment's first fix, and the gap
        that ends a window of standing.
        """
        return math.ceil(2_000 * self.max_gap_s) + self._cleaning_ms(2, CHARGE_BEFORE_MS)

    @property
    def reach_ahead_ms(self) -> int:
        """How long after a fix others affect the segment that it ends: from then on nothing changes.

        Its verdict looks at the next fix, within the gap; a cleaned place looks further.
        """
        none = self.max_speed_mps is None and self.rule == "every_fix"
        verdict = 0 if none else math.ceil(1_000 * self.max_gap_s)
        return verdict + self._cleaning_ms(1, CHARGE_AHEAD_MS)

    def apart_m(self, within_m: float) -> float:
        """The distance at which two devices that met have parted, which ends the encounter: both places are noisy."""
        return within_m + (2.0 * self.buffer_m if self.rule == "standstill" else 0.0)

    def _cleaning_ms(self, gaps: int, charge_ms: int) -> int:
        if self.rule == "every_fix":
            return 0
        return CLEANING_REACH_MS + charge_ms + math.ceil(1_000 * gaps * self.max_gap_s)

    @classmethod
    def every_fix(cls, max_gap_s: float = 300.0) -> TrackSettings:
        """Keep every fix, whatever its speed, accuracy or place."""
        return cls(rule="every_fix", max_gap_s=max_gap_s, max_accuracy_m=None, max_speed_mps=None, null_island_deg=None)

    def as_reported(self) -> TrackSettings:
        """The same with each place as reported: for what is said at once and cannot wait for later fixes."""
        return self.model_copy(update={"rule": "every_fix"})


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Fixes:
    """Positions of any number of devices, in any order, one row per fix.

    `device` int64 (the caller's number of a device), `t_ms` int64 (device time, Unix epoch), `lat` and `lon` float64
    degrees (180 becomes -180), `accuracy_m` and `speed_mps` float64 with NaN for *not reported*, or None. An accuracy
    of 0 or less and a negative speed, with which platforms mark an invalid one, become NaN.

    Raises `FixError` for columns of unequal length, latitudes outside ±90 and positions that are not finite.
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
            place = f"latitude {self.lat[row]}, longitude {self.lon[row]}"
            raise FixError(f"{place} is not a valid position; correct or remove {len(bad)} such fixes", row=row)
        object.__setattr__(self, "lon", np.where(self.lon == 180.0, -180.0, self.lon))

    def __len__(self) -> int:
        return len(self.t_ms)


def _reported(column: ArrayLike, is_above: np.ufunc) -> Floats:
    """A column with NaN for values whose sign marks them as no measurement."""
    values = np.ascontiguousarray(column, dtype=np.float64)
    given = is_above(values, 0.0) | np.isnan(values)
    return values if given.all() else np.where(given, values, np.nan)


def valid_positions(lat: Floats, lon: Floats) -> Bools:
    """True where latitude is within ±90 and longitude within ±180, both finite."""
    # NaN compares false, so it is refused too.
    return (np.abs(lat) <= 90.0) & (np.abs(lon) <= 180.0)
