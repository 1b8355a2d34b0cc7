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

from deploy.canary.hops import Hop, ProbeItem
from waybill.settings import Settings

__all__ = ["QUARTER_MS", "CanaryFix", "CanaryScript", "ScriptSettings"]

QUARTER_MS: Final = 900_000
POSITION: Final = "position"
CANARY: Final = "canary"


class ScriptSettings(Settings):
    """Where a region's canary drives, how fast, and how often.

    The fence is a square of `fence_m` around the place. The drive begins and ends `margin_m` from it. A whole number of
    periods makes a quarter of an hour, in which usage is metered, and each probe lies in one of them.
    """

    latitude: Annotated[float, Field(ge=-80, le=80)]
    longitude: Annotated[float, Field(ge=-179, le=179)]
    fence_m: float = Field(default=200.0, ge=100, le=2_000, description="length of each side of the fence")
    margin_m: float = Field(default=50.0, ge=50, le=1_000, description="driven before the fence, and after it")
    speed_mps: float = Field(default=25.0, ge=1, le=50)
    fix_interval_s: float = Field(default=1.0, ge=0.2, le=10, description="from one fix to the next")
    period_s: int = Field(default=20, ge=10, le=900, description="from the beginning of a probe to that of the next")


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
        if QUARTER_MS % (self.settings.period_s * 1000):
            raise ValueError("period_s: a whole number of periods has to make a quarter of an hour (900 s)")
        # The rest is for what follows from the last fix, before the next probe begins.
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
        return self.begins_ms(number) // QUARTER_MS

    def fixes(self, number: int) -> Iterator[CanaryFix]:
        """The fixes of a probe, with those at both ends."""
        reach_m, step_ms = self._reach_m, round(self.settings.fix_interval_s * 1000)
        for at in range(self._steps + 1):
            north_m = -reach_m + 2 * reach_m * at / self._steps
            # to and fro: a jump back to the beginning would be an impossible speed
            latitude = self._latitude(-north_m if number % 2 else north_m)
            # on the grid of the wire: what arrives is compared with it
            yield CanaryFix(at * step_ms, round(latitude, 7), round(self.settings.longitude, 7))

    def fence(self) -> list[list[float]]:
        """The ring of the fence, as GeoJSON has it: closed, counter-clockwise, longitude first."""
        # a square by geodesics: its sides are as long on the ground at any latitude
        half_m, place = self.settings.fence_m / 2, self.settings
        south, north = self._latitude(-half_m), self._latitude(half_m)
        half_lon = Geodesic.WGS84.Direct(place.latitude, place.longitude, 90.0, half_m)["lon2"] - place.longitude
        west, east = place.longitude - half_lon, place.longitude + half_lon
        return [[west, south], [east, south], [east, north], [west, north], [west, south]]

    def record_items(self, number: int) -> tuple[ProbeItem, ...]:
        """The records of a probe: its fixes, and one canary that names it, which is made with the first of them."""
        begins_ms = self.begins_ms(number)
        fixes = (ProbeItem(POSITION, begins_ms + fix.after_ms) for fix in self.fixes(number))
        return (*fixes, ProbeItem(CANARY, begins_ms))

    def event_items(self, number: int) -> tuple[ProbeItem, ProbeItem]:
        """The events of a probe: into the fence and out of it, each at its moment on the way."""
        begins_ms, driven_ms = self.begins_ms(number), self.driven_ms
        # the speed is the same all the way, so the share of the way is that of the time
        before = self.settings.margin_m / (2 * self._reach_m)
        enter_ms, exit_ms = round(before * driven_ms), round((1 - before) * driven_ms)
        return ProbeItem("enter", begins_ms + enter_ms), ProbeItem("exit", begins_ms + exit_ms)

    def items(self, number: int) -> dict[Hop, tuple[ProbeItem, ...]]:
        """What is to show of a probe at each hop. What it used and what is owed for it is known when it has ended."""
        records, events = self.record_items(number), self.event_items(number)
        ends_ms = self.begins_ms(number) + self.driven_ms
        rest = {Hop.USAGE: (ProbeItem("usage", ends_ms),), Hop.RATED: (ProbeItem("rated", ends_ms),)}
        return {hop: events if hop in {Hop.ALERT, Hop.EVENT} else records for hop in Hop} | rest

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
