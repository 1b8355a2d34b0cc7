"""What counts in a region: the fences and gates that were published, and when an event is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from geo.spatial import FenceSet, GateSet, PublishedEventSettings, TrackSettings
from geo.spatial.ragged import Bools


@dataclass(frozen=True)
class AlertRules:
    """Everything that decides what an event is, apart from the fixes: the same as at the centre, or they disagree."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: PublishedEventSettings

    @cached_property
    def has_limit(self) -> Bools:
        """Of each name of a fence, whether one of its versions has a speed limit."""
        has_limit = np.zeros(len(self.fences.names), dtype=np.bool_)
        has_limit[self.fences.name_of_fence[np.isfinite(self.fences.speed_limit_mps)]] = True
        return has_limit
