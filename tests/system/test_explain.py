"""A line of an issued invoice, from the money back to the records: computed again, and held against the charge."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cloud_jobs.bill_cli import explain
from cloud_jobs.explain.issued_line import ExplainedLine, explain_line
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.usage.job import compute_usage
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import LakeFix, cover, ingest, lake_of, square
from waybill.record import IntervalSet

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
JANUARY = (date(2026, 1, 1), date(2026, 1, 31))
TRUCK = TenantDevice("acme", "eu-1")


def drive(name: str, count: int = 90) -> list[LakeFix]:
    return [LakeFix(name, at, TEN + timedelta(minutes=at), 0.005, at / 3_000) for at in range(1, count + 1)]


@pytest.fixture(scope="module")
def invoiced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[BilledLake, str]:
    """A lake of two vehicles, and the number of the invoice over their January."""
    lake = lake_of(tmp_path_factory.mktemp("lake"), [square("square")])
    ingest(lake, [*drive("eu-1"), *drive("eu-2", 60)])
    end_us = int(datetime(2026, 2, 1, tzinfo=UTC).timestamp() * 1_000_000)
    known = {
        DeviceStream("acme", name, 7): Coverage(IntervalSet([(1, count)]), (), count, end_us, count, end_us)
        for name, count in (("eu-1", 90), ("eu-2", 60))
    }
    cover(lake, known)
    compute_usage(spark, lake, TrackSettings())
    billed = BilledLake(lake)
    prices = tariff(price("0.45"), price("0.30", zone="*"), price("2", meter="active day", unit="day"))
    payer = account("acme", device("eu-1", tenant="acme"), device("eu-2", tenant="acme"))
    bodies = (legal_entity(), prices, payer)
    lake.append("reference", [row_of(kind_of(body), body["id"], body, 50 + at) for at, body in enumerate(bodies)])
    billed.close("run", days=JANUARY)
    (invoice,) = billed.issue("clerk", days=JANUARY).documents
    return billed, invoice.number


def line_of(invoiced: tuple[BilledLake, str], line: int, device: TenantDevice = TRUCK) -> ExplainedLine:
    billed, number = invoiced
    return explain_line(billed.register, number, line, device)


def run(invoiced: tuple[BilledLake, str], *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(explain)
    billed, number = invoiced
    return CliRunner().invoke(app, [number, *arguments, "--lake", str(billed.lake.location)])


@pytest.mark.parametrize("line", [1, 2, 3])
def test_every_line_comes_out_of_its_records_once_more(invoiced: tuple[BilledLake, str], line: int) -> None:
    for device_of_line in (TRUCK, TenantDevice("acme", "eu-2")):
        found = line_of(invoiced, line, device_of_line).explanation
        assert found.agrees is True, found
        assert found.quantity == found.charge.quantity > 0


def test_a_line_of_several_vehicles_asks_which_one(invoiced: tuple[BilledLake, str]) -> None:
    result = run(invoiced, "1")
    assert result.exit_code == 1
    assert "acme/eu-1, acme/eu-2" in result.output


def test_json_has_hours_records_and_what_agrees(invoiced: tuple[BilledLake, str]) -> None:
    result = run(invoiced, "1", "--device", "acme/eu-1", "--json", "--hour", "2026-01-05T11", "--limit", "5")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["agrees"] is True
    assert [one["agrees"] for one in found["hours"]] == [True, True]
    assert len(found["records"]) == 5
    assert found["records"][0]["device_time"].startswith("2026-01-05T1")


def test_the_picture_shows_the_border_and_what_was_metered(invoiced: tuple[BilledLake, str], tmp_path: Path) -> None:
    result = run(invoiced, "2", "--device", "acme/eu-1", "--picture", str(tmp_path / "line.svg"))
    assert result.exit_code == 0, result.output
    drawn = ET.parse(tmp_path / "line.svg").getroot()  # noqa: S314 - made by the code under test
    assert any(part.attrib.get("class") == "zone" for part in drawn.iter())
    assert "#c2410c" in {part.attrib.get("stroke") for part in drawn.iter("{http://www.w3.org/2000/svg}polyline")}


def test_settings_of_tracks_that_were_changed_after_the_closing_change_no_explanation(
    invoiced: tuple[BilledLake, str], spark: SparkSession
) -> None:
    billed, _ = invoiced
    other = TrackSettings(max_gap_s=30)
    # a fix each minute: with this gap there is no segment at all
    assert compute_usage(spark, billed.lake, other).rows > 0
    assert line_of(invoiced, 1).explanation.agrees is True
    (closing,) = billed.close("other tracks", days=JANUARY)
    # nothing but the days is left, and nothing of it is posted
    assert closing.net_minor < billed.register.documents()[0].net_minor
    compute_usage(spark, billed.lake, TrackSettings())


def test_what_came_after_the_closing_changes_no_explanation(
    invoiced: tuple[BilledLake, str], spark: SparkSession
) -> None:
    billed, _ = invoiced
    late = LakeFix("eu-1", 91, TEN + timedelta(minutes=30, seconds=30), 0.009, 0.0101)
    ingest(billed.lake, [late])
    billed.lake.append("reference", [row_of("tariff", "standard", tariff(price("9.00")), 90)])
    compute_usage(spark, billed.lake, TrackSettings())
    assert line_of(invoiced, 1).explanation.agrees is True


def test_an_hour_in_which_the_line_counts_nothing_is_refused(invoiced: tuple[BilledLake, str]) -> None:
    assert run(invoiced, "1", "--device", "acme/eu-1", "--hour", "2026-01-09T11").exit_code == 2
