"""What becomes of an alert: confirmed, corrected, withdrawn; and of an event that no region announced: late."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.job_settings import VerdictSettings
from cloud_jobs.verdicts.run import verdict_message
from cloud_jobs.verdicts.subscription import OpenedTable
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import NOON, THROUGH
from tests.cloud_jobs.verdicts.centre import TOPIC, VerdictCentre, alert_of


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None))


def seen(*fixes: GeofenceFix) -> list[dict[str, Any]]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(fixes)
    return region.table


def said(centre: VerdictCentre) -> dict[str, tuple[str, str | None, int]]:
    """By the id: verdict, reason, revision."""
    return {name: (row["verdict"], row["reason"], row["revision"]) for name, row in centre.in_force().items()}


def test_what_the_region_saw_is_confirmed_and_what_it_missed_is_late(centre: VerdictCentre) -> None:
    enter, exits, gate = seen(*THROUGH)
    assert centre.collect(alert_of(enter), alert_of(exits)).added == 2
    centre.ingest(THROUGH)
    assert centre.decide().provisional == 2, "events are not computed yet"
    centre.compute_events()
    run = centre.decide()
    assert (run.confirmed, run.late, run.provisional) == (2, 1, 0)
    assert said(centre)[gate["id"]] == ("late", None, 0)


def test_an_alert_with_another_time_or_value_is_corrected_with_what_is_so(centre: VerdictCentre) -> None:
    enter, exits, _ = seen(*THROUGH)
    centre.collect(alert_of(exits, value=1.5))
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    row = centre.in_force()[exits["id"]]
    assert (row["verdict"], row["reason"], row["value"]) == ("corrected", "incorrect_data", exits["value"])
    assert enter["id"] in centre.in_force()


def test_an_alert_of_what_did_not_happen_is_withdrawn_and_says_what_did(centre: VerdictCentre) -> None:
    enter, *_ = seen(THROUGH[0], THROUGH[2])
    centre.collect(*(alert_of(row) for row in seen(THROUGH[0], THROUGH[2]) if row["kind"] == "enter"))
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    happened = next(row for row in centre.geofence.table if row["kind"] == "enter")
    row = centre.in_force()[enter["id"]]
    assert (row["verdict"], row["reason"], row["corrective_ids"]) == ("withdrawn", "did_not_occur", [happened["id"]])
    message = verdict_message(row)
    assert "event" not in message
    said = message["alerted"]
    assert (said["kind"], said["place"], said["epoch"], said["seq"]) == tuple(
        enter[name] for name in ("kind", "place", "epoch", "seq")
    )


def test_an_alert_whose_record_never_comes_is_withdrawn_at_the_bound_and_confirmed_if_it_comes_after_all(
    tmp_path: Path,
) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=5.0))
    enter, *_ = seen(*THROUGH)
    centre.collect(alert_of(enter))
    centre.compute_events()
    for _ in range(4):
        run = centre.decide()
        assert (run.provisional, bool(run)) == (1, False)
    assert run.oldest_provisional_s == 4
    assert centre.decide().withdrawn == 1
    assert said(centre)[enter["id"]] == ("withdrawn", "not_received", 0)
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    assert said(centre)[enter["id"]] == ("confirmed", None, 1)


def test_a_late_fix_that_takes_an_event_back_withdraws_what_was_confirmed(centre: VerdictCentre) -> None:
    enter, *_ = seen(THROUGH[0], THROUGH[2])
    centre.collect(alert_of(enter))
    centre.ingest([THROUGH[0], THROUGH[2]])
    centre.compute_events()
    centre.decide()
    assert said(centre)[enter["id"]] == ("confirmed", None, 0)
    centre.ingest([THROUGH[1]])
    centre.compute_events()
    run = centre.decide()
    assert said(centre)[enter["id"]] == ("withdrawn", "did_not_occur", 1)
    assert run.late


def test_repeated_alerts_are_there_once_and_what_is_none_is_counted(centre: VerdictCentre) -> None:
    enter, *_ = seen(*THROUGH)
    alert = alert_of(enter)
    found = centre.collect(alert, alert, alert_of(enter, tenant="kaze"), alert_of(enter, t_ms=NOON + 9 * 10**10))
    assert (found.added, found.repeated, dict(found.refused)) == (1, 1, {"wrong-tenant": 1, "far-off": 1})
    assert TOPIC in found.last_refused
    assert (centre.collect(alert).repeated, centre.lake.open("alerts").count()) == (1, 1)


def drained(*, seen_until: int = 3) -> tuple[Any, list[GeofenceFix]]:
    """An alert that names the second fix and was seen by a later one, and what the centre has, which says otherwise."""
    enter, *_ = seen(*THROUGH)
    return alert_of(enter, seen_until=((7, seen_until),)), [fix._replace(longitude=-0.01) for fix in THROUGH]


def test_an_alert_is_not_withdrawn_before_the_records_are_there_by_which_the_region_saw_it(tmp_path: Path) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None))
    alert, there = drained()
    centre.collect(alert)
    # a backlog drains for an hour, with what the alert names in it, and time decides nothing
    for at, fixes in enumerate((there[1:2], there[2:3], there[3:4]), 1):
        centre.now += timedelta(minutes=20 * (at > 1))
        centre.ingest(fixes)
        centre.compute_events()
        run = centre.decide()
        assert (run.provisional, bool(run)) == (1, False)
        assert run.oldest_provisional_s >= 1200 * (at - 1)
    centre.ingest(there[:1])
    centre.compute_events()
    assert centre.decide().withdrawn == 1
    assert said(centre)[alert.id] == ("withdrawn", "did_not_occur", 0)


@pytest.mark.parametrize("seen_until", [((7, 3),), ((7, 2), (8, 1)), ()])
def test_at_the_bound_it_is_said_that_records_are_missing_not_that_it_did_not_happen(
    tmp_path: Path, seen_until: tuple[tuple[int, int], ...]
) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=3.0))
    alert, there = drained()
    centre.collect(alert.model_copy(update={"seen_until": seen_until}))
    # of the other epoch nothing ever comes; an alert that does not say by what it was seen is not known to be whole
    centre.ingest(there[1:2] if seen_until == ((7, 3),) else there)
    centre.compute_events()
    assert [centre.decide().provisional for _ in range(2)] == [1, 1]
    assert centre.decide().withdrawn == 1
    assert said(centre)[alert.id] == ("withdrawn", "incomplete", 0)


def looked_up(centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Of which devices the next run reads rows, and how many new alerts it reads."""
    devices, rows = set[str](), [0]
    of_devices, since = OpenedTable.of_devices, OpenedTable.since

    def of(table: OpenedTable, days: Any, asked: Any) -> Any:
        devices.update(one.device for one in asked)
        return of_devices(table, days, asked)

    def read(table: OpenedTable, commit: int, until: int) -> Any:
        found = since(table, commit, until)
        rows[0] += found.num_rows if table.name == "alerts" else 0
        return found

    with monkeypatch.context() as patched:
        patched.setattr(OpenedTable, "of_devices", of)
        patched.setattr(OpenedTable, "since", read)
        centre.decide()
    return devices, rows[0]


def one_that_waits_and_many_that_do_not(centre: VerdictCentre) -> list[GeofenceFix]:
    waiting = [fix._replace(device="waits") for fix in THROUGH]
    centre.collect(alert_of(seen(*waiting)[0]))
    for name in "abc":
        fixes = [fix._replace(device=name) for fix in THROUGH]
        centre.collect(*map(alert_of, seen(*fixes)))
        centre.ingest(fixes)
        centre.compute_events()
        centre.decide()
    return waiting


@pytest.mark.parametrize("content", [None, b"PAR1 no more"])
def test_without_the_note_of_what_waits_all_later_ones_are_looked_at_once_and_said_as_before(
    centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    one_that_waits_and_many_that_do_not(centre)
    before = said(centre)
    centre.open_file.unlink() if content is None else centre.open_file.write_bytes(content)
    assert looked_up(centre, monkeypatch) == ({"waits", *"abc"}, 10)
    assert looked_up(centre, monkeypatch) == (set(), 0)
    assert said(centre) == before
