"""Fences: versions with their dates and windows, what was refused, and the difference of two versions."""

import json
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from console.asked import check_asked
from console.context import LOCAL, Console, Query, Viewer
from console.errors import BadQuery, NotThere
from console.lake import OpenLake
from console.page import as_json
from console.pages import fences, fleet
from console.pages.fences import fence_page, page, windows_text
from console.pages.happenings import events_page
from geo.reference.messages import Kind
from tests.cloud_jobs.billing.contracts.makers import account, device, price, tariff
from tests.cloud_jobs.publications import row_of
from tests.console.conftest import NOW, Tab, console_of, serving
from tests.console.test_console_alerts import AT, event
from tests.new_lakes import new_lake

NAME = "<script>window.hit=1</script>"
MOVED = "2026-01-05T06:00:00Z"
WEEKLY = {
    "timezone": "Europe/Berlin",
    "windows": [
        {"days": ["fri", "mon", "tue", "wed", "thu"], "from": "07:00", "until": "19:00"},
        {"days": ["sat", "sun"], "from": "22:00", "until": "06:00"},
    ],
}


def feature(begin: str | None, east: float, **properties: Any) -> str:
    ring = [[10.0, 53.0], [east, 53.0], [east, 53.1], [10.0, 53.1], [10.0, 53.0]]
    given = {"id": "ring", "name": NAME, **({"effective_from": begin} if begin else {}), **properties}
    return json.dumps({"type": "Feature", "properties": given, "geometry": {"type": "Polygon", "coordinates": [ring]}})


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Console:
    folder: Path = tmp_path_factory.mktemp("fences")
    lake = new_lake(folder / "lake")
    gate = {"type": "LineString", "coordinates": [[10.0, 53.2], [10.1, 53.2]]}
    bodies = [
        ("ring", feature(None, 10.1)),
        ("ring", feature("2026-01-01T00:00:00Z", 10.2, priority=5, weekly=WEEKLY)),
        ("ring", feature("2026-03-01T00:00:00Z", 10.15)),
        ("ring", feature("2026-04-01T00:00:00Z", 10.15, speed_limit_mps=-1)),
        ("gate", json.dumps({"type": "Feature", "properties": {"id": "gate", "gate": True}, "geometry": gate})),
        ("ended", feature("2025-01-01T00:00:00Z", 10.3, id="ended", effective_until="2025-02-01T00:00:00Z")),
    ]
    rows = [row_of("fence", name, body, number) for number, (name, body) in enumerate(bodies)]
    lake.append("reference", [row | {"published_by": "op-7", "reason": "a new border"} for row in rows])
    return console_of(folder / "lake")


def query(**asked: str) -> Query:
    return Query(asked=asked, path={"id": "ring"})


def test_versions_in_force_and_to_come_are_listed_and_ended_ones_on_request(console):
    shown = page(console, Query())
    rows = {(row["id"], row["key"]): row for row in shown.tables[0].rows}
    assert {key: row["state"] for key, row in rows.items()} == {
        ("ring", "2026-01-01T00:00:00Z"): "in force",
        ("ring", "2026-03-01T00:00:00Z"): "coming",
        ("gate", "always"): "in force",
    }
    now = rows["ring", "2026-01-01T00:00:00Z"]
    assert now["windows"] == "Mon-Fri 07:00-19:00, Sat and Sun 22:00-06:00 of the next day (Europe/Berlin)"
    assert (now["published_by"], now["reason"]) == ("op-7", "a new border")
    assert now["end"].startswith("2026-03-01 00:00:00")
    past = {row["id"] for row in page(console, Query(asked={"state": "past"})).tables[0].rows}
    assert past == {"ring", "ended"}
    assert {one.id for one in console.fences.in_force(LOCAL, NOW)} == {"ring", "gate"}


def test_a_refused_publication_is_named_with_its_reason(console):
    refused = page(console, Query()).tables[1]
    assert [(row["id"], row["effective_from"][:10]) for row in refused.rows] == [("ring", "2026-04-01")]
    assert "speed_limit_mps" in refused.rows[0]["reason"]


def test_the_difference_of_two_versions_adds_up(console):
    shown = fence_page(console, query(**{"from": "always", "to": "2026-03-01T00:00:00Z"}))
    facts = {fact.key: fact.value for fact in shown.facts}
    assert facts["area_km2"] == pytest.approx(facts["area_before_km2"] + facts["added_km2"] - facts["removed_km2"])
    assert facts["area_before_km2"] == pytest.approx(74.6, rel=0.01)
    assert facts["added_km2"] == pytest.approx(facts["area_before_km2"] / 2, rel=0.001)
    assert facts["removed_km2"] == 0
    assert as_json(shown)["island"]["removed"] is None
    changed = {row["property"]: (row["before"], row["after"]) for row in shown.tables[0].rows}
    assert changed["effective_from"] == ("not set", "2026-03-01T00:00:00Z")
    assert "border" in changed


def test_areas_with_too_many_corners_are_not_compared_and_the_page_says_so(console, monkeypatch):
    monkeypatch.setattr(fences, "MOST_COMPARED", 9)
    shown = fence_page(console, query(**{"from": "always", "to": "2026-03-01T00:00:00Z"}))
    facts = {fact.key: fact.value for fact in shown.facts}
    assert (facts["added_km2"], facts["removed_km2"]) == (None, None)
    assert "too many to compare" in shown.tables[0].note
    assert facts["area_km2"] > 0


