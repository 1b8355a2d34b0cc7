"""A run looks at the alerts of which more is known, and not at all that wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import Lake
from cloud_jobs.verdicts.subscription import OpenedTable
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The devices whose rows a run reads."""
    found, of_devices = set[str](), OpenedTable.of_devices

    def noted(self: OpenedTable, days: Any, devices: Collection[TenantDevice]) -> Any:
        found.update(one.device for one in devices)
        return of_devices(self, days, devices)

    monkeypatch.setattr(OpenedTable, "of_devices", noted)
    return found


def of(device: str, fixes: Sequence[GeofenceFix] = THROUGH) -> list[GeofenceFix]:
    return [fix._replace(device=device) for fix in fixes]


def seen(*fixes: GeofenceFix) -> list[dict[str, Any]]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(fixes)
    return region.table


def come(centre: VerdictCentre, *fixes: GeofenceFix) -> None:
    centre.ingest(fixes)
    centre.compute_events()


@pytest.mark.parametrize("is_swept", [False, True])
def test_what_waits_is_looked_at_once_more_is_known_of_it(
    centre: VerdictCentre, looked_at: set[str], monkeypatch: pytest.MonkeyPatch, *, is_swept: bool
) -> None:
    if is_swept:
        monkeypatch.setattr(Lake, "devices_changed", lambda *_: None)
    enter, exits, _ = seen(*of("d"))
    centre.collect(alert_of(enter), alert_of(exits))
    come(centre, *of("e"))
    assert centre.decide().provisional == 2
    for at in range(3):
        looked_at.clear()
        come(centre, *of(f"x{at}"))
        run = centre.decide()
        assert (run.late, run.provisional) == (3, 2)
        assert looked_at == {f"x{at}"}
    looked_at.clear()
    come(centre, *of("d"))
    run = centre.decide()
    assert (run.confirmed, run.provisional) == (2, 0)


def test_what_did_not_occur_is_withdrawn_as_soon_as_its_records_are_there(
    centre: VerdictCentre, looked_at: set[str]
) -> None:
    first, second, third, *rest = of("d")
    (wrong,) = [row for row in seen(first, third) if row["kind"] == "enter"]
    centre.collect(alert_of(wrong, seen_until=((7, third.seq),)))
    come(centre, *of("e"))
    assert centre.decide().provisional == 1
    come(centre, third, *rest)
    looked_at.clear()
    run = centre.decide()
    assert (run.withdrawn, run.provisional) == (0, 1), "a record is missing"
    come(centre, first, second)
    run = centre.decide()
    assert (run.withdrawn, run.provisional) == (1, 0)
    assert centre.in_force()[wrong["id"]]["reason"] == "did_not_occur"
