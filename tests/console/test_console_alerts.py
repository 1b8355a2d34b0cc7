"""Events, encounters and alerts: what is in force and its verdict, for those who may see it."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from console import happenings
from console.context import Console, Query, Viewer
from console.errors import BadQuery, NotThere
from console.pages import replay
from console.pages.happenings import alerts_page, events_page
from tests.console.conftest import console_of
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import LakeFix, derive, ingest, lake_of, square
from waybill.commands import SUBCOMMANDS, command_line

AT = datetime(2026, 1, 5, 10, tzinfo=UTC)


def event(name: str, at: datetime, **changed: Any) -> dict[str, Any]:
    said = {"id": name, "revision": 0, "tenant": "fleet", "device": "eu-0001", "epoch": 1, "seq": 1, "kind": "exit"}
    more = {"place": "ring", "time": at, "value": 65.0, "retracted": False, "day": AT.date(), "emitted_at": AT}
    return said | more | {"commit_number": 1} | changed


def alert(name: str, at: datetime, **changed: Any) -> dict[str, Any]:
    made = event(name, at)
    only = {key: value for key, value in made.items() if key not in {"revision", "retracted", "emitted_at"}}
    times = dict.fromkeys(("received_at", "raised_at", "collected_at"), at + timedelta(seconds=1))
    return only | {"region": "eu", "seen_until": None} | times | changed


def verdict(name: str, said: str, **changed: Any) -> dict[str, Any]:
    made = event(name, AT)
    only = {key: value for key, value in made.items() if key != "retracted"}
    none = dict.fromkeys(("alerted_time", "alerted_value", "previous_time", "previous_value", "reason"))
    return only | none | {"verdict": said} | changed


@pytest.fixture
def console(tmp_path: Path) -> Console:
    lake = new_lake(tmp_path / "lake")
    lake.append(
        "geofence_events",
        [
            event("kept", AT),
            event("moved", AT),
            event("moved", AT + timedelta(hours=3), revision=1),
            event("gone", AT),
            event("gone", AT, revision=1, retracted=True),
            event("other", AT, tenant="kaze", kind="enter", value=0.0),
            event("canary", AT + timedelta(hours=5), tenant="canary", device="canary-eu"),
            event("next", AT + timedelta(days=1), tenant="canary", day=date(2026, 1, 6)),
        ],
    )
    lake.append(
        "alerts",
        [
            *(alert(one, AT + timedelta(seconds=at)) for at, one in enumerate(("a", "b", "c", "d"))),
            alert("k", AT, tenant="kaze"),
        ],
    )
    lake.append(
        "verdicts",
        [
            verdict("a", "confirmed"),
            verdict("b", "withdrawn", reason="not_received", time=None, value=None),
            verdict("b", "corrected", revision=1, reason="incorrect_data", time=AT + timedelta(minutes=1)),
            verdict("c", "withdrawn", reason="did_not_occur"),
            verdict("late", "late", time=AT + timedelta(minutes=2)),
            verdict("late-elsewhere", "late", time=AT, tenant="kaze"),
        ],
    )
    return console_of(tmp_path / "lake")


def ids(page: Any, table: int = 0) -> list[str]:
    return sorted(row["id"] for row in page.tables[table].rows)


def test_only_events_in_force_are_shown_also_if_a_revision_moved_one_out_of_the_span(console):
    assert ids(events_page(console, Query())) == ["kept", "moved", "other"]
    hour = Query(asked={"since": "2026-01-05T09:30Z", "until": "2026-01-05T10:30Z"})
    assert ids(events_page(console, hour)) == ["kept", "other"]
    later = Query(asked={"since": "2026-01-05T12:30Z", "until": "2026-01-05T13:30Z"})
    assert ids(events_page(console, later)) == ["moved"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"tenant": "kaze"}, ["other"]),
        ({"device": "fleet/eu-0001"}, ["kept", "moved"]),
        ({"kind": "enter"}, ["other"]),
        ({"fence": "elsewhere"}, []),
        ({"tenant": "canary"}, ["next"]),
    ],
)
def test_events_are_filtered(console, asked, found):
    assert ids(events_page(console, Query(asked=asked))) == found


def test_each_alert_has_the_verdict_in_force_or_none_yet(console):
    page = alerts_page(console, Query(asked={"tenant": "fleet"}))
    rows = {row["id"]: row for row in page.tables[0].rows}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "a": "confirmed",
        "b": "corrected",
        "c": "withdrawn",
        "d": "none yet",
        "late": "late",
    }
    assert {fact.key: fact.value for fact in page.facts} == dict.fromkeys(
        ("confirmed", "corrected", "withdrawn", "late", "none_yet"), 1
    )
    assert "10:01:00" in rows["b"]["correct_time"]
    assert rows["c"]["reason"] == "all records are there, and it did not occur"
    assert (rows["late"]["region"], rows["late"]["delay_s"]) == ("no alert", None)
    assert ids(alerts_page(console, Query(asked={"tenant": "fleet", "verdict": "none yet"}))) == ["d"]


@pytest.mark.parametrize(
    ("gone", "jobs"),
    [
        (["verdicts"], {"alerts": "verdicts"}),
        (["geofence_events"], {"events": "geofence"}),
        (
            ["alerts", "verdicts", "geofence_events", "encounters"],
            {"alerts": "verdicts", "events": "geofence", "encounters": "proximity"},
        ),
    ],
)
def test_what_no_job_has_computed_yet_is_unknown_and_not_zero(console, gone, jobs):
    lake = Path(console.settings.lake)
    for table in gone:
        (lake / table).rename(lake / f"{table}-gone")
    if "encounters" in gone:
        # another job creates the table, and this job never commits
        first = f"_delta_log/{0:020}.json"
        (lake / "encounters" / "_delta_log").mkdir(parents=True)
        (lake / "encounters" / first).write_bytes((lake / "encounters-gone" / first).read_bytes())
    new = Console(console.settings)
    pages = [alerts_page(new, Query()), events_page(new, Query())]
    tables = {table.id: table for page in pages for table in page.tables}
    for name, job in jobs.items():
        assert (tables[name].rows, tables[name].empty) == ((), f"The {job} job has not run yet: run cloud-jobs {job}.")
    facts = {fact.key: fact.value for page in pages for fact in page.facts}
    assert [facts[name] for name in ("confirmed", "none_yet") if "alerts" in jobs] in ([], [None, None])
    assert {name: facts[name] for name in ("events", "encounters") if name in jobs} == dict.fromkeys(
        jobs.keys() - {"alerts"}
    )


def test_what_only_the_ingest_has_run_on_is_unknown_and_not_zero(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    # as a run of the maintenance does
    lake.open("geofence_events").vacuum(0, dry_run=False, enforce_retention_duration=False)
    console = console_of(tmp_path / "lake")
    for page, count in ((events_page(console, Query()), 2), (alerts_page(console, Query()), 1)):
        assert {fact.value for fact in page.facts} == {None}
        assert ["has not run yet" in warning for warning in page.warnings] == [True] * count


def test_events_of_a_span_that_waits_for_the_job_are_unknown_and_not_zero(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake", [square("ring")])
    ingest(lake, [LakeFix("v1", 1, AT, 1.0, 1.0)])
    for table in ("geofence_events", "encounters", "verdicts"):
        derive(lake, table)
    ingest(lake, [LakeFix("v1", 2, AT + timedelta(minutes=5), 1.0, 1.0)])
    console = console_of(tmp_path / "lake")
    said = "cover records up to 2026-01-05 10:05:00 UTC; 1 commit of the ingest waits."
    span = {"since": "2026-01-05T09:00Z", "until": "2026-01-05T10:06Z"}
    events_then, alerts_then = (page(console, Query(asked=span)) for page in (events_page, alerts_page))
    assert events_then.warnings == (f"Events {said}", f"Encounters {said}")
    assert [table.empty for table in events_then.tables] == [*events_then.warnings]
    assert [fact.value for fact in events_then.facts] == [None, None]
    assert {fact.key: fact.value for fact in alerts_then.facts if fact.key in {"confirmed", "late"}} == {
        "confirmed": 0,
        "late": None,
    }
    asked = Query(asked={"start": span["since"], "end": span["until"]})
    assert replay.page(console, asked).warnings == events_then.warnings
    before = events_page(console, Query(asked=span | {"until": "2026-01-05T10:05Z"}))
    assert (before.warnings, [fact.value for fact in before.facts]) == ((), [0, 0])


def test_more_rows_than_can_be_counted_are_unknown_and_not_zero(console, monkeypatch):
    monkeypatch.setattr(happenings, "MAX_ROWS", 2)
    for page in (events_page(console, Query()), alerts_page(console, Query())):
        assert page.facts[0].value is None
        assert page.tables[0].rows == ()
        assert page.tables[0].empty == page.warnings[0]
        assert "more than 2" in page.warnings[0].lower()


def test_a_viewer_sees_events_of_own_tenants_only(console):
    rival = Viewer("rival", frozenset({"kaze"}))
    assert ids(events_page(console, Query(rival))) == ["other"]
    assert ids(alerts_page(console, Query(rival))) == ["k", "late-elsewhere"]
    with pytest.raises(NotThere):
        events_page(console, Query(rival, asked={"tenant": "fleet"}))


@pytest.mark.parametrize(
    "asked", [{"since": "yesterday"}, {"since": "2026-01-06", "until": "2026-01-05"}, {"zone": "Mars"}]
)
def test_a_span_that_cannot_be_read_is_refused(console, asked):
    with pytest.raises(BadQuery):
        events_page(console, Query(asked=asked))


def test_an_access_to_the_events_of_a_device_is_logged(console):
    events_page(console, Query(asked={"device": "fleet/eu-0001"}))
    lines = [json.loads(line) for file in Path(console.settings.lake).parent.rglob("*access*") for line in file.open()]
    assert [line["devices"] for line in lines] == [["fleet/eu-0001"]]


def test_the_command_prints_what_the_page_has(console, tmp_path):
    config = tmp_path / "cloud.toml"
    config.write_text(
        f'lake = "{console.settings.lake}"\ncheckpoints = "{tmp_path}/checkpoints"\nreference = {{ unsigned = true }}\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
    )
    app = command_line(SUBCOMMANDS, ["events"], "Waybill.")
    told = CliRunner().invoke(app, ["events", "--config", str(config), "--tenant", "fleet", "--json"])
    assert told.exit_code == 0, told.output
    rows = json.loads(told.output)["tables"]["events"]["rows"]
    assert sorted(row["id"] for row in rows) == ["kept", "moved"]
    shown = CliRunner().invoke(app, ["events", "--config", str(config), "--since", "2026-01-05"])
    assert "1 min 5 s inside" in shown.output
