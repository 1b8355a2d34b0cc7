"""The settings of the maintenance of the lake."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from waybill.settings import Settings

RETENTIONS: Final = ("erase_positions_after_days", "erase_events_after_days", "erase_quarantine_after_days")
"""The settings that say how long personal data are kept."""


class MaintenanceSettings(Settings):
    """How files are merged, and how long what nobody needs any more stays."""

    file_mb: int = Field(default=128, ge=1, le=4096, description="about how big a file of a day that is past becomes")
    memory_mb: int = Field(default=1024, ge=64, le=65_536, description="about what a merge may hold in memory")
    hot_days: int = Field(
        default=2, ge=1, le=400, description="so many days up to today are merged by size only, older ones sorted whole"
    )
    orphan_age_s: float = Field(
        default=4 * MAX_ATTEMPT_S,
        ge=2 * MAX_ATTEMPT_S,
        le=86_400 * 30,
        description="age at which a file that no commit names is deleted",
    )
    removed_files_kept_hours: int = Field(
        default=24, ge=0, le=24 * 400, description="how long a file that was replaced stays for those who still read it"
    )
    history_days: int = Field(
        default=7,
        ge=1,
        le=400,
        description="how long commits in the logs, and coverage that was replaced, stay",
    )
    log_interval_s: float = Field(
        default=3600.0,
        ge=0,
        le=86_400,
        description="how often commits and coverage older than that are deleted: by the ingest's many, a long list",
    )
    erase_positions_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="positions of all devices older than this are erased; none: 400, or `ingest.max_age_days` if more",
    )
    erase_events_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="events, encounters, alerts and verdicts older than this are erased; none: as positions",
    )
    erase_quarantine_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="what was quarantined longer ago is erased; none: 400, or `ingest.max_age_days` if more",
    )
    erase_after_jobs: bool = Field(
        default=True, description="positions are erased only when usage, and what else was ever derived, covers them"
    )

    @model_validator(mode="after")
    def _removed_before_forgotten(self) -> Self:
        if self.removed_files_kept_hours > self.history_days * 24:
            raise ValueError("removed_files_kept_hours cannot exceed history_days: the log says what was removed")
        return self
