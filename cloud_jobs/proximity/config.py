"""The settings of the proximity job."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from waybill.settings import Settings


class ProximitySettings(Settings):
    """What an encounter is, how the work is cut, and where encounters are published.

    One lake holds encounters of one distance: with another distance, give the job another lake.
    """

    distance_m: float = Field(default=50.0, gt=0, le=10_000, description="devices this close meet")
    cell_m: float = Field(default=5_000.0, ge=100, description="edge of the cells by which work is shared out")
    segments_per_task: int = Field(
        default=50_000, ge=100, description="a cell with more is cut into blocks of pairs of groups of devices"
    )
    crowd_devices: int = Field(
        default=100, ge=2, description="a device with more devices around it than this is in a crowd, and meets that"
    )
    topic: str = Field(
        default="persistent://{tenant}/events/encounters", description="where encounters are published, as events are"
    )
    interval_s: float = Field(default=10.0, ge=0.1, le=3600, description="the pause between two runs of --follow")

    @model_validator(mode="after")
    def _cells_hold_the_distance(self) -> Self:
        if self.cell_m < self.distance_m:
            raise ValueError(f"cell_m must be at least distance_m ({self.distance_m:g} m): a piece goes to each cell")
        return self
