"""The preview of a running period: the sum of a closing so far, marked in each form, and stored nowhere."""

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from reportlab.pdfgen.canvas import Canvas
from typer.testing import CliRunner, Result

from cloud_jobs.billing.documents import Look, to_pdf
from cloud_jobs.billing.documents.document import NOTHING_KNOWN, PREVIEW_MARK
from cloud_jobs.billing.register.commands import NOT_ALL, app
from cloud_jobs.billing.register.errors import RegisterError
from cloud_jobs.billing.register.preview import preview_period, running_days
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, used

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
"""A moment in the period, after its usage."""


@pytest.fixture
def running(tmp_path: Path) -> BilledLake:
    """`live` stated a minute ago, `lost` three hours ago, and `dumb` never sent anything."""
    made = BilledLake.create(tmp_path / "lake")
    made.hear("live", until=NOON - timedelta(minutes=1))
    made.hear("lost", until=NOON - timedelta(hours=3))
    vehicles = device("live"), device("lost")
    made.publish(legal_entity(), tariff(price()), account("acme", *vehicles), account("beta", device("dumb")))
    made.use(used("live", 10_000), used("lost", 4_000))
    return made


def run(billed: BilledLake, *words: str) -> Result:
    return CliRunner().invoke(app, ["preview", *words, "--lake", str(billed.lake.location)])


def test_the_sum_so_far_is_that_of_a_closing_at_the_moment(running: BilledLake) -> None:
    [acme, beta] = preview_period(running.lake, DAYS, None, NOON).payers
    closings = running.close("a", now=NOON)
    assert [one.closing.net_minor for one in (acme, beta)] == [one.net_minor for one in closings]
    assert acme.document is not None
    assert acme.document["document_totals"]["invoice_total_amount_without_vat"]["minor"] == closings[0].net_minor > 0
    assert [one.net_minor for one in running.close("after the end")] == [one.net_minor for one in closings]


def test_what_is_not_known_is_listed_and_is_no_zero(running: BilledLake) -> None:
    [acme, beta] = preview_period(running.lake, DAYS, None, NOON).payers
    assert acme.document is not None
    assert beta.document is not None
    # `live` is silent for the rest of the period, which nobody can know yet
    assert acme.document["preview"] == {
        "mark": PREVIEW_MARK,
        "as_of": "2026-03-10T12:00:00Z",
        "devices": 2,
        "incomplete": [{"device": "fleet/lost", "reasons": ["silent since 2026-03-10T09:00:00Z"]}],
        "reasons": [],
    }
    assert [one["device"] for one in beta.document["preview"]["incomplete"]] == ["fleet/dumb"]
    assert [line["item_name"] for line in beta.document["lines"]] == [NOTHING_KNOWN]


def test_in_the_first_hours_of_a_month_a_payer_whose_month_begins_later_is_named(running: BilledLake) -> None:
    before = legal_entity(), tariff(price()), account("acme", device("live"), device("lost"))
    west = account("gamma", device("west"), payer=payer(time_zone="America/New_York"))
    running.publish(*before, account("beta", device("dumb")), west)
    running.use(used("west", 1_000, hour=datetime(2026, 3, 1, 1, tzinfo=UTC)))
    found = preview_period(running.lake, DAYS, None, datetime(2026, 3, 1, 2, tzinfo=UTC))
    closing = found.payers[-1].closing
    assert (closing.key.payer, closing.reasons) == ("gamma", ("its period begins at 2026-03-01T05:00:00Z",))
    # its device has an account
    assert found.unbilled == []


def test_a_vehicle_that_a_payer_gets_later_in_the_period_is_not_incomplete_yet(running: BilledLake) -> None:
    before = legal_entity(), tariff(price()), account("acme", device("live"), device("lost"))
    running.publish(
        *before, account("beta", device("dumb")), account("gamma", device("next", begin="2026-03-20T00:00:00Z"))
    )
    (gamma,) = preview_period(running.lake, DAYS, ["gamma"], NOON).payers
    assert gamma.document is not None
    assert gamma.document["preview"]["incomplete"] == []


