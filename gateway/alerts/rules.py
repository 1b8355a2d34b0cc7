"""What counts in a region: the fences and gates that were published, and when an event is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from geo.spatial import FenceSet, GateSet, PublishedEventSettings, TrackSettings


@dataclass(frozen=True, slots=True)
class AlertRules:
    """Everything that decides what an event is, apart from the fixes: the same as at the centre, or they disagree."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: PublishedEventSettings

    @classmethod
    def of(cls, features: Iterable[str], tracks: TrackSettings, events: PublishedEventSettings) -> AlertRules:
        """With the fences and gates of published features, each a text that is one GeoJSON feature, in force or not yet.

        They are taken one by one, so that not all texts need to be held. Raises FenceError for one that cannot be used:
        of each version give the latest publication that can be.
        """
        raise NotImplementedError
