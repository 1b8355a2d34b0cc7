"""The settings of the verdicts."""

from __future__ import annotations

from pydantic import Field

from waybill.settings import Settings


class VerdictSettings(Settings):
    """From where alerts come, how long one may be provisional, and where verdicts are published."""

    alerts: tuple[str, ...] = Field(
        default=(),
        description="the topic of alerts of each region; `{tenant}` stands for each of `tenants`; without it those of "
        "the regions whose batches `ingest.topics` has",
    )
    subscription: str = "verdicts"
    topic: str = Field(
        default="persistent://{tenant}/events/verdicts",
        description="where verdicts are published; `{tenant}`: each tenant's to its own",
    )
    max_provisional_s: float = Field(
        default=3600.0,
        ge=1,
        le=31 * 86_400,
        description="from when the centre has an alert: if events are not computed with its record by then, it "
        "is withdrawn as `not_received`, as `not_computed` if only the record is there, or as `incomplete` if records "
        "are missing by which the region may have seen it",
    )
    interval_s: float = Field(default=2.0, ge=0.1, le=3600, description="the pause between two runs of --follow")
