"""The settings of the usage job."""

from __future__ import annotations

from pydantic import Field

from waybill.settings import Settings


class UsageSettings(Settings):
    """How often usage is brought up to date."""

    interval_s: float = Field(default=60.0, ge=0.1, le=3600, description="the pause between two runs of --follow")
