"""The settings of the verdicts."""

from __future__ import annotations

from pydantic import Field

from settings import Settings


class VerdictSettings(Settings):
    """From where alerts come, how long one may be provisional, and where verdicts are published."""

    alerts: tuple[str, ...] = Field(
        default=("persistent://{tenant}/alerts-eu/alerts", "persistent://{tenant}/alerts-us/alerts"),
        min_length=1,
        description="the topic of alerts of each region; `{tenant}` stands for each of `tenants`",
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
        "is withdrawn as `not_received`, or as `not_computed` if only the record is there",
    )
    settle_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="an alert is withdrawn as `did_not_occur` by events that are computed with what the ingest "
        "committed so long after the region saw it: by then later fixes are there, by which the region knew",
    )
    interval_s: float = Field(default=2.0, ge=0.1, le=3600, description="the pause between two runs of --follow")
