"""What a track is made of, as settings: of those who only say it, nobody waits for PROJ."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from settings import Settings


class TrackSettings(Settings):
    """What a track is made of. `None` switches a rule off; `TrackSettings.every_fix()` switches all off but the gap."""

    max_gap_s: Annotated[float, Field(gt=0)] = 300.0
    max_accuracy_m: Annotated[float, Field(gt=0)] | None = 100.0
    max_speed_mps: Annotated[float, Field(gt=0)] | None = 70.0
    null_island_deg: Annotated[float, Field(gt=0)] | None = 1e-6

    @property
    def margin_ms(self) -> int:
        """How far from a moment fixes can have a say in it: a fix's verdict reaches over two gaps."""
        return round(2_000 * self.max_gap_s)

    @property
    def reach_ahead_ms(self) -> int:
        """How long after a fix others have a say in the segment that it ends: from then on nothing changes any more.

        Only its verdict looks ahead, at the next fix, and at that only within the gap.
        """
        return 0 if self.max_speed_mps is None else math.ceil(1_000 * self.max_gap_s)

    @classmethod
    def every_fix(cls, max_gap_s: float = 300.0) -> TrackSettings:
        """Keep every fix, whatever its speed, accuracy or place."""
        return cls(max_gap_s=max_gap_s, max_accuracy_m=None, max_speed_mps=None, null_island_deg=None)