def test_a_preview_writes_nothing_into_the_lake(running: BilledLake) -> None:
    before = {one.name: DeltaTable(str(one)).version() for one in Path(str(running.lake.location)).iterdir()
              if (one / "_delta_log").exists()}  # fmt: skip
    preview_period(running.lake, DAYS, None, NOON)
    assert {name: DeltaTable(f"{running.lake.location}/{name}").version() for name in before} == before
    assert {"closings", "rated_lines", "certificates", "documents", "snapshots"} <= {*before}


def test_each_form_is_marked_and_has_no_number(running: BilledLake, tmp_path: Path) -> None:
    asked = "--period", "2026-03", "--payer", "acme"
    table = run(running, *asked).stdout
    assert PREVIEW_MARK in table
    assert "Amount due" not in table
    [document] = json.loads(run(running, *asked, "--json").stdout)["previews"]
    assert (document["invoice_number"], document["preview"]["mark"]) == (None, PREVIEW_MARK)
    # nothing that a program could pay, or book as an invoice
    assert document["payment_instructions"] is None
    rows = [*csv.DictReader(io.StringIO(run(running, *asked, "--form", "csv").stdout))]
    assert all(row["preview"].startswith(PREVIEW_MARK) and not row["invoice_number"] for row in rows)
    assert not any(row["invoice_type_code"] for row in rows)
    assert [row["posted_amount"] for row in rows if row["kind"] == "incomplete"] == ["", ""]
    with patch.object(Canvas, "drawString", autospec=True) as drawn:
        pages = to_pdf(document, Look(language="en")).count(b"/Type /Page\n")
    assert [one.args[3] for one in drawn.call_args_list] == [PREVIEW_MARK] * pages
    assert pages == 2
    written = run(running, *asked, "--out", str(tmp_path / "out"), "--form", "pdf", "--form", "csv").stdout.split()
    assert sorted(Path(one).suffix for one in written) == [".csv", ".pdf"]
    assert all(Path(one).name.startswith("PREVIEW-acme-2") for one in written)


def test_ubl_is_refused_because_it_would_be_booked(running: BilledLake) -> None:
    result = run(running, "--period", "2026-03", "--form", "ubl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not an invoice" in " ".join(result.stderr.split())


def test_a_payer_that_cannot_be_rated_has_no_preview_and_holds_up_no_other(running: BilledLake) -> None:
    running.publish(legal_entity(), tariff(price()), account("acme", device("live"), device("lost")),
                    account("beta", device("dumb")), account("gamma", payer=payer(currency="USD")))  # fmt: skip
    result = run(running, "--period", "2026-03", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, [one["payer"] for one in found["blocked"]]) == (NOT_ALL, ["gamma"])
    assert [one["buyer"]["buyer_identifier"] for one in found["previews"]] == ["acme", "beta"]


def test_a_period_that_has_not_begun_is_refused(running: BilledLake) -> None:
    with pytest.raises(RegisterError, match="begins at 2026-03-31T"):
        preview_period(running.lake, (date(2026, 4, 1), date(2026, 4, 30)), None, NOON)


@pytest.mark.parametrize(("today", "last"), [("2026-02-11", "2026-02-28"), ("2026-12-31", "2026-12-31")])
def test_the_running_period_is_the_calendar_month(today: str, last: str) -> None:
    first = date.fromisoformat(today).replace(day=1)
    assert running_days(date.fromisoformat(today)) == (first, date.fromisoformat(last))


def test_close_names_the_preview_while_the_period_runs(running: BilledLake) -> None:
    lake = str(running.lake.location)
    closed = CliRunner().invoke(app, ["close", "--period", "2999", "--lake", lake])
    assert f"`waybill bill preview --lake {lake} --period 2999` shows what it costs so far" in closed.stderr
    over = CliRunner().invoke(app, ["close", "--period", "2026-03", "--lake", lake])
    assert "preview" not in over.stderr
