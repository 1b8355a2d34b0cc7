"""What is withdrawn because nobody knew is said anew when it is known, at a cost that does not grow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.geofence.units import DAY_MS
from cloud_jobs.verdicts import job as unproven
from cloud_jobs.verdicts.config import VerdictSettings
from cloud_jobs.verdicts.lookups import OpenedTable
from geo.spatial import TrackSettings
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
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


def test_records_that_come_one_by_one_are_one_revision_and_need_no_event(centre: VerdictCentre) -> None:
    (name,) = withdrawn_at_the_bound(centre)
    # it never came near: nothing happened, so no event says that all is there
    away = [fix._replace(longitude=-0.01) for fix in drive()]
    for fix in (away[2], away[1]):
        centre.ingest([fix])
        centre.compute_events()
        assert not centre.decide()
        assert said(centre)[name] == ("withdrawn", "not_received", 0)
    centre.ingest(away[:1])
    assert not centre.decide(), "events are not computed with it"
    centre.compute_events()
    assert centre.decide().withdrawn == 1
    assert said(centre)[name] == ("withdrawn", "did_not_occur", 1)


@pytest.mark.parametrize("is_noted", [True, False])
def test_of_many_a_few_are_looked_at_in_each_run_and_in_the_end_all(
    centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch, *, is_noted: bool
) -> None:
    names = withdrawn_at_the_bound(centre, *"abcde")
    if not is_noted:
        centre.open_file.unlink()
    monkeypatch.setattr(unproven, "AT_ONCE", 2)
    for device in "abcde":
        centre.ingest([fix._replace(longitude=-0.01) for fix in drive(device)])
    centre.compute_events()
    runs = [centre.decide().withdrawn for _ in range(4)]
    assert runs == [2, 2, 1, 0]
    assert {said(centre)[name] for name in names} == {("withdrawn", "did_not_occur", 1)}


def test_for_records_of_others_no_row_of_it_is_read(centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch) -> None:
    withdrawn_at_the_bound(centre, *"abc")
    asked = list[set[str]]()
    of_devices = OpenedTable.of_devices

    def of(table: OpenedTable, days: Any, devices: Any) -> Any:
        asked.append({one.device for one in devices})
        return of_devices(table, days, devices)

    monkeypatch.setattr(OpenedTable, "of_devices", of)
    for device in "xyz":
        centre.ingest([fix._replace(longitude=-0.01) for fix in drive(device)])
        centre.compute_events()
        assert not centre.decide()
    assert asked == []


def test_what_happened_too_long_ago_is_not_waited_for_any_more(centre: VerdictCentre) -> None:
    (name,) = withdrawn_at_the_bound(centre)
    centre.now += unproven.KEPT + timedelta(days=1)
    assert not centre.decide()
    centre.ingest([fix._replace(longitude=-0.01) for fix in drive()])
    centre.compute_events()
    assert not centre.decide()
    assert said(centre)[name] == ("withdrawn", "not_received", 0)


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


def test_an_event_that_moves_far_away_stands_in_no_place_any_more_also_around_midnight(tmp_path: Path) -> None:
    by = rules(TrackSettings(max_gap_s=7200.0), dwell_s=None)
    places = {1: (-10, -0.003), 2: (20, -0.0001), 3: (30, 0.0086), 4: (31, 0.009)}
    fixes = {
        seq: GeofenceFix("d", seq, 20_001 * DAY_MS + minute * 60_000, 0.005, longitude)
        for seq, (minute, longitude) in places.items()
    }
    region = GeofenceCentre(by)
    row = next(one for one in region.take([fixes[1], fixes[4]]) if one["kind"] == "enter")
    centre = VerdictCentre(tmp_path / "lake", by)
    centre.collect(alert_of(row))
    centre.lose(2, 2)
    for arrivals, count in (((1, 3, 4), 1), ((2,), 0)):
        centre.ingest([fixes[seq] for seq in arrivals])
        centre.compute_events()
        centre.decide()
        assert len(centre.in_force()[row["id"]]["corrective_ids"]) == count


def test_a_clock_that_is_set_back_makes_no_alert_wait_longer(centre: VerdictCentre) -> None:
    centre.now += 30 * HOUR
    centre.collect(alert_of(without_the_second()))
    assert centre.decide().provisional == 1
    centre.now -= 30 * HOUR
    assert centre.decide().oldest_provisional_s <= 1
    centre.now += timedelta(seconds=300)
    assert centre.decide().oldest_provisional_s in range(300, 304)
    centre.now += timedelta(seconds=300)
    assert centre.decide().withdrawn == 1


def test_an_alert_that_came_by_a_clock_ahead_waits_from_the_first_run_on(centre: VerdictCentre) -> None:
    centre.now += 30 * HOUR
    centre.collect(alert_of(without_the_second()))
    centre.now -= 30 * HOUR
    assert centre.decide().oldest_provisional_s == 0
    centre.now += timedelta(seconds=601)
    assert centre.decide().withdrawn == 1


def test_how_long_an_alert_waited_is_noted_while_nothing_else_happens(centre: VerdictCentre) -> None:
    centre.collect(alert_of(without_the_second()))
    for _ in range(5):
        centre.decide()
        centre.now += timedelta(seconds=100)
    centre.now -= 10 * HOUR
    assert centre.decide().oldest_provisional_s >= 400


def test_a_note_that_cannot_be_written_ends_no_run(centre: VerdictCentre, capsys: pytest.CaptureFixture[str]) -> None:
    centre.open_file.parent.parent.mkdir(parents=True, exist_ok=True)
    # a file where the folder would be, as little to be written to as a full disk
    centre.open_file.parent.write_bytes(b"")
    centre.collect(*map(alert_of, seen(*drive())))
    run = centre.decide()
    assert (run.provisional, run.unnoted) == (3, 1)
    assert "what waits cannot be noted" in "".join(capsys.readouterr())
    centre.ingest(drive())
    centre.compute_events()
    assert (centre.decide().confirmed, centre.decide().provisional) == (3, 0)
