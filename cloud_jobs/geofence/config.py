"""The settings of the geofence job."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from geo.spatial import PublishedEventSettings


class GeofenceSettings(PublishedEventSettings):
    """When an event counts, how far around a day it may be decided, and where it is published.

    Changed hysteresis holds for the days that new records touch; the others stay as they were published.
    """

    reach_h: float = Field(
        default=12.0, ge=1, le=24, description="fixes this far before and after a UTC day have a say in its events"
    )
    topic: str = Field(
        default="persistent://{tenant}/events/geofence",
        description="where events are published; `{tenant}`: each tenant's to its own",
    )
    interval_s: float = Field(default=5.0, ge=0.1, le=3600, description="the pause between two runs of --follow")
    reference_interval_s: float = Field(
        default=60.0, ge=1, le=86_400, description="how often --follow takes new fences from their topic"
    )

    @model_validator(mode="after")
    def _decided_within_reach(self) -> Self:
        longest = max(self.dwell_s or 0.0, self.min_stay_s)
        if longest > self.reach_h * 3600:
            raise ValueError(f"dwell_s and min_stay_s cannot exceed reach_h ({self.reach_h} h)")
        return self
