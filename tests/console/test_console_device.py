"""The page of a device: its day, its holes, its usage, and where its records are."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from console.cli import fleet as fleet_command
from console.completeness import stations
from console.context import Query, Viewer
from console.device_day import DeviceDay
from console.errors import NotThere
from console.movements import DayTracksReader
from console.page import as_json
from console.pages import device
from geo.spatial import TrackSettings
from tests.console.conftest import NOW, Served, Tab, console_of
from tests.system.lake_of_fixes import LakeFix, cover, ingest, lake_of
from waybill.commands import SUBCOMMANDS, command_line
from waybill.record import IntervalSet, Tombstone

DAY = datetime(2026, 1, 5, tzinfo=UTC)
V1 = TenantDevice("acme", "v1")


def asked(name: str = "v1", viewer: Viewer | None = None, **query: str) -> Query:
    path = {"tenant": "acme", "device": name}
    return Query(path=path, asked=query) if viewer is None else Query(viewer, path, query)


def test_the_page_has_the_day_of_the_last_fix_and_the_sums_of_the_lake(served: Served) -> None:
    fleet = served.json("/")["tables"]["devices"]["rows"][0]
    page = served.json(fleet["href"])
    records = served.console.lake.rows("records", ["device", "kind"]).to_pylist()
    mine = [one for one in records if one["device"] == fleet["device"]]
    assert page["state"]["day"] == "2026-01-05"
    assert sum(row["records"] for row in page["tables"]["quarters"]["rows"]) == len(mine)
    centre = {row["station"]: row for row in page["tables"]["stations"]["rows"]}["Centre"]
    assert centre["records"] == len(mine)
    assert sum(row["distance_m"] for row in page["tables"]["usage"]["rows"]) == pytest.approx(
        page["facts"]["metered_m"]
    )
    assert page["facts"]["metered_m"] == fleet["today_m"]
    assert page["tables"]["registry"]["rows"] == []
    page_of_fixes = served.json(fleet["href"] + "?fixes=2")["tables"]["fixes"]
    assert page_of_fixes["rows"][0]["time"] > page["tables"]["fixes"]["rows"][-1]["time"]
    assert "<rect" in served.html(fleet["href"])


def test_the_map_draws_the_track_by_speed_and_by_zone(served: Served, tab: Tab) -> None:
    tab.open(served.url + served.json("/")["tables"]["devices"]["rows"][0]["href"])
    drawn = "m => new Set(m.queryRenderedFeatures({layers: ['track']}).map(f => f.properties.colour)).size"
    count = f"() => ({drawn})(document.querySelector('[data-island]').waybillMap)"
    assert tab.page.evaluate(count) > 1
    tab.page.evaluate("() => document.querySelectorAll('.choice button')[1].click()")
    tab.wait_for(
        "const s = document.querySelector('[data-island]').waybillMap.getSource('track');"
        " return s.loaded() && s.serialize().data.features.length > 0"
    )
    assert tab.page.evaluate("() => document.querySelector('[aria-pressed=true]').textContent") == "Colour by zone"


def test_what_does_not_exist_or_may_not_be_seen_has_one_answer(served: Served) -> None:
    answers = [httpx.get(f"{served.url}/device/{path}") for path in ("fleet/none", "none/none", "none/%3Cscript%3E")]
    assert [one.status_code for one in answers] == [404, 404, 404]
    href = served.json("/")["tables"]["devices"]["rows"][0]["href"]
    for query in ("day=x", "day=2026-13-01", "day=1066-10-14", "fixes=0", "fixes=x", "zone=Mars"):
        assert httpx.get(f"{served.url}{href}?{query}").status_code == 400, query
    assert served.json(href + "?day=2027-05-05")["tables"]["fixes"]["rows"] == []


def test_holes_are_placed_between_the_records_around_them(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    at = {seq: DAY + timedelta(minutes=seq) for seq in (1, 2, 5, 6, 9)}
    ingest(lake, [LakeFix("v1", seq, time, 10.0, 20.0 + seq / 1000) for seq, time in at.items()])
    epoch = lake.rows("records", ["epoch"])["epoch"][0].as_py()
    received = IntervalSet([(1, 2), (5, 6), (9, 9)])
    coverage = Coverage(received, (Tombstone(7, 8, "full"), Tombstone(5, 5, "late")), head=12)
    console = console_of(tmp_path / "lake")
    day = DeviceDay.read(console.lake, V1, DAY, DAY + timedelta(days=1))
    found = day.holes({epoch: coverage, epoch + 1: coverage})
    assert [(one.first, one.last, one.begin, one.end, one.reason) for one in found] == [
        (3, 4, at[2], at[5], ""),
        (7, 8, at[6], at[9], "full"),
        (10, 12, at[9], None, ""),
    ]
    assert [one.records for one in day.quarters()][:2] == [5, 0]
    assert stations({epoch: coverage})["missing"] == 5
    assert stations({})["received"] is None
    cover(lake, {DeviceStream("acme", "v1", epoch): coverage})


def test_a_day_has_the_quarters_that_its_clock_has(tmp_path: Path) -> None:
    lake_of(tmp_path / "lake")
    lake = console_of(tmp_path / "lake").lake
    for hours in (23, 24, 25):
        assert len(DeviceDay.read(lake, V1, DAY, DAY + timedelta(hours=hours)).quarters()) == 4 * hours


def test_odd_places_are_no_part_of_a_track_and_the_page_counts_them(tmp_path: Path) -> None:
    places = [(float("nan"), 1.0), (0.0, 0.0), (95.0, 1.0), (-17.0, 179.9999), (-17.0, -179.9999), (-17.0, -179.999)]
    fixes = [LakeFix("v1", seq, NOW - timedelta(seconds=600 - 10 * seq), *place) for seq, place in enumerate(places, 1)]
    ingest(lake_of(tmp_path / "lake"), fixes)
    page = as_json(device.page(console_of(tmp_path / "lake"), asked()))
    track = page["island"]["track"]
    assert np.frombuffer(base64.b64decode(track["begins"]), "<i4").tolist() == [0]
    assert len(np.frombuffer(base64.b64decode(track["longitude"]), "<i4")) == 3
    assert page["facts"]["distance_m"] < 200
    assert page["facts"]["left_out"].startswith("3 (")
    assert page["tables"]["fixes"]["rows"][0]["latitude"] is None
    drawn = [row["drawn"] for row in page["tables"]["fixes"]["rows"]]
    assert drawn == ["no: outside the world", "no: null island", "no: outside the world", *["yes"] * 3]


def test_a_device_without_a_fix_has_a_page_and_another_tenants_has_none(tmp_path: Path) -> None:
    ingest(lake_of(tmp_path / "lake"), [LakeFix("v1", 1, NOW - timedelta(seconds=5), 0, 0, kind="event")])
    console = console_of(tmp_path / "lake")
    page = as_json(device.page(console, asked()))
    assert page["facts"]["time"] is None
    assert page["facts"]["state"] == "unknown"
    assert page["facts"]["distance_m"] is None
    assert page["tables"]["quarters"]["rows"][0]["records"] == 1
    with pytest.raises(NotThere):
        device.page(console, asked(viewer=Viewer("x", frozenset({"rival"}))))


def test_a_day_says_that_its_records_were_erased_on_request(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    ingest(lake, [LakeFix("v1", seq, NOW - timedelta(days=seq), 10.0, 20.0) for seq in (1, 2)])
    declare_erasure(lake, Erasure("acme", "v1", NOW - timedelta(days=1, hours=1), DAY - timedelta(days=9)), NOW)
    console = console_of(tmp_path / "lake")
    said = "Records of this device until 2026-01-04 10:00 UTC were erased on request."
    assert said in device.page(console, asked(day="2026-01-03")).warnings
    assert said not in device.page(console, asked(day="2026-01-05")).warnings


def test_tracks_of_a_day_are_bounded_and_only_of_devices_that_may_be_seen(tmp_path: Path) -> None:
    fixes = [
        LakeFix("v1", seq, DAY + timedelta(seconds=10 * seq), 10.0, 20.0 + seq / 1000, tenant=tenant)
        for tenant in ("acme", "rival")
        for seq in range(1, 6)
    ]
    ingest(lake_of(tmp_path / "lake"), fixes)
    tracks = DayTracksReader(console_of(tmp_path / "lake").lake, TrackSettings())
    day = tracks.read(DAY, DAY + timedelta(days=1))
    assert np.flatnonzero(day.begins).tolist() == [0, 5]
    document = day.document([TenantDevice("rival", "v1")])
    assert len(np.frombuffer(base64.b64decode(document["longitude"]), "<i4")) == 5
    assert day.document([])["begins"] == ""
    assert len(tracks.read(DAY + timedelta(days=1), DAY + timedelta(days=2)).longitude) == 0


def test_the_command_has_the_rows_of_the_page(served: Served, tmp_path: Path, page_lake: Path) -> None:
    config = tmp_path / "cloud.toml"
    config.write_text(
        f'lake = "{page_lake}"\ncheckpoints = "checkpoints"\n[reference]\nunsigned = true\n[[clusters]]\nname = "hq"\n'
        'service_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
    )
    app = command_line(SUBCOMMANDS, ["fleet"], "Waybill.")
    assert SUBCOMMANDS["fleet"].load() is fleet_command
    ran = CliRunner().invoke(app, ["fleet", "--config", str(config)])
    assert ran.exit_code == 0, ran.output
    assert "eu-0001" in ran.output
    row = served.json("/")["tables"]["devices"]["rows"][0]
    name = f"{row['tenant']}/{row['device']}"
    ran = CliRunner().invoke(app, ["fleet", name, "--day", "2026-01-05", "--config", str(config)])
    assert "Where its records are now" in ran.output
    assert CliRunner().invoke(app, ["fleet", "fleet/none", "--config", str(config)]).exit_code != 0