def test_without_a_query_the_version_in_force_is_held_against_the_one_before(console):
    shown = fence_page(console, query())
    assert dict(shown.state) == {"from": "always", "to": "2026-01-01T00:00:00Z"}
    changed = {row["property"]: row["after"] for row in shown.tables[0].rows}
    assert changed["priority"] == "5"
    assert changed["weekly"].startswith("Mon-Fri")


def test_an_unknown_fence_or_version_is_refused(console):
    with pytest.raises(BadQuery):
        fence_page(console, query(to="2020-01-01T00:00:00Z"))
    ended = Query(asked={"state": "ended"})
    with pytest.raises(BadQuery):
        check_asked(page(console, ended), ended)
    with pytest.raises(NotThere):
        fence_page(console, Query(path={"id": "elsewhere"}))


@pytest.fixture
def shared(tmp_path: Path) -> Console:
    """The fences of two customers of one tenant: each has one that its contract prices, and one that it was in."""
    lake = new_lake(tmp_path / "lake")
    names = ("priced-a", "priced-b", "met-a", "met-b", "taken-back", "nobodys")
    bodies: list[tuple[Kind, str, str]] = [("fence", name, feature(None, 10.1, id=name)) for name in names]
    for one in ("a", "b"):
        bodies.append(("tariff", one, json.dumps(tariff(price(zone=f"priced-{one}"), price(zone="*"), id=one))))
        devices = (device(f"van-{one}"), device("moved", **({"end": MOVED} if one == "a" else {"begin": MOVED})))
        bodies.append(("account", one, json.dumps(account(one, *devices, tariff=one))))
    lake.append("reference", [row_of(kind, name, body, at) for at, (kind, name, body) in enumerate(bodies)])
    events = [
        event("1", AT, device="van-a", place="met-a"),
        event("2", AT, device="van-b", place="met-b"),
        event("3", AT, device="van-a", place="taken-back"),
        event("3", AT, device="van-a", place="taken-back", revision=1, retracted=True),
        event("4", AT, device="moved", place="met-b"),
    ]
    lake.append("geofence_events", events)
    return console_of(tmp_path / "lake")


@pytest.mark.parametrize(
    ("tenants", "accounts", "seen"),
    [
        (None, {"a"}, {"priced-a", "met-a"}),
        ({"fleet"}, {"b"}, {"priced-b", "met-b"}),
        ({"fleet"}, None, {"priced-a", "priced-b", "met-a", "met-b"}),
        ({"kaze"}, None, set()),
        (None, {"elsewhere"}, set()),
    ],
)
def test_a_viewer_with_limits_sees_the_fences_of_its_contracts_and_events(shared, tenants, accounts, seen):
    viewer = Viewer("v", *(None if names is None else frozenset(names) for names in (tenants, accounts)))
    shown = page(shared, Query(viewer))
    assert {row["id"] for row in shown.tables[0].rows} == seen
    assert [table.id for table in shown.tables] == ["fences"], "no refused publication"
    assert not {"published_by", "reason"} & {name for row in shown.tables[0].rows for name in row}
    for name in ("priced-a", "met-b", "nobodys"):
        if name not in seen:
            with pytest.raises(NotThere):
                fence_page(shared, Query(viewer, path={"id": name}))
    drawn = as_json(fleet.page(shared, Query(viewer)))["island"]["fences"]["features"]
    assert {one["properties"]["id"] for one in drawn} == seen
    events = {row["place_id"]: row["place_href"] for row in events_page(shared, Query(viewer)).tables[0].rows}
    assert {place for place, href in events.items() if href} == seen & {"met-a", "met-b"}


def test_new_events_bring_their_fences(shared):
    viewer = Viewer("v", accounts=frozenset({"a"}))
    shared.lake = OpenLake(shared.settings.tables, clock=count().__next__)
    before = shared.fences.ids(viewer, NOW)
    shared.lake.lake.append("geofence_events", [event("5", AT, device="van-a", place="nobodys", commit_number=2)])
    assert shared.fences.ids(viewer, NOW) == before | {"nobodys"}


def test_windows_that_cannot_be_read_are_a_fault_and_not_always():
    with pytest.raises(ValueError, match="windows"):
        windows_text({"timezone": "Europe/Berlin"})
    assert windows_text(None) == "always"


def test_a_begin_that_no_calendar_has_is_always(console):
    begins = {one.begin for one in console.reference.state().fences}
    assert begins == {None, *(datetime(*date, tzinfo=UTC) for date in ((2025, 1, 1), (2026, 1, 1), (2026, 3, 1)))}


def test_the_map_draws_both_borders_and_what_was_added(console, browser):
    for served in serving(console):
        tab = Tab(browser.new_page(viewport={"width": 1280, "height": 800}), served.url)
        tab.open(f"{served.url}/fences/ring?from=always&to=2026-01-01T00:00:00Z")
        drawn = tab.page.evaluate(
            "() => { const map = document.querySelector('[data-island]').waybillMap;"
            " return ['old-line', 'fence-line', 'added']"
            ".map(id => map.queryRenderedFeatures({layers: [id]}).length > 0) }"
        )
        assert drawn == [True, True, True]
        assert tab.page.evaluate("() => window.hit") is None
        tab.page.close()
        assert tab.faults == []
