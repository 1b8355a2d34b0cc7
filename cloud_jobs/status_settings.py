"""The settings of the status of the centre."""

from __future__ import annotations

from pydantic import Field

from waybill.settings import Settings


class CentreLimits(Settings):
    """From when on the centre is not healthy any more."""

    max_lag_s: float = Field(
        default=300,
        gt=0,
        le=86_400 * 30,
        description="longest time that a message may wait for the ingest, or a topic be left out",
    )
    max_behind_s: float = Field(
        default=3600, gt=0, le=86_400 * 30, description="longest time that a commit or a publication may wait for a job"
    )
    max_unmaintained_s: float = Field(
        default=86_400, gt=0, le=86_400 * 30, description="longest time since the last run of the maintenance ended"
    )
