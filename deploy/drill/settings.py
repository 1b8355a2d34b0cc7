"""What a drill is run with."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from deploy.local import LakePlace
from waybill.settings import Settings


class Drill(StrEnum):
    """What is lost, or taken back."""

    HQ_LOSS = "hq-loss"
    REGION_LOSS = "region-loss"
    LINK_CUT = "link-cut"
    FAILBACK = "failback"


class Moment(StrEnum):
    """When the cluster is killed, seen from the micro-batch of the ingest."""

    ANY = "any"
    PLANNED = "planned"
    WRITTEN = "written"
    DONE = "done"


class FleetSettings(Settings):
    """How much one region sends."""

    records_per_s: float = Field(default=400, gt=0, le=50_000)
    devices: int = Field(default=8, ge=1, le=1000)
    records_per_batch: int = Field(default=20, ge=1, le=1000)
    unanswered_batches: int = Field(default=64, ge=1, description="more are not sent: the devices store and wait")
    silence_s: float = Field(default=10.0, gt=0, description="without an answer for so long, the next region is tried")


class DrillSettings(Settings):
    """One drill. The snapshot period is the brokers' own, so it holds for a whole stack."""

    fleet: FleetSettings = Field(default_factory=FleetSettings)
    trigger_s: float = Field(1.0, ge=0, le=60, description="length of a micro-batch")
    snapshot_period_s: float = Field(1.0, gt=0, le=60, description="time between two snapshots of the cursors")
    moment: Moment = Moment.ANY
    steady_s: float = Field(5.0, gt=0, le=600, description="steady traffic before the loss")
    after_s: float = Field(5.0, ge=0, le=600, description="traffic after the first record was through")
    cut_s: float = Field(8.0, gt=0, le=600, description="how long a cut link stays cut")
    timeout_s: float = Field(300.0, gt=0, description="bound of every wait")
    lake: LakePlace = Field(LakePlace.FOLDER, description="`s3`: the tables are on an S3 server of the stack")
    alerts: bool = Field(True, description="each region raises alerts, and each is held against its verdict")
    heap_mb: int = Field(320, ge=192, description="heap of each of the four clusters")
