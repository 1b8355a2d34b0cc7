"""The drive of a probe: along a meridian through a square fence and out again, so that each answer is known beforehand.

A meridian is a geodesic, so what is driven inside the fence is the length of the meridian between its two edges.
Odd probes drive back: the vehicle is always where the one before left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from geographiclib.geodesic import Geodesic
from pydantic import Field

from settings import Settings

__all__ = ["CanaryFix", "CanaryScript", "ScriptSettings"]

_QUARTER_MS: Final = 900_000


class ScriptSettings(Settings):
    """Where a region's canary drives, how fast, and how often.

    The fence is a square of `fence_m` around the place. The drive begins and ends `margin_m` from it. A whole number of
    periods makes a quarter of an hour, in which usage is metered, and each probe lies in one of them.
    """

    latitude: Annotated[float, Field(ge=-80, le=80)]
    longitude: Annotated[float, Field(ge=-179, le=179)]
    fence_m: float = Field(default=200.0, ge=100, le=2_000)
    margin_m: float = Field(default=100.0, ge=50, le=1_000)
    speed_mps: float = Field(default=20.0, ge=1, le=50)
    fix_interval_s: float = Field(default=1.0, ge=0.2, le=10)
    period_s: int = Field(default=30, ge=10, le=900)


class CanaryFix(NamedTuple):
    """One fix of a probe: milliseconds after its beginning, and where."""

    after_ms: int
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class CanaryScript:
    """What each probe does, and what follows from it."""

    settings: ScriptSettings

    def __post_init__(self) -> None:
        if _QUARTER_MS % (self.settings.period_s * 1000):
            raise ValueError("period_s: a whole number of periods has to make a quarter of an hour (900 s)")
        if self.driven_ms > self.settings.period_s * 1000 - 1000:
            raise ValueError("period_s: the drive takes longer; drive faster, or less often")

    @property
    def driven_ms(self) -> int:
        """How long a drive takes."""
        return self._steps * round(self.settings.fix_interval_s * 1000)

    @property
    def inside_mm(self) -> int:
        """What each probe drives inside the fence."""
        south, north = self._latitude(-self.settings.fence_m / 2), self._latitude(self.settings.fence_m / 2)
        return round(1000 * _meridian_m(self.settings.longitude, south, north))

    def begins_ms(self, number: int) -> int:
        """When a probe begins, since 1970: probes are numbered by the clock."""
        return number * self.settings.period_s * 1000

    def number_at(self, t_ms: int) -> int:
        """Which probe's time a moment lies in."""
        return t_ms // (self.settings.period_s * 1000)

    def quarter_of(self, number: int) -> int:
        """The quarter of an hour that a probe lies in, counted since 1970."""
        return self.begins_ms(number) // _QUARTER_MS

    def fixes(self, number: int) -> Iterator[CanaryFix]:
        """The fixes of a probe, with those at both ends."""
        reach_m, step_ms = self._reach_m, round(self.settings.fix_interval_s * 1000)
        for at in range(self._steps + 1):
            north_m = -reach_m + 2 * reach_m * at / self._steps
            # to and fro: a jump back to the beginning would be an impossible speed
            latitude = self._latitude(-north_m if number % 2 else north_m)
            yield CanaryFix(at * step_ms, round(latitude, 7), self.settings.longitude)

    def fence(self) -> list[list[float]]:
        """The ring of the fence, as GeoJSON has it: closed, counter-clockwise, longitude first."""
        half_m, place = self.settings.fence_m / 2, self.settings
        south, north = self._latitude(-half_m), self._latitude(half_m)
        half_lon = Geodesic.WGS84.Direct(place.latitude, place.longitude, 90.0, half_m)["lon2"] - place.longitude
        west, east = place.longitude - half_lon, place.longitude + half_lon
        return [[west, south], [east, south], [east, north], [west, north], [west, south]]

    @property
    def _reach_m(self) -> float:
        return self.settings.fence_m / 2 + self.settings.margin_m

    @property
    def _steps(self) -> int:
        return max(2, round(2 * self._reach_m / (self.settings.speed_mps * self.settings.fix_interval_s)))

    def _latitude(self, north_m: float) -> float:
        return float(Geodesic.WGS84.Direct(self.settings.latitude, self.settings.longitude, 0.0, north_m)["lat2"])


def _meridian_m(longitude: float, south: float, north: float) -> float:
    return float(Geodesic.WGS84.Inverse(south, longitude, north, longitude)["s12"])
