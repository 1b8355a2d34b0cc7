"""What is withdrawn because nobody knew is said anew when it is known, at a cost that does not grow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.job_settings import VerdictSettings
from tests.cloud_jobs.geofence.centre import GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of
from tests.cloud_jobs.verdicts.test_verdicts import said, seen

HOUR = timedelta(hours=1)


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=600.0))


def without_the_second(device: str = "d") -> dict[str, Any]:
    """An enter as a region saw it that missed a fix; the centre's has another id."""
    fixes = [fix._replace(device=device) for fix in THROUGH]
    return next(row for row in seen(fixes[0], fixes[2]) if row["kind"] == "enter")


def withdrawn_at_the_bound(centre: VerdictCentre, *devices: str) -> list[str]:
    """The ids of an alert of each, of which nothing came in time."""
    rows = [without_the_second(device) for device in devices or ("d",)]
    centre.collect(*map(alert_of, rows))
    centre.now += HOUR
    assert centre.decide().withdrawn == len(rows)
    return [row["id"] for row in rows]


def drive(device: str = "d") -> list[GeofenceFix]:
    return [fix._replace(device=device) for fix in THROUGH]


def test_records_that_come_after_the_bound_say_what_was_so_and_what_happened_instead(centre: VerdictCentre) -> None:
    (name,) = withdrawn_at_the_bound(centre)
    assert said(centre)[name] == ("withdrawn", "not_received", 0)
    centre.ingest(drive())
    centre.compute_events()
    run = centre.decide()
    assert (run.withdrawn, run.late) == (1, 3)
    assert said(centre)[name] == ("withdrawn", "did_not_occur", 1)
    happened = next(row for row in centre.geofence.table if row["kind"] == "enter")
    assert centre.in_force()[name]["corrective_ids"] == [happened["id"]]
    assert not centre.decide()


def test_what_stands_in_its_place_follows_the_events_and_their_alerts(centre: VerdictCentre) -> None:
    name, fixes = without_the_second()["id"], drive()
    centre.collect(alert_of(without_the_second()))
    # it is far away at first, and the rest is lost
    centre.ingest([fix._replace(longitude=-0.01) for fix in fixes[:1]])
    centre.lose(2, 4)
    centre.compute_events()
    centre.decide()
    assert said(centre)[name] == ("withdrawn", "not_received", 0)
    centre.ingest(fixes[1:])
    centre.compute_events()
    centre.decide()
    (instead,) = (row for row in centre.geofence.table if row["kind"] == "enter")
    assert said(centre)[name] == ("withdrawn", "did_not_occur", 1)
    assert centre.in_force()[name]["corrective_ids"] == [instead["id"]]
    # a region announced it after all: it has a verdict of its own
    centre.collect(alert_of(instead))
    centre.decide()
    assert centre.in_force()[name]["corrective_ids"] == []
