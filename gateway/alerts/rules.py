"""What counts in a region: the fences and gates that were published, and when an event is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from geo.spatial import Fence, FenceSet, GateSet, PublishedEventSettings, TrackSettings
from geo.spatial.geojson import fence_of_text
from geo.spatial.ragged import Bools


@dataclass(frozen=True)
class AlertRules:
    """Everything that decides what an event is, apart from the fixes: the same as at the centre, or they disagree."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: PublishedEventSettings

    @classmethod
    def of(cls, features: Iterable[str], tracks: TrackSettings, events: PublishedEventSettings) -> AlertRules:
        """With the fences and gates of published features, each a text that is one GeoJSON feature.

        They are taken one by one, so that not all texts need to be held. Raises FenceError for one that cannot be used:
        of each version give the latest publication that can be.
        """
        fences, gates = [], []
        for feature in features:
            made = fence_of_text(feature)
            if isinstance(made, Fence):
                fences.append(made)
            else:
                gates.append(made)
        return cls(FenceSet(fences), GateSet(gates), tracks.as_reported(), events)

    @cached_property
    def has_limit(self) -> Bools:
        """Of each name of a fence, whether one of its versions has a speed limit."""
        has_limit = np.zeros(len(self.fences.names), dtype=np.bool_)
        has_limit[self.fences.name_of_fence[np.isfinite(self.fences.speed_limit_mps)]] = True
        return has_limit
