"""Place and time: a vehicle that crosses an area between two fixes was there; the page agrees with the engine."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from shapely import box

from console.context import Query, Viewer
from console.errors import BadQuery, NotThere
from console.page import as_json
from console.pages import where
from tests.console.conftest import NOW, console_of
from tests.new_lakes import new_lake

START = datetime(2026, 1, 5, 8, tzinfo=UTC)
WINDOW = {"start": "2026-01-05T08:00Z", "end": "2026-01-05T09:00Z"}


def record(seq, second, longitude, device="a", **changes):
    moment = START + timedelta(seconds=second)
    row = {"tenant": "fleet", "region": "eu", "device": device, "epoch": 1, "seq": seq, "kind": "position"}
    row |= {"device_time": moment, "device_date": moment.date(), "received_at": moment, "ingested_at": moment}
    return row | {
        "latitude": 50.0,
        "longitude": longitude,
        "speed_mps": 20.0,
        "ingest_number": 1,
        "content_bytes": 0,
        **changes,
    }


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    folder = tmp_path_factory.mktemp("where")
    lake = new_lake(folder / "lake")
    # 20 s a step, about 430 m: the area of 100 m at 10.009 lies between two fixes
    rows = [record(at, 20 * at, 10 + 0.006 * at) for at in range(1, 60)]
    rows += [record(at, 20 * at, 10 + 0.006 * at, "b", latitude=51.0) for at in range(1, 60)]
    rows += [record(1, 86_400, 10.009, "c")]
    lake.append("records", rows)
    return console_of(folder / "lake")


def test_a_vehicle_that_passes_between_two_fixes_was_there(console):
    page = where.page(console, Query(asked={**WINDOW, "circle": "10.009,50.0,50"}))
    devices, visits = page.tables
    assert [row["device"] for row in visits.rows] == ["a"]
    assert (devices.rows[0]["visits"], devices.rows[0]["metres"]) == (1, pytest.approx(100, abs=0.5))
    [visit] = visits.rows
    assert (visit["began"], visit["ended"]) == ("entered", "left")
    # half-way between the fixes of 20 s and 40 s
    assert (visit["start"] + (visit["end"] - visit["start"]) / 2 - START).total_seconds() == pytest.approx(30, abs=0.01)
    assert visit["stay_s"] == pytest.approx(20 * 100 / 430, rel=0.01)
    [line] = as_json(page)["island"]["lines"]
    assert [place[1] for place in line] == [50.0, 50.0]


def test_a_visit_is_cut_by_the_window_and_says_so(console):
    asked = {"start": "2026-01-05T08:05Z", "end": "2026-01-05T08:10Z", "box": "9.9,49.9,10.9,50.1"}
    [visit] = where.page(console, Query(asked=asked)).tables[1].rows
    assert (visit["began"], visit["ended"], visit["stay_s"]) == ("inside before", "inside after", 300.0)
    assert visit["href"] == "/device/fleet/a?at=2026-01-05T08%3A05%3A00Z"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("box", "1,2,3"),
        ("box", "nan,1,2,3"),
        ("box", "1,5,2,4"),
        ("end", "2026-03-05T08:10Z"),
        ("circle", "10,50,-5"),
        ("circle", "10,50,1e9"),
        ("area", "{"),
        ("area", "[1]"),
        ("area", '{"type": "Feature", "properties": 1, "geometry": null}'),
        ("area", json.dumps({"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]})),
    ],
)
def test_an_area_that_is_none_and_a_long_window_are_refused(console, name, text):
    with pytest.raises(BadQuery):
        where.page(console, Query(asked={**WINDOW, name: text}))


def test_areas_of_the_same_place_find_the_same(console):
    polygon = json.loads(json.dumps(box(10.0085, 49.999, 10.0095, 50.001).__geo_interface__))
    rows = [
        where.page(console, Query(asked={**WINDOW, name: text})).tables[1].rows
        for name, text in (("box", "10.0085,49.999,10.0095,50.001"), ("area", json.dumps(polygon)))
    ]
    assert rows[0] == rows[1] != ()
    # across the antimeridian nothing is there, and nothing fails
    assert where.page(console, Query(asked={**WINDOW, "box": "179,49,-179,51"})).tables[1].rows == ()


def test_a_stranger_sees_no_visit(console):
    asked, stranger = {**WINDOW, "box": "9.9,49.9,10.9,50.1"}, Viewer("x", frozenset({"other"}))
    assert where.page(console, Query(stranger, asked=asked)).tables[1].rows == ()
    with pytest.raises(NotThere):
        where.page(console, Query(stranger, asked={**asked, "tenant": "fleet"}))


def test_the_map_shows_the_area_and_a_box_can_be_drawn(served, tab):
    day = f"start={NOW.date()}T00:00Z&end={NOW.date()}T12:00Z"
    tab.open(f"{served.url}/where?{day}&circle=10.0006,53.5503,2500")
    drawn = "new Set(m.queryRenderedFeatures({layers: ['area', 'inside']}).map(f => f.layer.id)).size"
    assert tab.on_map("", drawn) == 2
    tab.page.get_by_role("button", name="Draw a box").click()
    canvas = tab.page.locator(".map canvas").bounding_box()
    tab.page.mouse.click(canvas["x"] + 100, canvas["y"] + 100)
    tab.page.wait_for_timeout(400)
    with tab.page.expect_navigation(url=lambda url: "box=" in url and "box=&" not in url, wait_until="load"):
        tab.page.mouse.click(canvas["x"] + 400, canvas["y"] + 300)
    tab.wait_for("return document.querySelector('[data-island]')?.dataset.drawn === 'true'")
    assert "circle=&" in tab.page.url
