"""A centre as `cloud-jobs status` sees it: a real lake, and an admin address that says what a test wants."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cloud_jobs.job_settings import CentreLimits
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.sweeping import LastMaintenance, note_last_run
from cloud_jobs.reference.tables import note_taken
from cloud_jobs.status.centre_reader import LakeReader
from cloud_jobs.status.facts import CentreStatus, TopicLag, problems

NOTHING_WAITS = TopicLag("persistent://fleet/telemetry-eu/batches", "hq", 0)
LIMITS = CentreLimits()


def looked(lake: Lake, later_s: float = 0) -> CentreStatus:
    """The status, with nothing that waits in Pulsar; by a clock that is so much ahead."""
    reader = LakeReader(lake, now=lambda: datetime.now(UTC) + timedelta(seconds=later_s))
    return replace(reader.read(), lag=(NOTHING_WAITS,))


def wrong(lake: Lake, later_s: float = 0) -> tuple[str, ...]:
    return problems(looked(lake, later_s), LIMITS)


def after(status: CentreStatus, seconds: float) -> CentreStatus:
    """The same lake, looked at so much later by a clock that is right."""
    return replace(status, now=status.now + timedelta(seconds=seconds))


def note_runs(lake: Lake) -> None:
    """As if maintenance had run now, and a job had taken reference data."""
    note_maintenance(lake)
    note_taken(lake, datetime.now(UTC))


def note_maintenance(lake: Lake, *errors: str) -> None:
    note_last_run(lake, LastMaintenance(datetime.now(UTC), 1.0, errors))
