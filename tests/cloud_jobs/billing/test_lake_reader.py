"""`waybill bill` on real Delta tables, written without Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

from cloud_jobs.billing import BillStatus, UnknownAccount
from cloud_jobs.billing.cli import app
from cloud_jobs.billing.device_records import line_records
from cloud_jobs.billing.lake_reader import account_at, bill_from_lake, tariff_versions
from cloud_jobs.billing.period import Period
from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.schemas import RECORDS, REFERENCE, USAGE, without
from cloud_jobs.lake.tables import COVERS, Lake
from telemetry import IntervalSet, Tombstone
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import cover
from tests.usage_rows import usage_row

MARCH = Period.parse("2026-03")
DAY = datetime(2026, 3, 5, 6, tzinfo=UTC)
COMPUTED = datetime(2026, 4, 1, tzinfo=UTC)
PUBLISHED = datetime(2026, 1, 1, tzinfo=UTC)
TARIFF = {
    "id": "standard-eur",
    "currency": "EUR",
    "effective_from": "2026-01-01T00:00:00Z",
    "prices": [{"meter": "distance", "zone": "", "unit": "km", "unit_amount": "0.4500"}],
}
ACCOUNT = {
    "id": "acme",
    "name": "Acme Logistics",
    "currency": "EUR",
    "tariff": "standard-eur",
    "vehicles": [
        {"tenant": "acme", "device": "eu-0001", "region": "eu"},
        {"tenant": "acme", "device": "us-0001", "region": "us"},
    ],
}


def usage(device: str, distance_mm: int, computed_at: datetime = COMPUTED, hour: datetime = DAY) -> dict[str, Any]:
    # in two quarters: the bill takes their sum
    amounts: dict[str, Any] = {"distance_mm": [1, distance_mm - 1, 0, 0], "duration_ms": [0, 30_000, 0, 30_000]}
    return usage_row(device, hour, seq_ranges=json.dumps({"77": [[1, 3], [5, 5]]}), computed_at=computed_at, **amounts)


def received(device: str, *ranges: tuple[int, int], lost: tuple[Tombstone, ...] = (), head: int = 5) -> Any:
    return {DeviceStream("acme", device, 77): Coverage(IntervalSet(ranges), lost, head)}


def record(seq: int) -> dict[str, Any]:
    at = DAY + timedelta(seconds=seq)
    return {
        "tenant": "acme",
        "device": "eu-0001",
        "epoch": 77,
        "seq": seq,
        "kind": "position",
        "device_time": at,
        "received_at": at,
        "device_date": at.date(),
        "ingest_number": 1,
        "content_bytes": 32,
        "latitude": 53.0,
        "longitude": -2.0,
    }


def publication(kind: Any, name: str, body: Any, number: int = 0) -> dict[str, Any]:
    """Collected on the day of its number."""
    return row_of(kind, name, body, number, collected_at=PUBLISHED + timedelta(number))


def add(folder: Path, table: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    # usage states that it covers all; of other tables nobody asks
    covers = CommitProperties(app_transactions=[Transaction(COVERS, 1_000)])
    write_deltalake(folder / table, pa.Table.from_pylist(rows, schema=schema), mode="append", commit_properties=covers)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    made = Lake(folder)
    made.create()
    published = [("account", "acme", ACCOUNT), ("tariff", "standard-eur", TARIFF)]
    add(folder, "reference", REFERENCE, [publication(*one) for one in published])
    add(folder, "usage", USAGE, [usage("eu-0001", 10_000_000), usage("us-0001", 1_000_000), usage("it's", 1)])
    lost = (Tombstone(4, 5, "quota"),)
    cover(made, received("eu-0001", (1, 5)) | received("us-0001", (1, 3), lost=lost))
    add(folder, "records", RECORDS, [record(seq) for seq in range(1, 8)])
    return folder


def test_a_bill_has_usage_completeness_and_records_of_its_tenants_devices_alone(lake: Path) -> None:
    twin = {"tenant": "other"}
    add(lake, "usage", USAGE, [usage("eu-0001", 70_000_000) | twin])
    cover(Lake(lake), {DeviceStream("other", "eu-0001", 77): Coverage(IntervalSet([(1, 2)]), head=9)})
    add(lake, "records", RECORDS, [record(seq) | twin for seq in range(1, 8)])
    found = bill_from_lake(Lake(lake), "acme", MARCH, datetime.now(UTC))
    assert [(line.key.device, line.quantity) for line in found.lines] == [
        ("eu-0001", 10_000_000),
        ("us-0001", 1_000_000),
    ]
    assert (found.certificates[0].device, found.certificates[0].received) == ("eu-0001", 5)
    assert [one["seq"] for one in line_records(Lake(lake), found.lines[0])] == [1, 2, 3, 5]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def asked(lake: Path) -> tuple[str | Path, ...]:
    return ("--lake", lake, "--account", "acme", "--period", "2026-03")


def test_a_bill_is_read_from_the_lake(lake: Path) -> None:
    found = bill_from_lake(Lake(lake), "acme", MARCH, datetime.now(UTC))
    assert found.status is BillStatus.FINAL
    assert found.totals_by_region == {"eu": 450, "us": 45}


def test_show_prints_a_table_json_and_an_invoice(lake: Path, tmp_path: Path) -> None:
    shown = run("show", *asked(lake))
    assert shown.exit_code == 0
    assert "4.95" in shown.output
    page = tmp_path / "invoice.html"
    as_json = run("show", *asked(lake), "--json", "--html", page)
    document = json.loads(as_json.stdout)
    assert document["sum_of_invoice_line_net_amount"] == {"minor": 495, "text": "4.95"}
    assert document["invoice_number"] in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_named_and_one_that_can_replaces_the_old_one_whole(
    lake: Path, tmp_path: Path
) -> None:
    refused = run("show", *asked(lake), "--html", tmp_path / "nowhere" / "invoice.html")
    assert refused.exit_code == 1
    assert refused.stderr == f"bill: {tmp_path}/nowhere/invoice.html: No such file or directory\n"
    page = tmp_path / "invoice.html"
    page.write_text("x" * 100_000, encoding="utf-8")
    assert run("show", *asked(lake), "--html", page).exit_code == 0
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert run("show", *asked(lake), "--html", "/dev/full").stderr == "bill: /dev/full: No space left on device\n"


def test_the_same_moment_gives_the_same_bytes_whatever_came_later(lake: Path) -> None:
    moment = datetime.now(UTC).isoformat()
    before = run("show", *asked(lake), "--json", "--as-of", moment).stdout_bytes
    add(lake, "usage", USAGE, [usage("eu-0001", 99, computed_at=datetime.now(UTC)) | {"commit_number": 2}])
    assert run("show", *asked(lake), "--json", "--as-of", moment).stdout_bytes == before
    assert run("show", *asked(lake), "--json").stdout_bytes != before


def test_a_device_that_became_complete_was_open_before(lake: Path) -> None:
    before_anything = MARCH.end
    cover(Lake(lake), received("eu-0001", head=6))
    moment = datetime.now(UTC)
    cover(Lake(lake), received("eu-0001", (6, 6)))
    assert bill_from_lake(Lake(lake), "acme", MARCH, before_anything).status is BillStatus.PROVISIONAL
    assert bill_from_lake(Lake(lake), "acme", MARCH, moment).status is BillStatus.PROVISIONAL
    assert bill_from_lake(Lake(lake), "acme", MARCH, datetime.now(UTC)).status is BillStatus.FINAL


def test_a_line_opens_down_to_its_records(lake: Path) -> None:
    opened = run("open", *asked(lake), "--line", "1", "--json")
    found = json.loads(opened.stdout)
    assert found["seq_ranges"] == {"77": [[1, 3], [5, 5]]}
    assert [row["seq"] for row in found["records"]] == [1, 2, 3, 5]
    table = run("open", *asked(lake), "--line", "1")
    assert table.exit_code == 0
    assert "Seq ranges: 4 records" in table.output


def test_an_issued_bill_is_kept_and_what_comes_later_is_an_adjustment(lake: Path, tmp_path: Path) -> None:
    issued = tmp_path / "issued"
    moment = datetime.now(UTC).isoformat()
    assert run("issue", *asked(lake), "--out", issued, "--as-of", moment).exit_code == 0
    (bill,) = issued.glob("*.json")
    before = bill.read_bytes()
    again = run("issue", *asked(lake), "--out", issued, "--as-of", moment)
    assert again.exit_code == 1
    assert "issued already" in again.output
    add(lake, "usage", USAGE, [usage("eu-0001", 12_000_000, computed_at=datetime.now(UTC)) | {"commit_number": 2}])
    change = json.loads(run("adjust", "--lake", lake, "--issued", bill, "--json").stdout)
    assert change["sum_of_invoice_line_net_amount"]["minor"] == 90
    assert change["lines"][0]["direction"] == "debit"
    assert run("adjust", "--lake", lake, "--issued", bill).exit_code == 0
    assert bill.read_bytes() == before


def test_a_provisional_bill_is_not_issued_unasked(lake: Path, tmp_path: Path) -> None:
    cover(Lake(lake), received("eu-0001", head=6))
    refused = run("issue", *asked(lake), "--out", tmp_path / "issued")
    assert refused.exit_code == 1
    assert "provisional" in refused.output
    assert run("issue", *asked(lake), "--out", tmp_path / "issued", "--provisional").exit_code == 0


def test_an_unknown_account_names_those_there_are(lake: Path) -> None:
    failed = run("show", "--lake", lake, "--account", "o'neill", "--period", "2026-03")
    assert failed.exit_code == 1
    assert "there are: acme" in failed.output


def test_a_lake_without_tables_says_which_is_missing(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"no table 'reference' in the lake .*; run `cloud-jobs usage`"):
        bill_from_lake(Lake(tmp_path), "acme", MARCH, COMPUTED)
    with pytest.raises(LakeError, match=r"there is no lake .*nowhere: no such folder"):
        bill_from_lake(Lake(tmp_path / "nowhere"), "acme", MARCH, COMPUTED)


def test_what_is_not_known_yet_is_not_asked_for_and_a_period_that_goes_on_is_not_issued(
    lake: Path, tmp_path: Path
) -> None:
    later = run("show", *asked(lake), "--as-of", "2999-01-01")
    assert (later.exit_code, later.stderr) == (
        1,
        "bill: --as-of 2999-01-01T00:00:00Z is in the future; nobody knows yet what will be known then\n",
    )
    assert run("show", *asked(lake), "--as-of", "soon").stderr.startswith("bill: 'soon' is not a valid moment")
    future = ("--lake", lake, "--account", "acme", "--period", "2999")
    assert run("show", *future).exit_code == 0
    refused = run("issue", *future, "--out", tmp_path / "issued", "--provisional")
    assert refused.exit_code == 1
    assert "the period 2999-01-01T00:00:00Z/3000-01-01T00:00:00Z had not ended at " in refused.stderr
    assert not (tmp_path / "issued").exists()


WRONG = TARIFF | {"currency": "EURO"}


def test_a_tariff_that_cannot_be_used_leaves_the_one_before_it_in_force_and_is_shown(
    lake: Path, tmp_path: Path
) -> None:
    before = json.loads(run("show", *asked(lake), "--json").stdout)
    assert before["refused_versions"] == []
    add(lake, "reference", REFERENCE, [publication("tariff", "standard-eur", WRONG, 1)])
    found = json.loads(run("show", *asked(lake), "--json").stdout)
    assert found["lines"] == before["lines"]
    (refused,) = found["refused_versions"]
    assert (refused["kind"], refused["id"], refused["place"]) == ("tariff", "standard-eur", "topic 3:1:-1")
    assert (refused["effective_from"], "'EURO'" in refused["reason"]) == ("2026-01-01T00:00:00Z", True)
    assert (before["status"], found["status"]) == ("final", "provisional")
    shown = run("show", *asked(lake))
    assert "Cannot be used, and not in force" in shown.output
    assert "which publications cannot be used" in run("issue", *asked(lake), "--out", tmp_path / "issued").stderr
    assert run("issue", *asked(lake), "--out", tmp_path / "issued", "--provisional").exit_code == 0
    (bill,) = (tmp_path / "issued").glob("*.json")
    assert json.loads(run("adjust", "--lake", lake, "--issued", bill, "--json").stdout)["lines"] == []
    add(lake, "reference", REFERENCE, [publication("tariff", "standard-eur", TARIFF, 2)])
    corrected = json.loads(run("show", *asked(lake), "--json").stdout)
    assert (corrected["status"], corrected["refused_versions"]) == ("final", [])


def test_what_cannot_be_used_keeps_one_bill_from_being_made_and_no_other(lake: Path) -> None:
    bad = [("account", "bad", ACCOUNT | {"colour": "red"}, 1), ("tariff", "worse", WRONG | {"id": "worse"}, 2)]
    needs = ("account", "needs", ACCOUNT | {"id": "needs", "tariff": "worse"}, 3)
    add(lake, "reference", REFERENCE, [publication(*one) for one in (*bad, needs)])
    shown = json.loads(run("show", *asked(lake), "--json").stdout)
    assert (shown["status"], shown["refused_versions"]) == ("final", [])
    for account, reason in (
        ("bad", "account 'bad' (topic 3:1:-1, publication "),
        ("needs", "tariff 'worse' from 2026"),
    ):
        failed = run("show", "--lake", lake, "--account", account, "--period", "2026-03")
        assert failed.exit_code == 1
        assert reason in failed.stderr


def test_a_price_that_is_set_back_is_billed_and_a_bill_of_before_stays_as_it_was(lake: Path) -> None:
    dear = TARIFF | {"prices": [{"meter": "distance", "zone": "", "unit": "km", "unit_amount": "4.50"}]}
    totals = []
    for number, body in enumerate([dear, TARIFF], 1):
        add(lake, "reference", REFERENCE, [publication("tariff", "standard-eur", body, number)])
        totals.append(bill_from_lake(Lake(lake), "acme", MARCH, datetime.now(UTC)).total_minor)
    assert totals == [4950, 495]
    for day, price in ((0.5, "0.4500"), (1.5, "4.50"), (2.5, "0.4500")):
        (held,), _ = tariff_versions(Lake(lake), "standard-eur", PUBLISHED + timedelta(day))
        assert str(held.prices[0].unit_amount) == price


def test_what_is_collected_later_changes_no_earlier_knowledge_however_early_it_was_published(lake: Path) -> None:
    moment = datetime.now(UTC)
    before = run("show", *asked(lake), "--json", "--as-of", moment.isoformat()).stdout_bytes
    late = publication("tariff", "standard-eur", TARIFF | {"prices": []}, 1)
    late |= {"published_at": PUBLISHED - timedelta(1), "collected_at": moment + timedelta(microseconds=1)}
    add(lake, "reference", REFERENCE, [late])
    assert run("show", *asked(lake), "--json", "--as-of", moment.isoformat()).stdout_bytes == before
    assert bill_from_lake(Lake(lake), "acme", MARCH, moment + timedelta(1)).total_minor == 0


def test_a_lake_of_another_version_is_said_to_be_one_before_an_account_is_looked_for(tmp_path: Path) -> None:
    Lake(tmp_path).create()
    shutil.rmtree(tmp_path / "usage")
    DeltaTable.create(
        str(tmp_path / "usage"), schema=without(USAGE, "seq_ranges").append(pa.field("names", pa.string()))
    )
    failed = run("show", "--lake", tmp_path, "--account", "acme", "--period", "2026-03")
    assert failed.exit_code == 1
    said = " ".join(failed.output.split())
    assert "made by another version: this one does not know its columns names and misses the columns seq_ranges" in said


def test_before_it_was_collected_there_is_no_account(lake: Path) -> None:
    with pytest.raises(UnknownAccount, match="there are: none"):
        account_at(Lake(lake), "acme", PUBLISHED - timedelta(seconds=1))
