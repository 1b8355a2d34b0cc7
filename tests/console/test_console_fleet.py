"""The fleet's page: every device once, by its newest usable fix; the picture has the rows of the table."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest

from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.coverage_log import to_rows
from cloud_jobs.lake.tables import Lake
from console.completeness import GRACE, FleetCoverage
from console.context import Console, Query, Viewer
from console.counts import alerts_of, usage_of
from console.errors import BadQuery
from console.fixes import LastFix, LastFixReader, fix_columns, fix_numbers
from console.page import as_json
from console.pages import fleet
from tests.console.conftest import NOW, Served, Tab, console_of
from tests.console.test_console_alerts import alert
from tests.system.lake_of_fixes import LakeFix, derive, ingest, lake_of
from tests.usage_rows import usage_row
from waybill.record import IntervalSet, Tombstone

END_US = round((NOW - GRACE).timestamp() * 1_000_000)


def test_the_table_has_each_device_with_its_newest_fix(served):
    page = served.json("/")
    rows = {row["device"]: row for row in page["tables"]["devices"]["rows"]}
    records = served.console.lake.rows("records", ["device", "device_time", "kind"]).to_pylist()
    newest = {
        device: max(one["device_time"] for one in records if one["device"] == device and one["kind"] == "position")
        for device in rows
    }
    assert len(rows) == 2
    assert {device: row["time"] for device, row in rows.items()} == {
        device: time.isoformat().replace("+00:00", "Z") for device, time in newest.items()
    }
    assert {row["records"] for row in rows.values()} == {"complete"}
    assert all(row["today_m"] > 1000 and row["registry"] is None for row in rows.values())


def test_a_console_of_an_old_drive_opens_its_replay(served: Served, tmp_path: Path) -> None:
    assert fleet.has_stopped(served.console)
    assert not fleet.has_stopped(console_of(tmp_path / "none"))


def test_the_page_works_without_javascript_and_refuses_a_strange_host(served):
    assert "eu-0001" in served.html("/")
    assert httpx.get(served.url, headers={"host": "elsewhere.example"}).status_code == 400
    assert httpx.post(served.url).status_code == 405
    for asked in (
        "box=1,2",
        "box=0,10,1,-10",
        "at=yesterday",
        "page=0",
        "state=drving",
        "tenant=nope",
        "since=24h",
        "zone=Mars",
    ):
        assert httpx.get(f"{served.url}/?{asked}").status_code == 400, asked


def test_the_map_draws_each_device_and_fence(served: Served, tab: Tab) -> None:
    address = "/?at=2026-01-05T09:05:00Z"
    tab.open(served.url + address)
    assert "SwiftShader" in tab.renderer
    drawn = tab.page.evaluate(
        "() => { const m = document.querySelector('[data-island]').waybillMap;"
        " const ids = l => new Set(m.queryRenderedFeatures({layers: [l]})"
        "  .map(f => f.properties.id ?? f.properties.name));"
        " return [ids('fence-line').size,"
        "  m.getSource('tracks').serialize().data.geometry.coordinates.length] }"
    )
    assert drawn[0] > 0
    assert drawn[1] > 0
    island = served.json(address)["island"]
    columns = [np.frombuffer(base64.b64decode(island[name]), "<i4") / 1e7 for name in ("longitude", "latitude")]
    assert tab.drawn_by("movers", np.stack(columns, axis=1).tolist()) == [True, True]


# Completeness.


def stated(until_us: int, **more: object) -> Coverage:
    return Coverage(IntervalSet([(1, 10)]), head=10, stated_us=until_us, stated_head=10, **more).completed()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("coverage", "state"),
    [
        (stated(END_US), "complete"),
        (stated(END_US - 1), "silent"),
        (Coverage(IntervalSet([(1, 4), (6, 10)]), head=10, stated_us=END_US, stated_head=10), "open"),
        (Coverage(IntervalSet([(2, 10)]), head=10, stated_us=END_US, stated_head=10), "open"),
        (Coverage(IntervalSet([(1, 9)]), (Tombstone(10, 10, "full"),), 10, END_US, 10).completed(), "declared loss"),
        (Coverage(IntervalSet([(1, 9)]), (Tombstone(10, 10, "full"),), 10, END_US - 1, 10).completed(), "silent"),
        (Coverage(head=3), "open"),
        (Coverage(), "silent"),
    ],
)
def test_the_records_of_a_device_are_judged_as_its_certificate_would_be(coverage: Coverage, state: str) -> None:
    streams = {DeviceStream("acme", name, 7): coverage for name in ("v1", "v2")}
    other = DeviceStream("acme", "v0", 7)
    found = FleetCoverage.of(1, to_rows({**streams, other: stated(END_US)})).states(NOW)
    assert found == {
        TenantDevice("acme", "v0"): "complete",
        TenantDevice("acme", "v1"): state,
        TenantDevice("acme", "v2"): state,
    }


def test_the_worst_of_two_buffers_counts_and_a_device_without_coverage_is_not_there() -> None:
    epoch = round(NOW.timestamp() * 1000) << 20
    rows = to_rows(
        {
            DeviceStream("acme", "v1", 7): Coverage(IntervalSet([(2, 3)]), head=3),
            DeviceStream("acme", "v1", epoch): stated(END_US),
        }
    )
    assert FleetCoverage.of(1, rows).states(NOW) == {TenantDevice("acme", "v1"): "open"}
    assert FleetCoverage().states(NOW) == {}


# Usage and alerts.


def test_the_distance_of_a_day_is_the_sum_of_its_zones_within_the_day_and_unknown_without_usage(tmp_path: Path) -> None:
    lake, hour = lake_of(tmp_path / "lake"), datetime(2026, 1, 5, 8, tzinfo=UTC)
    rows = [
        usage_row("v1", hour, distance_mm=[1000, 2000, 4000, 8000]),
        usage_row("v1", hour, "zone", distance_mm=500),
        usage_row("v1", hour, "zone", distance_mm=[0, 0, 700, 0], commit_number=2),
        usage_row("v1", hour, "*", events=3),
        usage_row("v2", hour, "*", events=1),
    ]
    lake.append("usage", rows)
    open_lake = console_of(tmp_path / "lake").lake
    devices = [TenantDevice("acme", name) for name in ("v1", "v2", "v3")]
    found = usage_of(open_lake, devices, hour + timedelta(minutes=30), hour + timedelta(hours=3))
    assert found[devices[0]].distance_m == 12.7
    assert found[devices[1]].distance_m is None
    assert devices[2] not in found
    assert usage_of(open_lake, devices, hour - timedelta(hours=3), hour) == {}


def test_alerts_are_unknown_until_some_were_collected(tmp_path: Path) -> None:
    lake_of(tmp_path / "lake")
    counts = alerts_of(console_of(tmp_path / "lake").lake, NOW - timedelta(hours=1), NOW)
    assert counts.count(TenantDevice("acme", "v1")) is None


@pytest.mark.parametrize(("minutes", "count"), [(4, 0), (50, None)])
def test_a_device_without_an_alert_has_none_only_if_alerts_were_just_collected(
    tmp_path: Path, minutes: int, count: int | None
) -> None:
    lake, at = lake_of(tmp_path / "lake"), NOW - timedelta(minutes=minutes)
    lake.append("alerts", [alert("a", at, tenant="acme", device="v2", collected_at=at)])
    counts = alerts_of(console_of(tmp_path / "lake").lake, NOW - timedelta(hours=1), NOW)
    assert [counts.count(TenantDevice("acme", name)) for name in ("v1", "v2")] == [count, 1]


def test_the_distance_of_today_is_so_far_while_usage_waits(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")

    def shown() -> tuple[str, bool]:
        table = fleet.page(console_of(tmp_path / "lake"), Query()).tables[0]
        (title,) = (one.title for one in table.columns if one.key == "today_m")
        return title, "Usage covers records up to 2026-01-05 10:59:00 UTC; 1 commit" in table.note

    ingest(lake, [LakeFix("v1", 1, NOW - timedelta(minutes=2), 1.0, 1.0)])
    derive(lake, "usage", [usage_row("v1", NOW - timedelta(hours=1), distance_mm=[0, 0, 0, 8000], tenant="acme")])
    assert shown() == ("Today", False)
    ingest(lake, [LakeFix("v1", 2, NOW - timedelta(minutes=1), 1.0, 1.0)])
    assert shown() == ("Today so far", True)


# Fleets of odd places and of many devices.


def fleet_of(tmp_path: Path, fixes: list[LakeFix]) -> Console:
    ingest(lake_of(tmp_path / "lake"), fixes)
    return console_of(tmp_path / "lake")


def devices_of(console: Console, viewer: Viewer | None = None, **asked: str) -> list[str]:
    query = Query(asked=asked) if viewer is None else Query(viewer, asked=asked)
    return [row["device"] for row in fleet.page(console, query).tables[0].rows]


def test_a_box_may_cross_the_antimeridian_and_a_silent_device_has_no_speed(tmp_path: Path) -> None:
    recent, old = NOW - timedelta(seconds=5), NOW - timedelta(hours=2)
    console = fleet_of(
        tmp_path,
        [
            LakeFix("east", 1, recent, -17.0, 179.9),
            LakeFix("north", 1, recent, 90.0, 10.0),
            LakeFix("old", 1, old, 10.0, 10.0),
            LakeFix("west", 1, recent, -17.0, -179.9),
        ],
    )
    assert devices_of(console, box="179,-20,-179,-10") == ["east", "west"]
    assert devices_of(console, box="-179,-90,179,90") == ["north", "old"]
    assert devices_of(console, state="silent") == ["old"]
    rows = fleet.page(console, Query()).tables[0].rows
    assert {row["device"]: row["state"] for row in rows}["old"] == "silent"
    assert all(row["speed_mps"] is None for row in rows if row["state"] == "silent")


@pytest.mark.parametrize(("silent", "files"), [(False, 1), (True, 3)])
def test_older_files_are_read_only_while_they_can_hold_a_last_fix(tmp_path: Path, silent: bool, files: int) -> None:
    lake = lake_of(tmp_path / "lake")
    for seq, minutes in enumerate((60, 30, 0), 1):
        both = ("a", "b") if seq == 1 or not silent else ("a",)
        ingest(lake, [LakeFix(one, seq, NOW - timedelta(minutes=minutes), 50, 10 + seq) for one in both])
    console = console_of(tmp_path / "lake")
    found = LastFixReader(console.lake, console.settings.tracks, 400, rows_at_once=1).read(NOW)
    assert {fix.longitude for fix in found.of.values()} == ({13.0, 11.0} if silent else {13.0})
    assert (found.files, len(found.of)) == (files, 2)


def test_a_viewer_sees_only_devices_of_its_tenants(tmp_path: Path) -> None:
    at = NOW - timedelta(seconds=5)
    console = fleet_of(tmp_path, [LakeFix("v1", 1, at, 1, 1), LakeFix("v1", 1, at, 1, 2, tenant="rival")])
    page = as_json(fleet.page(console, Query(Viewer("x", frozenset({"rival"})))))
    assert [row["id"] for row in page["tables"]["devices"]["rows"]] == ["rival/v1"]
    assert page["island"]["ids"] == [["rival", "v1"]]
    assert "acme" not in str(page)


def test_the_past_has_the_last_fix_of_then_and_the_page_offers_the_time_at_which_most_stopped(tmp_path: Path) -> None:
    stopped = NOW - timedelta(days=3)
    fixes = [LakeFix(f"v{n}", 1, stopped - timedelta(seconds=n), 1.0 + n, 2.0) for n in range(5)]
    goes_on = [LakeFix("van", n, stopped + timedelta(days=n - 3), 3.0, 3.0 + n) for n in (1, 2, 3, 4, 5)]
    fixes += [LakeFix("van", 6, stopped + timedelta(seconds=1), 0.0, 0.0), *goes_on]
    console = fleet_of(tmp_path, [*fixes, LakeFix("canary", 1, NOW - timedelta(seconds=9), 3.0, 3.0)])
    facts = {fact.key: fact for fact in fleet.page(console, Query()).facts}
    assert facts["stopped"].value == stopped
    page = fleet.page(console, Query(asked={"at": stopped.isoformat()}))
    rows = {row["device"]: row for row in page.tables[0].rows}
    assert rows["v0"]["age_s"] == 0
    assert rows["canary"]["state"] == "unknown"
    assert rows["canary"]["latitude"] is None
    assert (rows["van"]["time"], rows["van"]["longitude"], rows["van"]["state"]) == (stopped, 6.0, "unknown")
    earlier = fleet.page(console, Query(asked={"at": (stopped - timedelta(hours=1)).isoformat()})).tables[0].rows
    assert {row["device"]: row["longitude"] for row in earlier}["van"] == 5.0
    assert {row["time"] for row in earlier if row["device"] != "van"} == {None}


def test_a_large_fleet_is_shown_in_pages_and_the_map_has_all_of_it(tmp_path: Path) -> None:
    at, many = NOW - timedelta(seconds=5), 450
    console = fleet_of(tmp_path, [LakeFix(f"v{n:04}", 1, at, 10.0, n / 100) for n in range(many)])
    first, last = (fleet.page(console, Query(asked={"page": page})) for page in ("1", "3"))
    assert [len(one.tables[0].rows) for one in (first, last)] == [200, 50]
    assert first.tables[0].links == (("Next rows", "/?page=2"),)
    assert "Rows 401 to 450 of 450." in last.tables[0].note
    island = as_json(first)["island"]
    longitude = np.frombuffer(base64.b64decode(island["longitude"]), "<i4") / 1e7
    assert longitude.tolist() == [n / 100 for n in range(many)]
    with pytest.raises(BadQuery):
        fleet.page(console, Query(asked={"page": "x"}))


def test_columns_for_a_browser_say_what_a_fix_does_not_state() -> None:
    fix = LastFix("acme", "v1", "eu", NOW, NOW, 90.0, -180.0, None, 359.9, None)
    columns = fix_columns(np.array([fix_numbers(fix)]).T)
    values = {
        name: np.frombuffer(
            base64.b64decode(text), "<i4" if name in {"longitude", "latitude", "time"} else "<i2"
        ).tolist()
        for name, text in columns.items()
    }
    assert values == {
        "longitude": [-1_800_000_000],
        "latitude": [900_000_000],
        "time": [round(NOW.timestamp())],
        "speed": [-1],
        "heading": [0],
    }


def test_a_lake_without_records_has_an_empty_fleet(tmp_path: Path) -> None:
    Lake(tmp_path / "lake").create()
    page = fleet.page(console_of(tmp_path / "lake"), Query())
    assert page.tables[0].rows == ()
    assert as_json(page)["island"]["ids"] == []
