"""The bounds of what a region evaluates."""

from __future__ import annotations

from pydantic import Field

from waybill.settings import Settings


class EvaluationSettings(Settings):
    """How old and how early a fix or an event may be, and how much of devices is held."""

    max_age_s: float = Field(
        default=300.0,
        gt=0,
        le=3_153_600_000,
        description="an event that is older when it is seen is the centre's alone; raise it to replay old data",
    )
    max_ahead_s: float = Field(
        default=60.0, ge=0, le=86_400, description="a fix so far ahead of this clock is passed over"
    )
    max_devices: int = Field(
        default=200_000,
        ge=1,
        le=2_000_000,
        description="the device that was heard longest ago is forgotten for another",
    )
    max_fixes_held: int = Field(
        default=64, ge=8, le=1_000, description="of a device of which it is not settled on which side of a border it is"
    )
    keep_s: float = Field(
        default=5.0, ge=0, le=600, description="a fix that is older than the newest by less is still put in its place"
    )
